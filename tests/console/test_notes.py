"""Notes on a job: written, deleted, and read by the colleagues whom they mention."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.test import Client

from accounts.models import Membership, User
from accounts.tenancy import actor_of
from dispatch.console.board import notes as panel
from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.models import Event, RememberedAnswer
from dispatch.core.privacy.personal_data import DataSubject, erase_person
from dispatch.jobs import personal, timeline
from dispatch.jobs.models import Job, JobNote
from dispatch.jobs.rules.mentions import find_mentions
from dispatch.jobs.services import notes
from dispatch.telephony.models import Text
from notifications.models import Alert, Delivery, Notification, Route
from notifications.services import ownership
from notifications.services.deliveries import is_needed
from notifications.services.notifications import handle, handle_early, read
from notifications.services.preferences import Wants, save_preference
from tests.api.client import Api
from tests.console.test_board import HTMX, Desk
from tests.support import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(browser) -> Desk:
    return Desk(browser)


@pytest.fixture
def kim(desk) -> User:
    return make.dispatcher(desk.organization, "Kim")


def write(desk: Desk, text: str, job: Job | None = None) -> JobNote:
    return notes.write_note((job or desk.job()).pk, text, actor=actor_of(desk.person))


def notified() -> list[str]:
    """Notify the people of all notes. Return their names."""
    handle(list(Event.objects.filter(kind="job.note_written").order_by("id")))
    rows = Notification.objects.filter(kind="job.note_written").select_related("user")
    return sorted(row.user.name for row in rows if row.user)


def named(text: str, *members: str) -> list[str]:
    """Return the parts of the text that mention these members."""
    return [text[found.start : found.end] for found in find_mentions(text, enumerate(members))]


def test_mentions_are_whole_names_and_the_longest_wins():
    assert named("@Kim Lee, see @kim and @KIM LEESON.", "Kim", "Kim Lee") == ["@Kim Lee", "@kim", "@KIM"]
    assert named("@Kimberly kim@kim.example @@Kim @", "Kim") == ["@Kim"]
    assert named("(@داليا) @किमी", "داليا", "किम") == ["@داليا"]
    assert named("@Kim @ Kim", "", " Kim ") == ["@Kim"]
    (both,) = find_mentions("@kim", [(1, "Kim"), (2, "KIM")])
    assert both.users == (1, 2)
    assert named("@STRAUSS and @strauß", "Strauß") == ["@STRAUSS", "@strauß"], "the upper case is longer"
    (last,) = find_mentions("Ask @Kim", [(1, "Kim"), (2, "Kimberly Long")])
    assert (last.start, last.end) == (4, 8), "it ends with the text, though a colleague's name is longer"
    assert len(find_mentions("@" * 2000, enumerate(f"Member {number:0{number}}" for number in range(100)))) == 0


def test_each_mentioned_member_is_notified_once_and_nobody_else(desk, kim):
    make.dispatcher(make.organization("Elsewhere"), "Sam")
    left = make.dispatcher(desk.organization, "Lee")
    Membership.objects.filter(user=left).update(is_active=False)
    note = write(desk, "@Kim @kim: ask @Sam, @Lee or me, @Dana.\r\n@KIM", job := desk.job())
    assert (note.text.count("\n"), note.author_name) == (1, "Dana")
    event = Event.objects.get(kind="job.note_written")
    assert event.data == {"note_id": note.pk, "mentioned": [kim.pk]}, "a note may name customers"
    assert notified() == notified() == ["Kim"]
    row = Notification.objects.get(user=kim)
    assert row.title == f"Dana mentioned you in a note on job {job.pk}"
    assert (row.level, row.subject_id) == ("toast", job.pk)
    write(desk, "Nobody is mentioned here", job)
    assert notified() == ["Kim"]
    assert [entry.text for entry in timeline.load_timeline(job)][-2:] == ["Dana wrote a note"] * 2


def emailed_toast(desk: Desk, user: User) -> None:
    wants = Wants(shown=True, email=True, sms=False, voice=False)
    save_preference(user, desk.organization.pk, "job.note_written", wants, actor=actor_of(user))


def test_deleted_note_withdraws_unread_notifications_and_unsent_email(desk, kim, browser):
    lee = make.dispatcher(desk.organization, "Lee")
    job = desk.job()
    for person in (kim, lee):
        emailed_toast(desk, person)
    claimed = ownership.claim(desk.organization, "job", job.pk, user=kim, actor=actor_of(kim))
    wrong = write(desk, "@Kim and @Lee: cancel it", job)
    notified()
    clock.travel(601)  # later notes are not counted in the first notification
    right = write(desk, "@Kim: keep it", job)
    notified()
    read(lee, desk.organization.pk)
    notes.delete_note(job.pk, wrong.pk, actor=actor_of(desk.person), is_admin=False)
    for _ in range(2):  # the event is handled early, and again in order
        handle([Event.objects.get(kind="job.note_deleted")])
    gone, kept = Notification.objects.filter(user=kim).order_by("pk")
    assert (gone.settled_how, gone.read_at is None) == ("Dana deleted the note", False)
    assert (kept.settled_at, kept.read_at) == (None, None), f"the note {right.pk} still exists"
    assert Notification.objects.get(user=lee).settled_at is None, "it was read"
    email = [Delivery.objects.get(notification=row).status for row in (gone, kept)]
    assert email == ["dropped", "waiting"]
    assert not is_needed(gone)
    assert is_needed(kept)
    shown = browser(kim).get("/notifications/").content.decode()
    assert "Dana deleted the note" in shown
    claimed.refresh_from_db()
    assert claimed.user == kim, "the job's problem is still hers"


def test_note_that_was_deleted_at_once_notifies_nobody(desk, kim):
    note = write(desk, "@Kim: wrong job", job := desk.job())
    notes.delete_note(job.pk, note.pk, actor=actor_of(desk.person), is_admin=False)
    handle_early(Event.objects.get(kind="job.note_deleted"))
    assert notified() == []


def test_deleted_note_resolves_the_alert_that_an_admins_rule_made_of_it(desk, kim):
    Route.objects.create(organization=desk.organization, kind="job.note_written", level="critical", is_on=True)
    note = write(desk, "@Kim: cancel it", job := desk.job())
    notified()
    assert Alert.objects.get().status == "open"
    notes.delete_note(job.pk, note.pk, actor=actor_of(desk.person), is_admin=False)
    handle_early(Event.objects.get(kind="job.note_deleted"))
    assert Alert.objects.get().settled_how == "Dana deleted the note"
    assert not Notification.objects.get(user=kim).is_open_alert


def test_earlier_notes_are_reached_page_by_page_and_stay_shown(desk, monkeypatch):
    monkeypatch.setattr(panel, "PAGE", 3)
    monkeypatch.setattr(panel, "MAX_SHOWN", 7)
    job = desk.job()
    written = [write(desk, f"Text {number:02}", job) for number in range(8)]
    path = f"/board/jobs/{job.pk}/notes/"

    def see(query: str, **how) -> tuple[list[str], str]:
        page = desk.see(f"{path}{query}", **how)
        found = re.search(r'href="([^"]+)"[^>]*>Show earlier notes <span class="quiet">\((\d) more\)', page)
        return re.findall(r"Text (\d\d)", page), f"{found[2]}: {found[1]}" if found else ""

    assert see("", headers=HTMX) == (["05", "06", "07"], f"5: {path}?before={written[5].pk}")
    assert 'data-count="8"' in desk.see(path, headers=HTMX)
    earlier = f"?part=earlier&before={written[5].pk}"
    assert see(earlier, headers=HTMX) == (["02", "03", "04"], f"2: {path}?before={written[2].pk}")
    assert see(f"?part=earlier&before={written[2].pk}", headers=HTMX) == (["00", "01"], "")
    assert see(f"?before={written[2].pk}") == (["00", "01"], ""), "without JavaScript"
    shown = f"?part=list&from={written[5].pk}&from={written[2].pk}&from="
    assert see(shown, headers=HTMX) == (["02", "03", "04", "05", "06", "07"], f"2: {path}?before={written[2].pk}")
    assert see(f"?part=list&from={written[0].pk}", headers=HTMX)[1] == f"1: {path}?before={written[1].pk}"
    kept = {"do": "delete", "note": written[6].pk, "from": ["", written[2].pk]}
    answer = desk.client.post(f"{path}?part=list", kept, headers=HTMX).content.decode()
    assert re.findall(r"Text (\d\d)", answer) == ["02", "03", "04", "05", "07"]


def test_fifty_members_are_mentioned_in_one_note(desk):
    people = [make.dispatcher(desk.organization, f"Unit {number}") for number in range(50)]
    write(desk, " ".join(f"@{person.name}" for person in people) + " @Unit 1")
    assert notified() == sorted(person.name for person in people)


def test_a_text_that_cannot_be_a_note_is_refused(desk):
    job = desk.job()
    invisible = ("\u200b", "\u202e", "\u2060\u200d", "\u3164", "\ufeff", "\u2800", "\u0301", "\u00a0")
    refused = {"x" * 2001: "too long", " \n ": "Enter a note", "a\x1bb": "can't be seen"}
    for text, reason in (*refused.items(), *((text, "Enter a note") for text in invisible)):
        with pytest.raises(ValidationError, match=reason):
            write(desk, text, job)
    assert not JobNote.objects.exists()
    for text in ("x" * 2000, "👍", "❤️", "?", "می\u200cخواهم", "\U0001fae9"):
        assert write(desk, text, job).text == text


def test_author_or_admin_deletes_a_note_and_it_outlives_its_author(desk, kim):
    note, other = write(desk, "The gate code is 1234", job := desk.job()), desk.job()
    with pytest.raises(JobNote.DoesNotExist):
        notes.delete_note(other.pk, note.pk, actor=actor_of(desk.person), is_admin=True)
    for stranger in (actor_of(kim), Actor("api_key", desk.person.pk, "Key")):
        with pytest.raises(PermissionDenied):
            notes.delete_note(job.pk, note.pk, actor=stranger, is_admin=False)
    notes.delete_note(job.pk, note.pk, actor=actor_of(desk.person), is_admin=False)
    assert Event.objects.get(kind="job.note_deleted").data == {"note_id": note.pk}
    second = notes.write_note(job.pk, "Call first", actor=actor_of(kim))
    kim.memberships.all().delete()
    kim.delete()
    second.refresh_from_db()
    assert (second.author, second.author_name) == (None, "Kim")
    assert ">Kim</bdi>" in desk.see(f"/board/jobs/{job.pk}/notes/", headers=HTMX)


def test_panel_and_card_show_notes_and_a_form_sent_twice_leaves_one(desk, kim, browser):
    job = desk.job()
    path = f"/board/jobs/{job.pk}/notes/"
    form = {"text": "<script>1</script> @Kim\nsecond line", "nonce": nonce_of(desk.see(path, headers=HTMX))}
    for _ in range(2):
        answer = desk.client.post(path, form, headers=HTMX)
    shown = answer.content.decode()
    assert '&lt;script&gt;1&lt;/script&gt; <bdi class="mention">@Kim</bdi>\nsecond line' in shown
    assert JobNote.objects.count() == 1
    assert '<span aria-hidden="true">1</span>' in desk.list_of(desk.see(), "new")
    assert ">Delete note</button>" in desk.see(f"/board/jobs/{job.pk}/", headers=HTMX)
    other = browser(kim)
    assert "Delete note" not in other.get(path, headers=HTMX).content.decode()
    note = JobNote.objects.get()
    assert other.post(path, {"do": "delete", "note": note.pk}, headers=HTMX).status_code == 403
    assert desk.client.get("/board/members/").json() == {"names": ["Kim"]}
    too_long = desk.client.post(path, {"text": "x" * 2001})
    assert (too_long.status_code, "2001 characters" in too_long.content.decode()) == (422, True)
    without_script = desk.client.post(path, {"do": "delete", "note": note.pk})
    assert without_script["Location"] == f"/board/?job={job.pk}"
    assert not JobNote.objects.exists()
    clock.travel(timedelta(hours=1).total_seconds())
    stranger = browser(make.dispatcher(make.organization("Elsewhere"), "Sam"))
    assert stranger.post(path, {"text": "Hello"}, headers=HTMX).status_code == 404
    assert stranger.get(path, headers=HTMX).status_code == 404
    assert stranger.get("/board/members/").json() == {"names": []}
    assert [Client().post(path, {"text": "Hello"}).status_code, Client().get("/board/members/").status_code] == [
        302
    ] * 2
    assert Api().post(f"jobs/{job.pk}/notes/", {"text": "Hello"}).status_code == 401
    assert not JobNote.objects.exists()


def test_api_lists_writes_and_deletes_notes(desk, kim):
    job = desk.job()
    path = f"jobs/{job.pk}/notes/"
    api = Api(key=make.api_key(desk.organization, "read", "jobs:write"))
    written = api.post(path, {"text": "See @Kim"}, Idempotency_Key="one")
    assert written.status_code == 201, written.content
    note = written.json()
    assert (note["text"], note["mentioned"], note["author"]["id"]) == ("See @Kim", [kim.pk], None)
    again = api.post(path, {"text": "See @Kim"}, Idempotency_Key="one")
    assert (again.json(), again["Idempotency-Replayed"]) == (note, "true")
    own = Api(user=desk.person).post(path, {"text": "Mine"}).json()
    assert [one["id"] for one in api.get(path).json()["results"]] == [own["id"], note["id"]]
    assert api.get(f"{path}?page_size=1").json()["next"]
    refused = api.post(path, {"text": "x" * 2001})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "text")
    for text in (" ", "a\x1bb"):
        assert api.post(path, {"text": text}).json()["errors"][0]["field"] == "text"
    assert api.delete(f"{path}{own['id']}/").status_code == 403
    assert Api(user=kim).delete(f"{path}{own['id']}/").status_code == 403
    assert Api(user=desk.person).delete(f"{path}{own['id']}/").status_code == 204
    assert Api(user=make.admin(desk.organization, "Grace")).delete(f"{path}{note['id']}/").status_code == 204
    assert Api(user=kim).delete(f"{path}{note['id']}/").status_code == 404
    reader = Api(key=make.api_key(desk.organization, "read"))
    assert reader.post(path, {"text": "No"}).status_code == 403


def test_erasing_a_member_erases_their_name_in_colleagues_notifications(desk, kim):
    zoe = make.dispatcher(desk.organization, "Zoe Quinn")
    emailed_toast(desk, kim)
    job, number = desk.job(), make.number(desk.organization)
    for words in ("@Kim: Whitfield has the key", "@Kim: cancel it"):
        note = notes.write_note(job.pk, words, actor=actor_of(zoe))
        notified()
        clock.travel(601)  # each is a notification
    assert notified() == ["Kim", "Kim"]
    notes.delete_note(job.pk, note.pk, actor=actor_of(zoe), is_admin=False)
    handle([Event.objects.get(kind="job.note_deleted")])
    carried = Delivery.objects.filter(notification__user=kim).first()
    assert carried
    text = Text.objects.create(
        organization=desk.organization, purpose="alert", subject_id=carried.pk, account=number.account,
        number=number, to_phone="+16025550150", from_phone="1", body="Zoe Quinn mentioned you in a note",
        status="delivered", not_after=clock.now(),
    )  # fmt: skip
    erase_person(DataSubject(desk.organization.pk, user_id=zoe.pk), actor=actor_of(desk.person))
    shown = json.dumps(list(Notification.objects.values("title", "settled_how")))
    assert "erased mentioned you in a note" in shown
    assert "erased deleted the note" in shown
    assert "Quinn" not in shown
    text.refresh_from_db()
    assert text.body == "erased mentioned you in a note"
    assert Notification.objects.filter(user=kim, body__contains="Whitfield").exists(), "the customer is not erased"


def test_erasing_a_customer_or_a_member_erases_them_in_notes(desk, kim):
    job = desk.job("completed")
    write(desk, "@Dana and @Kim: Whitfield wants a call", job)
    member = DataSubject(desk.organization.pk, user_id=kim.pk)
    assert personal.erase(member)
    note = JobNote.objects.get()
    assert note.text == "@Dana and @erased: Whitfield wants a call"
    assert [note.text[one["start"] : one["end"]] for one in note.mentions] == ["@Dana"]
    assert personal.rows(DataSubject(desk.organization.pk, user_id=desk.person.pk))["notes_written"]
    customer = DataSubject(desk.organization.pk, phone=str(job.customer_phone))
    assert personal.rows(customer)["notes_on_jobs"][0]["text"] == note.text
    personal.erase(customer)
    note.refresh_from_db()
    assert (note.text, note.mentions) == ("erased", [])


@pytest.mark.parametrize("service", ["write_note", "delete_note"])
def test_job_that_is_deleted_meanwhile_is_not_found(desk, monkeypatch, service):
    original = getattr(notes, service)

    def after_the_job_was_deleted(job_id: int, *given, **named_values):
        Job.objects.filter(pk=job_id).delete()
        return original(job_id, *given, **named_values)

    first, second = desk.job(), desk.job()
    in_panel, in_api = write(desk, "Hello", first), write(desk, "Hello", second)
    monkeypatch.setattr(notes, service, after_the_job_was_deleted)
    is_new = service == "write_note"
    form = {"text": "Call back"} if is_new else {"do": "delete", "note": in_panel.pk}
    assert desk.client.post(f"/board/jobs/{first.pk}/notes/", form, headers=HTMX).status_code == 404
    api, path = Api(user=desk.person), f"jobs/{second.pk}/notes/"
    answer = api.post(path, {"text": "Call back"}) if is_new else api.delete(f"{path}{in_api.pk}/")
    assert (answer.status_code, answer.json()["status"]) == (404, 404)


def test_erasure_leaves_no_note_in_stored_responses_of_the_api(desk, kim):
    of_customer, of_member, other = desk.job("completed"), desk.job(), desk.job()
    api = Api(key=make.api_key(desk.organization, "read", "jobs:write"))
    for job, text in ((of_customer, "Her son has the key"), (of_member, "Ask @Kim"), (other, "Bring a ladder")):
        assert api.post(f"jobs/{job.pk}/notes/", {"text": text}, Idempotency_Key="one").status_code == 201

    def stored() -> list[str]:
        return [json.loads(row.body)["text"] for row in RememberedAnswer.objects.order_by("pk")]

    customer = DataSubject(desk.organization.pk, phone=str(of_customer.customer_phone))
    erase_person(customer, actor=actor_of(desk.person))
    assert stored() == ["Ask @Kim", "Bring a ladder"]
    erase_person(DataSubject(desk.organization.pk, user_id=kim.pk), actor=actor_of(desk.person))
    assert stored() == ["Bring a ladder"]


def test_a_members_export_has_the_notes_that_mention_them(desk, kim):
    job, elsewhere = desk.job(), make.dispatcher(make.organization("Elsewhere"), "Kim")
    write(desk, "Nobody", job)
    note, deleted = write(desk, "Ask @Kim for the key", job), write(desk, "@Kim: wrong job", job)
    notes.delete_note(job.pk, deleted.pk, actor=actor_of(desk.person), is_admin=False)
    (row,) = personal.rows(DataSubject(desk.organization.pk, user_id=kim.pk))["notes_that_mention_them"]
    assert (row["id"], row["job_id"], row["text"]) == (note.pk, job.pk, "Ask @Kim for the key")
    assert row["author_label"] == "Dana"
    for other in (
        DataSubject(desk.organization.pk, user_id=desk.person.pk),
        DataSubject(desk.organization.pk, user_id=elsewhere.pk),
        DataSubject(elsewhere.memberships.get().organization_id, user_id=kim.pk),
        DataSubject(desk.organization.pk, phone="+16025550123"),
    ):
        assert personal.rows(other)["notes_that_mention_them"] == []


def test_deleted_notes_text_is_not_in_the_stored_response_and_no_repeat_writes_it_again(desk, kim):
    job = desk.job()
    api = Api(key=make.api_key(desk.organization, "read", "jobs:write", "manage"))
    path = f"jobs/{job.pk}/notes/"
    gone, kept = (
        api.post(path, {"text": text}, Idempotency_Key=text[-1]).json()
        for text in ("@Kim: gate 1", "@Kim: gate 2")
    )
    assert api.delete(f"{path}{gone['id']}/").status_code == 204
    assert "gate 1" not in json.dumps(list(RememberedAnswer.objects.values_list("body", flat=True)))
    again = api.post(path, {"text": "@Kim: gate 1"}, Idempotency_Key="1")
    assert (again["Idempotency-Replayed"], again.json()["id"], again.json()["text"]) == ("true", gone["id"], "")
    assert api.post(path, {"text": "@Kim: gate 2"}, Idempotency_Key="2").json() == kept
    assert [note.pk for note in JobNote.objects.all()] == [kept["id"]]


def nonce_of(page: str) -> str:
    return page.split('name="nonce" value="')[1].split('"')[0]


def test_form_whose_reply_was_lost_leaves_one_note_however_late_it_is_sent_again(desk, kim, browser):
    job = desk.job("completed")
    path = f"/board/jobs/{job.pk}/notes/"

    def send(text: str, nonce: str) -> str:
        answer = desk.client.post(path, {"text": text, "nonce": nonce}, headers=HTMX)
        assert answer.status_code == 200
        return nonce_of(answer.content.decode())

    first = nonce_of(desk.see(f"/board/jobs/{job.pk}/", headers=HTMX))
    second = send("No answer", first)
    clock.travel(timedelta(hours=1).total_seconds())
    send("No answer", first)
    assert JobNote.objects.count() == 1
    send("No answer", second)
    assert JobNote.objects.count() == 2, "they called again and wrote the same"
    send("Reached them", second)
    assert JobNote.objects.last().text == "Reached them", "the text was changed before it was sent again"
    browser(kim).post(path, {"text": "No answer", "nonce": first}, headers=HTMX)
    assert JobNote.objects.filter(author=kim).count() == 1
    JobNote.objects.all().delete()
    send("No answer", first)
    assert not JobNote.objects.exists(), "a deleted note does not return"
    refused = desk.client.post(path, {"text": "a\x1bb", "nonce": second}, headers=HTMX).content.decode()
    assert "a\x1bb</textarea>" in refused, "the text is kept"
    send("Without", "")
    assert JobNote.objects.count() == 1
