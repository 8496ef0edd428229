"""Several offers at once: without lines, after a kill, with a refused number, and when a dispatcher acts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import IntegrityError, transaction

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, fault_injection
from dispatch.core.fault_injection import Interrupted
from dispatch.jobs import services
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.timeline import load_timeline
from dispatch.technicians.models import Technician
from tests.conftest import forget_redis
from tests.harness.jobs import MARIA, Floor
from tests.harness.several import call_at_once, emergency, offer_of, pending
from tests.phones import refused


@pytest.fixture
def several(floor: Floor) -> Floor:
    """A floor that calls three technicians at once for emergencies."""
    return call_at_once(floor)


# --- lines and the provider ----------------------------------------------------------------------------------
def test_slots_wait_for_a_line_while_others_ring(several):
    ann, bob, cid = several.crew("Ann", "Bob", "Cid")
    OutboundNumber.objects.update(max_channels=2)
    job = emergency(several)
    anns = several.rings(ann)
    several.rings(bob)
    assert pending(job) == [(0, "Ann"), (1, "Bob")]
    assert several.job(job).fill_at is not None
    clock.travel(400)  # longer than a job without a phone that rings may wait for a line
    several.tick()
    assert several.status(job) == "dispatching"
    anns.decline()
    several.until(lambda: several.tick() or ("Cid", "pending") in several.offers(job))
    several.rings(cid)


def test_a_first_call_comes_before_a_further_one(several):
    """Of two emergencies, the one for which nobody is called gets the next line."""
    ann, _bob, cid = several.crew("Ann", "Bob", "Cid")
    OutboundNumber.objects.update(max_channels=1)
    first = emergency(several)
    several.rings(ann)
    second = emergency(several)
    assert several.job(second).waiting_for == "line"
    OutboundNumber.objects.update(max_channels=2)
    clock.travel(2)
    several.tick()
    assert len(pending(first)) == len(pending(second)) == 1
    assert several.calls_made(cid) == 0


def test_a_refused_number_calls_the_next_technician_and_others_ring_on(several):
    ann, bob, cid = several.crew("Ann", "Bob", "Cid")
    several.set_policy(offers_at_once_for_emergencies=2)
    several.phone(bob).will(refused(21211))
    job = emergency(several)
    anns = several.rings(ann)
    several.rings(cid)
    assert several.offers(job) == [("Ann", "pending"), ("Bob", "bad_number"), ("Cid", "pending")]
    assert anns.status == "ringing"


@pytest.mark.parametrize("kind", ["error_500", "timeout_before"])
def test_the_winner_has_the_job_although_the_provider_does_not_change_the_other_prompt(several, settings, kind):
    settings.PROVIDER_TIMEOUT_S = 1
    ann, bob = several.crew("Ann", "Bob")
    job = emergency(several)
    bobs = several.rings(bob).answer().hears("press 1 to accept")
    anns = several.rings(ann).answer().hears("press 1 to accept")
    several.sim.fault(kind, on="update", to=str(bob.phone), times=None, seconds=5)
    anns.press("1").hears("the job is yours")
    assert several.job(job).technician == ann
    bobs.press("1").hears("this job has already been taken").ended("completed")


# --- a process dies ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("nth", [1, 2])
def test_the_other_slots_are_filled_after_a_kill(several, nth):
    several.crew("Ann", "Bob", "Cid")
    submission = several.submit(priority=1)
    forget_redis()
    seen: list[int] = []

    def die() -> None:
        seen.append(1)
        if len(seen) == nth:
            raise Interrupted

    with fault_injection.arm_crash_point("jobs.offer.committed", die), pytest.raises(Interrupted):
        services.start_job(submission.pk)
    job = several.job(submission)
    assert len(pending(job)) == nth
    clock.travel(5)
    several.audit()
    assert pending(job) == [(0, "Ann"), (1, "Bob"), (2, "Cid")]
    for name in ("Ann", "Bob", "Cid"):
        several.rings(Technician.objects.get(name=name))


def test_offers_left_by_the_previous_version_are_withdrawn(several):
    """A process of the previous version withdraws one offer of a job that was offered to several."""
    ann, bob = several.crew("Ann", "Bob")
    job = emergency(several)
    bobs = several.rings(bob)
    winner = offer_of(job, ann)
    Offer.objects.filter(pk=winner.pk).update(status="accepted", outcome="accepted", settled_at=clock.now())
    Technician.objects.filter(pk=ann.pk).update(live_offer_id=None, open_jobs=1)
    Job.objects.filter(pk=job.pk).update(
        status="assigned", technician=ann, next_action_at=None, fill_at=None, waiting_for=""
    )
    services.audit()
    bobs.ended("canceled")
    assert several.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]


def test_offers_of_a_paused_job_left_by_the_previous_version_are_withdrawn(several):
    ann, bob = several.crew("Ann", "Bob")
    job = emergency(several)
    bobs = several.rings(bob)
    withdrawn = Offer.objects.filter(pk=offer_of(job, ann).pk)
    withdrawn.update(status="rescinded", outcome="paused", settled_at=clock.now())
    Technician.objects.filter(pk=ann.pk).update(live_offer_id=None)
    Job.objects.filter(pk=job.pk).update(paused_at=clock.now(), next_action_at=None, fill_at=None)
    services.audit()
    bobs.ended("canceled")
    assert several.offers(job) == [("Ann", "paused"), ("Bob", "paused")]


def test_a_slot_that_the_previous_version_did_not_fill_is_filled(several):
    ann, bob, cid = several.crew("Ann", "Bob", "Cid")
    several.set_policy(offers_at_once_for_emergencies=2)
    job = emergency(several)
    several.rings(bob)
    expired = Offer.objects.filter(pk=offer_of(job, ann).pk)
    expired.update(status="timed_out", outcome="timed_out", settled_at=clock.now())
    Technician.objects.filter(pk=ann.pk).update(live_offer_id=None)
    Job.objects.filter(pk=job.pk).update(waiting_for="start", next_action_at=clock.now())
    clock.travel(5)
    several.audit()
    several.rings(cid)
    assert pending(job) == [(0, "Cid"), (1, "Bob")]


# --- people --------------------------------------------------------------------------------------------------
def test_raising_a_job_to_an_emergency_calls_others_at_once(several):
    ann, bob, cid = several.crew("Ann", "Bob", "Cid")
    job = several.started()
    several.rings(ann)
    assert pending(job) == [(0, "Ann")]
    services.correct(job.pk, actor=MARIA, correction=services.Correction(), priority=1)
    several.rings(bob)
    several.rings(cid)
    assert pending(job) == [(0, "Ann"), (1, "Bob"), (2, "Cid")]
    (corrected,) = [entry for entry in load_timeline(several.job(job)) if entry.kind == "job.corrected"]
    assert corrected.did == "corrected the priority: emergency; 3 technicians are called at once"


def test_lowering_the_priority_leaves_who_rings_and_fills_one_slot(several):
    ann, bob, cid, dee = several.crew("Ann", "Bob", "Cid", "Dee")
    job = emergency(several)
    calls = [several.rings(one) for one in (ann, bob, cid)]
    services.correct(job.pk, actor=MARIA, correction=services.Correction(), priority=3)
    for call in calls[:2]:
        call.decline()
    several.until(lambda: len(pending(job)) == 1)
    several.work()
    assert pending(job) == [(2, "Cid")]
    calls[2].decline()
    several.rings(dee)
    assert pending(job) == [(0, "Dee")]


@pytest.mark.parametrize("action", ["pause", "cancel", "assign", "call_next"])
def test_actions_end_all_calls(several, action):
    crew = several.crew("Ann", "Bob", "Cid", "Dee", "Eve", "Fay")
    job = emergency(several)
    calls = [several.rings(one) for one in crew[:3]]
    perform: dict[str, Any] = {
        "pause": lambda: services.pause(job.pk, actor=MARIA),
        "cancel": lambda: services.cancel(job.pk, "by the customer", actor=MARIA),
        "assign": lambda: services.assign(job.pk, crew[5].pk, actor=MARIA),
        "call_next": lambda: services.call_next_now(job.pk, actor=MARIA),
    }
    perform[action]()
    for call in calls:
        call.ended("canceled")
    several.work()
    assert [name for _, name in pending(job)] == (["Dee", "Eve", "Fay"] if action == "call_next" else [])
    assert several.job(job).fill_at is None


def test_more_time_is_given_to_everybody_who_is_called(several):
    ann, bob = several.crew("Ann", "Bob")
    job = emergency(several)
    several.rings(ann)
    several.rings(bob)
    several.until(lambda: Offer.objects.filter(job=job, ringing_since=None).count() == 0)
    before = {offer.pk: offer.expires_at for offer in Offer.objects.filter(job=job)}
    services.extend(job.pk, 100, actor=MARIA)
    for offer in Offer.objects.filter(job=job):
        assert offer.expires_at == before[offer.pk] + timedelta(seconds=100)
    (extended,) = [entry for entry in load_timeline(several.job(job)) if entry.kind == "job.extended"]
    assert extended.did == "gave Ann and Bob 100 more seconds"


def test_a_technician_who_leaves_frees_only_their_slot(several):
    ann, bob, cid, _dee = several.crew("Ann", "Bob", "Cid", "Dee")
    job = emergency(several)
    calls = [several.rings(one) for one in (ann, bob, cid)]
    Technician.objects.filter(pk=bob.pk).update(is_active=False)
    assert services.withdraw_inactive_offers() == 1
    several.work()
    calls[1].ended("canceled")
    assert pending(job) == [(0, "Ann"), (1, "Dee"), (2, "Cid")]


# --- one at a time -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("at_once_", "priority"), [(1, 1), (None, 1), (3, 2), (3, 3)])
def test_other_jobs_are_offered_to_one_after_another(floor, at_once_, priority):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(offers_at_once_for_emergencies=at_once_)
    job = floor.started(priority=priority)
    anns = floor.rings(ann)
    assert pending(job) == [(0, "Ann")]
    assert floor.job(job).fill_at is None
    assert "at once" not in " ".join(entry.did for entry in load_timeline(floor.job(job)))
    anns.decline()
    floor.rings(bob)
    assert pending(job) == [(0, "Bob")]


def test_the_database_allows_one_pending_offer_in_a_slot(several):
    several.crew("Ann", "Bob")
    cid = several.technician("Cid", on_duty=False)
    job = emergency(several)
    row = {"organization": several.organization, "job": job, "technician": cid, "expires_at": clock.now()}
    with pytest.raises(IntegrityError, match="one_pending_offer_per_slot"), transaction.atomic():
        Offer.objects.create(attempt=9, **row)  # as the previous version writes it
    assert settings.DISPATCH_POLICY_DEFAULTS["offers_at_once_for_emergencies"] == 1
