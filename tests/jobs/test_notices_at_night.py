"""Quiet hours defer no notice to a technician who is awake, and none after an alert; customers are not misled."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.jobs import services
from dispatch.jobs.models import CustomerText, CustomerTextPolicy, Job, Submission
from dispatch.jobs.public.status import describe_status
from dispatch.jobs.services import Correction
from dispatch.telephony.models import Text
from tests.harness.customer_texts import ALL
from tests.jobs.test_deferred_notices import (
    MORNING,
    NIGHT,
    advance_at,
    desk_with_quiet_hours,
    events_of,
    given_to_ann,
    news_calls,
    news_texts,
    notice,
)
from tests.jobs.test_quiet_hours import PHOENIX, at, travel_to
from tests.jobs.test_threads import MARIA, Desk
from tests.support import factories


@pytest.fixture
def desk(db) -> Desk:
    return desk_with_quiet_hours()


# --- technicians who are awake ----------------------------------------------------------------------------------


def accepted(job: Job) -> Job:
    """The technician to whom the job is offered accepts it."""
    offer = job.offers.get(status="pending")
    assert services.answer_offer(offer.pk, None, "1", by=services.AnswerChannel.LINK) == "accepted"
    return Job.objects.get(pk=job.pk)


def cancel(job: Job, desk: Desk) -> str:
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    return "your job was canceled"


def give_to_bob(job: Job, desk: Desk) -> str:
    bob = factories.technician(desk.organization, "Bob", max_open_jobs=5)
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    return "your job was given to another technician"


def move(job: Job, desk: Desk) -> str:
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone="+16025550199")
    return "your job has changed"


@pytest.mark.parametrize("change", [cancel, give_to_bob, move])
def test_technician_who_accepted_just_before_the_quiet_hours_is_notified_at_once(desk, change):
    travel_to(at(PHOENIX, 2027, 3, 2, 21, 55))
    job = accepted(desk.job())
    travel_to(at(PHOENIX, 2027, 3, 2, 22, 5))
    expected = change(job, desk)
    (body,) = news_texts()
    assert expected in body
    Text.objects.filter(purpose="job_news").update(status="undelivered", ended_at=clock.now())
    advance_at(2027, 3, 2, 22, 7)
    assert news_calls() == 1, "the call does not wait either"


def test_technician_who_accepted_long_before_the_quiet_hours_is_asleep(desk):
    travel_to(at(PHOENIX, 2027, 3, 2, 15))
    job = accepted(desk.job())
    travel_to(at(PHOENIX, *NIGHT))
    cancel(job, desk)
    assert (news_texts(), notice().deferred_until) == ([], at(PHOENIX, *MORNING))


def test_technician_who_was_called_despite_quiet_hours_is_notified_at_once(desk):
    travel_to(at(PHOENIX, 2027, 3, 2, 23))
    job = desk.job()
    services.call_next_now(job.pk, actor=MARIA)
    services.offer_next(job.pk, Job.objects.get(pk=job.pk).step_token, place=False)
    accepted(job)
    travel_to(at(PHOENIX, 2027, 3, 2, 23, 10))
    cancel(job, desk)
    (body,) = news_texts()
    assert "your job was canceled" in body


def called_now_and_assigned(desk: Desk) -> Job:
    """A job that a dispatcher lets call at 23:00, and gives to Ann at 23:20."""
    travel_to(at(PHOENIX, 2027, 3, 2, 23))
    job = desk.job()
    services.call_next_now(job.pk, actor=MARIA)
    travel_to(at(PHOENIX, 2027, 3, 2, 23, 20))
    services.assign(job.pk, desk.ann.pk, actor=MARIA, confirm_unfit=True)
    return Job.objects.get(pk=job.pk)


def test_assignment_by_hand_of_a_job_that_calls_at_any_hour_is_sent_at_once(desk):
    job = called_now_and_assigned(desk)
    assert "you have a new job" in Text.objects.get(purpose="job").body.lower()
    Text.objects.update(status="undelivered", ended_at=clock.now())
    advance_at(2027, 3, 2, 23, 22)
    assert news_calls() == 1, "the call does not wait either"
    assert not job.calls_at_any_hour


@pytest.mark.parametrize("change", [cancel, move])
@pytest.mark.parametrize("is_delivered", [True, False])
def test_technician_who_was_notified_in_these_quiet_hours_learns_of_changes_at_once(desk, change, is_delivered):
    job = called_now_and_assigned(desk)
    if is_delivered:
        desk.sent()
        advance_at(2027, 3, 2, 23, 22)
        assert notice().status == "reached"
    sent = Text.objects.count()
    travel_to(at(PHOENIX, 2027, 3, 2, 23, 23))
    change(job, desk)
    assert (notice().deferred_until, notice().text_id is not None) == (None, True)
    assert Text.objects.count() == sent + 1


# --- alerts -----------------------------------------------------------------------------------------------------


def test_change_after_an_alert_is_not_deferred(desk):
    job = given_to_ann(desk, when=(2027, 3, 3, 21, 50))
    move(job, desk)
    Text.objects.filter(purpose="job_news").update(status="undelivered", ended_at=clock.now())
    advance_at(2027, 3, 3, 21, 56)
    assert events_of(job)[-1] == "technician_unreached"
    travel_to(at(PHOENIX, 2027, 3, 3, 22, 5))
    cancel(job, desk)
    assert "your job was canceled" in news_texts()[-1]
    Text.objects.filter(purpose="job_news").update(status="undelivered", ended_at=clock.now())
    advance_at(2027, 3, 3, 22, 7)
    assert (notice().deferred_until, news_calls()) == (None, 1)
    advance_at(2027, 3, 3, 22, 11)
    assert events_of(job)[-1] == "technician_unreached", "dispatchers are alerted again"


# --- customers --------------------------------------------------------------------------------------------------


def told_customer() -> list[str]:
    rows = CustomerText.objects.filter(text_id__isnull=False).order_by("text_id")
    return list(rows.values_list("kind", flat=True))


@pytest.fixture
def night_job(desk) -> Job:
    """A job that was given to Ann at night. Its customer wants every text."""
    CustomerTextPolicy.objects.create(organization=desk.organization, **ALL)
    travel_to(at(PHOENIX, *NIGHT))
    return desk.assigned()


def shown_to_customer(job: Job) -> str:
    return describe_status(Submission.objects.get(job=job)).text


def test_customer_hears_who_is_coming_when_the_technician_does(desk, night_job):
    assert told_customer() == ["received"]
    assert shown_to_customer(night_job) == "You'll see here when they are on the way."
    advance_at(*MORNING)
    assert told_customer() == ["received", "assigned"]
    assert shown_to_customer(night_job).startswith("They have your address and phone number.")


def test_corrected_phone_hears_nothing_of_a_technician_who_does_not_know(desk, night_job):
    move(night_job, desk)
    assert told_customer() == ["received"]
    advance_at(*MORNING)
    assert told_customer() == ["received", "assigned"]


def test_customer_of_a_job_that_becomes_an_emergency_hears_who_is_coming(desk, night_job):
    there = Correction(address="1 Main St, Phoenix, AZ 85003", lat=33.45, lng=-112.07)
    services.correct(night_job.pk, actor=MARIA, correction=there, priority=1)
    assert notice().deferred_until is None
    assert told_customer() == ["received", "assigned"]


def test_customer_hears_who_is_coming_once_a_dispatcher_told_the_technician(desk, night_job):
    assert told_customer() == ["received"]
    services.mark_technician_told(night_job.pk, actor=MARIA)
    assert told_customer() == ["received", "assigned"]
    assert shown_to_customer(night_job).startswith("They have your address and phone number.")


@pytest.mark.parametrize(("sends_on_the_way", "expected"), [(True, "on_the_way"), (False, "assigned")])
def test_customer_of_a_technician_who_reports_at_night_is_informed(desk, night_job, sends_on_the_way, expected):
    CustomerTextPolicy.objects.update(sends_on_the_way=sends_on_the_way)
    services.report_on_the_way(night_job.pk, actor=MARIA)
    services.advance_due_notices()
    assert told_customer() == ["received", expected]
