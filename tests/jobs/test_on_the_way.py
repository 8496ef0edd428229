"""Technicians say that they are on the way: by text, on their page, through a dispatcher, through the API."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from dispatch.console.board.cards import cards_of
from dispatch.core import clock, fault_injection
from dispatch.core.api.problems import Conflict
from dispatch.core.models import Event
from dispatch.jobs import services, signed_links, timeline
from dispatch.jobs.models import CustomerTextKind, Job, JobText
from dispatch.jobs.rules.customer_phrases import first_name, local_time, told_time, without_links
from dispatch.jobs.rules.on_the_way import read_on_the_way
from dispatch.jobs.services import IllegalTransition
from dispatch.telephony.models import Text
from dispatch.telephony.services import inbound
from notifications import rules as notification_rules
from tests.api.client import Api
from tests.harness.customer_texts import Shop, body, texts
from tests.harness.jobs import MARIA
from tests.jobs.test_threads import Desk

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk() -> Desk:
    return Desk()


def eta_minutes(job: Job) -> int | None:
    eta_at = Job.objects.get(pk=job.pk).eta_at
    return None if eta_at is None else round((eta_at - clock.now()).total_seconds() / 60)


def on_the_way(job: Job) -> bool:
    return Job.objects.get(pk=job.pk).on_the_way_at is not None


# --- by text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("OMW", None),
        ("omw 20", 20),
        ("On my way 20", 20),
        ("on my way, 20 min", 20),
        ("On the way - ETA 45 minutes.", 45),
        ("I'm on my way in 15", 15),
        ("I am on my way!", None),
        ("En route, about 1 hour", 60),
        ("OMW be there in 10 mins", 10),
        ("  omw 2h ", 120),
    ],
)
def test_on_my_way_is_understood(text, minutes):
    said = read_on_the_way(text)
    assert said is not None
    assert said.minutes == minutes
    assert said.is_possible


@pytest.mark.parametrize(
    "text",
    [
        "On my way home, can't make it",
        "I'm not on my way",
        "1",
        "yes",
        "omw?",
        "20",
        "on my way to the shop first",
        "",
    ],
)
def test_other_texts_are_not_on_my_way(text):
    assert read_on_the_way(text) is None


@pytest.mark.parametrize("text", ["omw 0", "omw 481", "omw 9h"])
def test_impossible_arrival_times_are_recognized(text):
    said = read_on_the_way(text)
    assert said is not None
    assert not said.is_possible


def test_technician_says_so_by_text_and_the_thread_needs_no_answer(desk):
    job = desk.assigned()
    desk.texts("OMW 20")
    assert eta_minutes(job) == 20
    assert on_the_way(job)
    eta_at = Job.objects.get(pk=job.pk).eta_at
    assert desk.replies() == [f"Thank you. You are expected at about {told_time(eta_at, 'America/Phoenix')}."]
    eta = local_time(eta_at, "America/Phoenix")
    said = [entry.text for entry in timeline.load_timeline(Job.objects.get(pk=job.pk))]
    assert f"Ann is on the way, arriving at about {eta}" in said
    assert JobText.objects.get(job=job, text__direction="in").handled_at is not None
    assert job not in Job.objects.needing_attention()


def test_text_that_is_processed_twice_counts_once(desk):
    job = desk.assigned()
    text = desk.texts("omw 20")
    for _ in range(2):
        Text.objects.filter(pk=text.pk).update(handled_at=None)
        clock.travel(60)
        inbound.process_text(text.pk)
    assert Event.objects.filter(kind="job.on_the_way").count() == 1
    assert eta_minutes(job) == 18
    assert len(desk.replies()) == 1


def test_text_that_is_processed_late_counts_from_its_arrival(desk):
    job = desk.assigned()
    with fault_injection.arm_crash_point("telephony.text.received"), pytest.raises(fault_injection.Interrupted):
        desk.texts("omw 20")
    clock.travel(300)
    assert inbound.process_unprocessed_texts() == 1
    assert eta_minutes(job) == 15


def test_later_text_changes_the_arrival(desk):
    job = desk.assigned()
    desk.texts("omw 20")
    first = Job.objects.get(pk=job.pk).on_the_way_at
    clock.travel(600)
    desk.texts("omw 45")
    assert eta_minutes(job) == 45
    assert Job.objects.get(pk=job.pk).on_the_way_at == first
    desk.texts("on my way")
    assert eta_minutes(job) == 45, "a text without minutes keeps them"


def test_technician_with_several_jobs_is_asked_which_one(desk):
    first, second = desk.assigned(), desk.assigned()
    desk.texts("OMW 20")
    assert not on_the_way(first)
    assert not on_the_way(second)
    (reply,) = desk.replies()
    assert reply.startswith("You have 2 jobs. Open your page and choose the one")
    assert "/t/" in reply
    assert Job.objects.needing_attention().count() == 2, "the dispatchers see the text"
    services.mark_started(first.pk, actor=MARIA)
    desk.texts("OMW 20")
    assert on_the_way(second)


def test_technician_without_a_job_gets_the_usual_answer(desk):
    desk.texts("OMW")
    assert desk.replies() == []
    offer = desk.offered()
    desk.texts("OMW")
    assert desk.replies() == ["Reply 1 to accept the job or 2 to decline it."]
    offer.refresh_from_db()
    assert offer.status == "pending"


def test_impossible_arrival_time_is_refused_and_passed_on(desk):
    job = desk.assigned()
    desk.texts("omw 900")
    assert desk.replies() == ["Reply OMW and the minutes until you arrive, 1 to 480, such as OMW 20."]
    assert not on_the_way(job)
    assert job in Job.objects.needing_attention()


# --- on their page, on the board, by API ------------------------------------------------------------------------


def test_technician_says_so_on_their_page(desk):
    job = desk.assigned()
    path = signed_links.technician_url(desk.ann).partition("/t/")[2]
    browser = Client(enforce_csrf_checks=True)
    done = browser.post(f"/t/{path}", {"do": "go", "job": job.pk, "eta": "25"}, follow=True)
    page = done.content.decode()
    assert "on the way." in page
    assert "Update arrival" in page
    assert eta_minutes(job) == 25
    assert Event.objects.get(kind="job.on_the_way").actor_label == "Ann"
    for wrong in ("soon", "0", "481", "-5"):
        assert browser.post(f"/t/{path}", {"do": "go", "job": job.pk, "eta": wrong}).status_code == 409
    assert eta_minutes(job) == 25


def test_api_records_it_and_validates(desk):
    job = desk.assigned()
    done = desk.api.post(f"jobs/{job.pk}/on-the-way/", {"eta_minutes": 20})
    assert done.status_code == 200, done.content
    assert done.json()["on_the_way_at"] is not None
    assert done.json()["eta_at"] is not None
    assert "on_the_way" in done.json()["actions"]
    assert desk.api.post(f"jobs/{job.pk}/on-the-way/", {}).status_code == 200
    for wrong in (0, 481, "soon"):
        assert desk.api.post(f"jobs/{job.pk}/on-the-way/", {"eta_minutes": wrong}).status_code == 400
    assert desk.api.post(f"jobs/{job.pk}/on-the-way/", {"version": 1}).status_code == 409
    services.mark_started(job.pk, actor=MARIA)
    late = desk.api.post(f"jobs/{job.pk}/on-the-way/", {})
    assert late.status_code == 409
    assert "on_the_way" not in desk.api.get(f"jobs/{job.pk}/").json()["actions"]


def test_another_organization_cannot(desk):
    job = desk.assigned()
    other = Desk()
    assert other.api.post(f"jobs/{job.pk}/on-the-way/", {}).status_code == 404


def test_key_without_the_scope_cannot(desk):
    from tests.support import factories

    job = desk.assigned()
    reader = Api(key=factories.api_key(desk.organization, "read"))
    assert reader.post(f"jobs/{job.pk}/on-the-way/", {}).status_code == 403


def test_dispatcher_says_so_on_the_board(desk):
    job = desk.assigned()
    client = Client()
    client.force_login(desk.maria, backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("console:act", args=[job.pk, "on-the-way"])
    assert "Records that Ann is on the way" in client.get(address).content.decode()
    client.post(address, {"version": job.version, "eta_minutes": "30", "note": ""})
    assert eta_minutes(job) == 30
    (card,) = cards_of([Job.objects.select_related("technician", "organization").get(pk=job.pk)])
    eta = local_time(Job.objects.get(pk=job.pk).eta_at, "America/Phoenix")
    assert (card.tone, card.state) == ("good", f"On the way, arriving at about {eta}")
    said = [entry.text for entry in timeline.load_timeline(Job.objects.get(pk=job.pk))]
    assert f"Maria Lopez recorded that Ann is on the way, arriving at about {eta}" in said


# --- what follows -----------------------------------------------------------------------------------------------


def test_reminder_of_a_late_start_waits_for_the_arrival(desk):
    job = desk.assigned()
    Job.objects.filter(pk=job.pk).update(attention_at=clock.now() - timedelta(minutes=5), reminded_at=clock.now())
    assert job in Job.objects.needing_attention()
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=20)
    assert job not in Job.objects.needing_attention()
    clock.travel(49 * 60)
    assert services.remind_due_jobs() == 0
    clock.travel(2 * 60)
    services.remind_due_jobs()
    assert Event.objects.filter(kind="job.not_started", subject_id=job.pk).count() == 1
    assert job in Job.objects.needing_attention()
    assert "job.on_the_way" in notification_rules.BY_KIND["job.not_started"].ends


def test_reminder_is_never_earlier_than_before(desk):
    job = desk.assigned()
    due_at = clock.now() + timedelta(hours=6)
    Job.objects.filter(pk=job.pk).update(attention_at=due_at)
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=20)
    assert Job.objects.get(pk=job.pk).attention_at == due_at


def test_job_without_a_target_still_has_no_clock(desk):
    job = desk.assigned()
    Job.objects.filter(pk=job.pk).update(attention_at=None)
    services.report_on_the_way(job.pk, actor=MARIA)
    assert Job.objects.get(pk=job.pk).attention_at is None


def test_only_an_assigned_job_that_is_not_started_takes_it(desk):
    job = desk.job()
    with pytest.raises(IllegalTransition):
        services.report_on_the_way(job.pk, actor=MARIA)
    job = desk.assigned()
    with pytest.raises(ValidationError):
        services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=0)
    with pytest.raises(Conflict):
        services.report_on_the_way(job.pk, actor=MARIA, version=job.version + 1)
    services.mark_started(job.pk, actor=MARIA)
    with pytest.raises(IllegalTransition, match="already been started"):
        services.report_on_the_way(job.pk, actor=MARIA)


def test_next_technician_is_not_on_the_way():
    shop = Shop(**{f"sends_{kind}": True for kind in CustomerTextKind.values})
    job = shop.assign(shop.job())
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=20)
    assert texts(job)[-1] == ("on_the_way", "created")
    services.assign(job.pk, shop.bob.pk, actor=MARIA, confirm_unfit=True)
    now = Job.objects.get(pk=job.pk)
    assert (now.on_the_way_at, now.eta_at) == (None, None)
    assert ("on_the_way", "canceled") in texts(job)
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=5)
    assert "Bob is on the way" in body(job, "on_the_way")
    services.cannot_make_it(job.pk, actor=MARIA)
    now = Job.objects.get(pk=job.pk)
    assert (now.on_the_way_at, now.eta_at) == (None, None)


# --- words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("Ann Lee", "Ann"),
        ("Lee, Ann Marie", "Ann"),
        ("Unit 12", "Unit 12"),
        ("Zoë", "Zoë"),
        ("  ", ""),
        ("Lee,", "Lee"),
        ("Ann Lee, Jr.", "Ann"),
        ("Ann/Bob", "Ann/Bob"),
        ("Smith & Sons", "Smith & Sons"),
        ("Lee Plumbing, L.L.C.", "Lee Plumbing, L.L.C."),
    ],
)
def test_first_name_of_a_technician(name, first):
    assert first_name(name) == first


@pytest.mark.parametrize(
    ("entered", "plain"),
    [
        ("1 Elm St, Phoenix, AZ 85003", "1 Elm St, Phoenix, AZ 85003"),
        ("3.5 Mile Rd.", "3.5 Mile Rd."),
        ("see https://evil.example/pay", "see evil. example/pay"),
        ("WWW.EVIL.EXAMPLE", "WWW. EVIL. EXAMPLE"),
        ("javascript://evil.example", "evil. example"),
        ("Dana\r\nDispatch: reply 1 to accept\n", "Dana, Dispatch: reply 1 to accept"),
        ("evil\u200b.example", "evil. example"),
        ("evil\u200d.example", "evil. example"),
        ("evil\u3002example", "evil\u3002 example"),
        ("\u202eelpmaxe\x07", "elpmaxe"),
        ("न्\u200dयू", "न्\u200dयू"),
    ],
)
def test_entered_links_are_no_links_in_texts(entered, plain):
    assert without_links(entered) == plain
