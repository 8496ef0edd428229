"""A session that holds rows stops nothing but the work on these very rows."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.jobs import services, tasks
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import auditor
from dispatch.technicians.models import Technician
from dispatch.telephony.loops import place_due
from dispatch.telephony.models import Call
from tests.api.client import Api
from tests.conftest import forget_redis
from tests.harness.jobs import Floor
from tests.support import factories
from tests.support.row_locks import ends_while_held


@pytest.fixture
def other(floor: Floor) -> Floor:
    """Another organization, at work beside the first."""
    return Floor(floor.sim)


def rung_out(*floors: Floor) -> list[Job]:
    """A job of each, whose offer's time is up; the queues are lost."""
    jobs = []
    for one in floors:
        one.set_policy(answer_timeout_s=700, ring_timeout_s=600)
        first, _second = one.crew("Ann", "Bob")
        jobs.append(one.started())
        one.rings(first)
    clock.travel(710)
    forget_redis()
    return jobs


def test_a_held_job_does_not_stop_the_audit_for_others(floor, other):
    held_job, job = rung_out(floor, other)
    ends_while_held([held_job], services.audit)
    assert other.offers(job)[0] == ("Ann", "timed_out")
    assert floor.offers(held_job) == [("Ann", "pending")]
    services.audit()
    assert floor.offers(held_job)[0] == ("Ann", "timed_out")
    assert floor.job(held_job).failed_steps == 0


def test_a_held_offer_s_technician_does_not_stop_the_audit_for_others(floor, other):
    held_job, job = rung_out(floor, other)
    ann = floor.live_offer(held_job).technician
    for _ in range(5):  # a row that another holds is no failure of the job
        ends_while_held([ann], services.audit)
        clock.travel(20)
        forget_redis()
    assert other.offers(job)[0] == ("Ann", "timed_out")
    assert floor.job(held_job).pending_reason == ""
    services.audit()
    assert floor.offers(held_job)[0] == ("Ann", "timed_out")


def test_held_technicians_do_not_stop_the_start_of_jobs(floor, other):
    crew = floor.crew(*(f"Unit {number}" for number in range(12)))
    other.crew("Ann")
    submissions = [floor.submit(), other.submit()]
    forget_redis()
    clock.travel(15)
    ends_while_held(crew[:10], services.audit)
    mine, theirs = (one.job(of) for one, of in zip([floor, other], submissions, strict=True))
    assert other.offers(theirs) == [("Ann", "pending")]
    assert floor.offers(mine) == [("Unit 10", "pending")]


def test_a_start_that_meets_only_held_technicians_waits_for_them(floor):
    crew = floor.crew("Ann", "Bob")
    submission = floor.submit()
    forget_redis()
    for _ in range(5):
        clock.travel(31)
        ends_while_held(crew, services.audit)
    job = floor.job(submission)
    assert (job.status, job.failed_steps, floor.offers(job)) == ("dispatching", 0, [])
    clock.travel(31)
    services.audit()
    assert floor.offers(job) == [("Ann", "pending")]


def test_a_worker_does_not_wait_for_a_held_row(floor, other):
    held_job, _job = rung_out(floor, other)
    token = floor.job(held_job).step_token
    ends_while_held([held_job], lambda: tasks.offer_timed_out(held_job.pk, str(token), []), within=15)
    assert floor.offers(held_job) == [("Ann", "pending")]


def test_a_held_technician_is_passed_over_while_held(floor):
    floor.set_policy(answer_timeout_s=700, ring_timeout_s=600)
    ann, bob, _cid = floor.crew("Ann", "Bob", "Cid")
    job = floor.started()
    floor.rings(ann)
    clock.travel(710)
    forget_redis()
    ends_while_held([bob], services.audit)
    assert floor.offers(job) == [("Ann", "timed_out"), ("Cid", "pending")]


def test_a_held_waiting_job_does_not_stop_those_that_wait(floor, other):
    waiting = []
    for one in (floor, other):
        (ann,) = one.crew("Ann")
        one.started()
        waiting.append(one.started())  # its only technician is on the first one's offer
        Offer.objects.filter(technician=ann, status="pending").update(status="timed_out", settled_at=clock.now())
        Technician.objects.filter(pk=ann.pk).update(live_offer_id=None)
    Call.objects.update(status="completed", ended_at=clock.now())
    held_job, job = waiting
    assert floor.job(held_job).waiting_for == other.job(job).waiting_for == "technician"
    clock.travel(4)
    ends_while_held([held_job], services.move_on_waiting)
    assert other.offers(job) == [("Ann", "pending")]
    assert floor.offers(held_job) == []


def test_held_calls_do_not_stop_the_placer_for_others(floor, other):
    for one in (floor, other):
        one.crew("Ann")
        services.start_job(one.submit().pk, place=False)
    clock.travel(2)
    first, second = Call.objects.order_by("pk")
    ends_while_held([first], place_due)
    assert Call.objects.get(pk=first.pk).status == "created"
    assert Call.objects.get(pk=second.pk).status != "created"


def test_offers_that_stay_open_do_not_hide_an_ended_call(floor, monkeypatch):
    """More offers in their time after a missed call than one pass looks at, and an older call that ended."""
    monkeypatch.setattr(auditor, "BATCH", 2)
    floor.crew("Ann", "Bob", "Cid", "Dee")
    jobs = [floor.started() for _ in range(4)]
    for job in jobs:
        floor.rings(floor.live_offer(job).technician)
    ended = Call.objects.order_by("pk")
    ended.update(status="no_answer", ended_at=clock.now())
    older, *later = ended
    Offer.objects.filter(pk__in=[call.subject_id for call in later]).update(
        missed_at=clock.now(), outcome="no_answer"
    )
    assert services.audit() == 1
    assert Offer.objects.get(pk=older.subject_id).status == "failed"
    assert services.audit() == 0


def test_a_held_job_does_not_stop_the_correction_of_its_technician(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann)
    api = Api(user=factories.admin(floor.organization))
    answer = ends_while_held([job], lambda: api.patch(f"technicians/{ann.pk}/", {"name": "Anna"}))
    assert (answer.status_code, answer.json()["name"]) == (200, "Anna")
