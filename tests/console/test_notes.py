"""Notes on a job: written, deleted, and read by the colleagues whom they mention."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.test import Client

from accounts.models import Membership, User
from accounts.tenancy import actor_of
from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.privacy.personal_data import DataSubject
from dispatch.jobs import personal, timeline
from dispatch.jobs.models import Job, JobNote
from dispatch.jobs.rules.mentions import find_mentions
from dispatch.jobs.services import notes
from notifications.models import Notification
from notifications.services.notifications import handle
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


def test_fifty_members_are_mentioned_in_one_note(desk):
    people = [make.dispatcher(desk.organization, f"Unit {number}") for number in range(50)]
    write(desk, " ".join(f"@{person.name}" for person in people) + " @Unit 1")
    assert notified() == sorted(person.name for person in people)


def test_a_text_that_cannot_be_a_note_is_refused(desk):
    job = desk.job()
    for text, reason in (("x" * 2001, "too long"), (" \n ", "Enter a note"), ("a\x1bb", "can't be seen")):
        with pytest.raises(ValidationError, match=reason):
            write(desk, text, job)
    assert not JobNote.objects.exists()
    assert write(desk, "x" * 2000, job).pk


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
    for _ in range(2):
        answer = desk.client.post(path, {"text": "<script>1</script> @Kim\nsecond line"}, headers=HTMX)
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
