"""What stopped moving is moved on, from Postgres alone; nothing that fails stops the rest."""

from __future__ import annotations

import psycopg
import pytest
from django.db import OperationalError, connection

from dispatch.core import clock, fault_injection
from dispatch.core.fault_injection import Interrupted
from dispatch.core.runtime.loops import find_loop
from dispatch.jobs import geocoding, services
from dispatch.jobs.models import Job, Submission
from dispatch.jobs.services import auditor
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.conftest import forget_redis
from tests.phones import answer, busy
from tests.support.waiting import PATIENCE


def dies(point: str, action) -> None:
    """The process that runs `action` is cut off at `point`; it must come by there."""
    with fault_injection.arm_crash_point(point), pytest.raises(Interrupted):
        action()
    connection.close()


def heal(floor, seconds: float = 31.0) -> None:
    """Lose the queues, let `seconds` pass and let the auditor repair."""
    forget_redis()
    floor.later(seconds)
    floor.audit()
    floor.audit()


STARTS = ["jobs.start.claimed", "jobs.start.committed", "jobs.offer.committed", "jobs.offer.placed"]


@pytest.mark.parametrize("point", [*STARTS, "telephony.place.claimed", "telephony.place.sent"])
def test_start_that_crashes_anywhere_is_resumed(floor, point):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="1"))
    floor.phone(bob).will(answer(press="1"))
    submission = floor.submit()
    dies(point, lambda: services.start_job(submission.pk))
    heal(floor)
    if point == "telephony.place.claimed":  # whether it was asked is unknown; the deadline decides
        heal(floor, 301)
    floor.until(lambda: floor.status(submission) == "assigned")
    assert Job.objects.count() == 1
    assert floor.calls_made(ann) <= 1
    assert floor.calls_made(bob) <= 1
    assert floor.kinds(floor.job(submission)).count("job.assigned") == 1


def test_crashed_start_is_resumed_within_30_s(floor, settings):
    floor.crew("Ann")
    submission = floor.submit()
    dies("jobs.start.claimed", lambda: services.start_job(submission.pk))
    forget_redis()
    floor.later(30 - settings.AUDITOR_INTERVAL_S)
    services.audit()
    assert floor.status(submission) == "dispatching"


@pytest.mark.parametrize("point", ["jobs.expire.committed", "jobs.offer.committed", "jobs.offer.placed"])
def test_expiry_that_crashes_anywhere_is_resumed(floor, point):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.rings(ann)
    floor.until(lambda: Call.objects.filter(status="ringing").exists())
    floor.later(301)
    token = floor.job(job).step_token
    dies(point, lambda: services.expire_offer(job.pk, token))
    heal(floor)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "accepted")]
    assert (floor.calls_made(ann), floor.calls_made(bob)) == (1, 1)


def test_a_process_that_dies_after_a_key_has_counted_it(floor):
    ann, _ = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call = floor.live_offer(job), Call.objects.get()
    dies("jobs.answer.committed", lambda: services.answer_offer(offer.pk, call.pk, "1"))
    assert (floor.status(job), floor.job(job).technician) == ("assigned", ann)
    assert services.answer_offer(offer.pk, call.pk, "1") == "accepted"


def test_decline_whose_task_is_lost_is_resumed(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call = floor.live_offer(job), Call.objects.get()
    dies("jobs.answer.committed", lambda: services.answer_offer(offer.pk, call.pk, "2"))
    heal(floor, 5)
    floor.rings(bob)
    assert floor.calls_made(ann) == 1


@pytest.fixture
def without_redis(settings, monkeypatch):
    """Redis cannot be reached."""
    from dispatch.core.redis import client as core_redis
    from dispatch.core.redis.client import client

    monkeypatch.setattr(settings, "REDIS_URL", "redis://127.0.0.1:1/0")
    client.cache_clear()
    core_redis.client.cache_clear()
    yield
    monkeypatch.undo()
    client.cache_clear()


def test_with_redis_gone_from_beginning_to_end_the_job_finds_its_technician(floor, without_redis):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(busy())
    floor.phone(bob).will(answer(press="1"))
    submission = floor.submit()
    floor.sim.until(
        lambda: floor.status(submission) == "assigned" or (audit_soon(floor), False)[1], PATIENCE, floor.story
    )
    assert floor.offers(floor.job(submission)) == [("Ann", "busy"), ("Bob", "accepted")]


def audit_soon(floor) -> None:
    clock.travel(11)
    floor.audit()


def test_a_flushed_redis_loses_no_step(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(bob).will(answer(press="1"))
    submission = floor.submit()
    heal(floor)
    floor.rings(ann)
    heal(floor, 301)
    floor.until(lambda: floor.status(submission) == "assigned")
    assert (floor.calls_made(ann), floor.calls_made(bob)) == (1, 1)


def test_after_three_failed_starts_a_dispatcher_gets_the_job(floor, monkeypatch):
    def broken(**_):
        raise RuntimeError("the geocoder explodes")

    monkeypatch.setattr(geocoding, "geocode", broken)
    submission = floor.submit()
    floor.work()
    for _ in range(2):
        assert not Job.objects.exists()
        floor.later(31)
        services.audit()
    job = floor.job(submission)
    assert (job.status, job.pending_reason, job.customer_name) == (
        "pending",
        "processing_failed",
        "Dana Whitfield",
    )
    submission.refresh_from_db()
    assert (submission.status, submission.starts) == ("processed", 3)
    assert "the geocoder explodes" in submission.last_error
    assert "job.pending" in floor.kinds(job)


def test_starts_while_the_database_is_full_are_not_counted(floor, monkeypatch):
    def full(**_):
        error = OperationalError("no space left on device")
        error.__cause__ = psycopg.errors.DiskFull()
        raise error

    floor.crew("Ann")
    submission = floor.submit()
    with monkeypatch.context() as patch:
        patch.setattr(geocoding, "geocode", full)
        floor.work()
        for _ in range(4):
            floor.later(31)
            services.audit()
        assert not Job.objects.exists()
    floor.later(31)
    services.audit()
    assert floor.status(submission) == "dispatching"


def test_three_crashed_starts_hand_the_job_to_a_dispatcher(floor):
    submission = floor.submit()
    forget_redis()
    for _ in range(3):
        floor.later(31)
        dies("jobs.start.claimed", services.audit)
    floor.later(31)
    services.audit()
    assert floor.job(submission).pending_reason == "processing_failed"


def test_one_poisoned_submission_does_not_stop_the_others(floor, monkeypatch):
    floor.crew("Ann")
    bad, good = floor.submit(notes="poison"), floor.submit()
    forget_redis()
    real = services.submissions._make_job

    def poisoned(submission, where, **options):
        if submission.notes == "poison":
            raise RuntimeError("poison")
        return real(submission, where, **options)

    monkeypatch.setattr(services.submissions, "_make_job", poisoned)
    floor.later(15)
    services.audit()
    assert floor.status(good) == "dispatching"
    assert Submission.objects.get(pk=bad.pk).last_error == "RuntimeError: poison"


def test_repeatedly_failing_step_is_postponed_then_handed_to_dispatcher(floor, monkeypatch):
    floor.crew("Ann", "Bob")
    floor.set_policy(answer_timeout_s=700, ring_timeout_s=600)
    job = floor.started()
    other = floor.started()
    floor.later(710)
    forget_redis()
    real = auditor.expire_offer

    def broken(pk, token, **kwargs):
        if pk == job.pk:
            raise RuntimeError("this one always fails")
        real(pk, token, **kwargs)

    monkeypatch.setattr(auditor, "expire_offer", broken)
    for _ in range(3):
        services.audit()
        floor.later(30)
        forget_redis()
    assert floor.job(job).pending_reason == "processing_failed"
    assert floor.offers(other)[0][1] != "pending"


def test_step_that_kills_the_process_is_handed_to_dispatcher(floor, monkeypatch):
    floor.crew("Ann", "Bob")
    floor.set_policy(answer_timeout_s=700, ring_timeout_s=600)
    job = floor.started()
    other = floor.started()
    floor.later(710)
    forget_redis()
    real = auditor.expire_offer

    def deadly(pk, token, **kwargs):
        if pk == job.pk:
            raise Interrupted
        real(pk, token, **kwargs)

    monkeypatch.setattr(auditor, "expire_offer", deadly)
    for _ in range(3):
        assert floor.job(job).pending_reason == ""
        with pytest.raises(Interrupted):
            services.audit()
    services.audit()
    assert floor.job(job).pending_reason == "processing_failed"
    assert floor.offers(other)[0][1] != "pending"


def test_successful_step_resets_the_failure_count(floor):
    """Else jobs that are looked at again and again would end with a dispatcher."""
    ann, _bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    Job.objects.update(next_action_at=clock.now(), failed_steps=2)  # looked at too early
    floor.later(5)
    services.audit()
    assert (floor.job(job).failed_steps, floor.offers(job)) == (0, [("Ann", "pending")])
    floor.later(301)
    services.audit()
    assert (floor.job(job).failed_steps, floor.offers(job)[0]) == (0, ("Ann", "timed_out"))


def test_offer_with_an_unreported_call_end_is_resolved(floor, monkeypatch):
    ann, _bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    Call.objects.update(status="busy", ended_at="2026-01-01T00:00Z")
    services.audit()
    assert floor.offers(job)[0] == ("Ann", "busy")
    floor.sim.calls_to(str(ann.phone))[0].decline()


def test_drifted_counts_of_technicians_are_repaired(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    second = floor.started()
    Technician.objects.filter(pk=ann.pk).update(open_jobs=4, live_offer_id=9999)
    Technician.objects.filter(pk=bob.pk).update(live_offer_id=None, open_jobs=2)
    assert services.repair_technicians() == 2
    ann.refresh_from_db()
    bob.refresh_from_db()
    assert (ann.open_jobs, ann.live_offer_id) == (1, None)
    assert (bob.open_jobs, bob.live_offer_id) == (0, floor.live_offer(second).pk)
    assert services.repair_technicians() == 0


def test_the_loops_are_found_by_name(floor):
    assert find_loop("jobs_auditor").step() is None
    find_loop("jobs_waiting").step()
    find_loop("jobs_technician_repair").step()
