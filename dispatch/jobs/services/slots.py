"""Keep the slots of a job: several technicians are offered an emergency at once, each with a separate deadline.

A job has one step token and one `next_action_at`, the earliest of all that it waits for. While somebody is being
called, `fill_at` says when to call another technician at once with them. A step in one slot keeps the token, so
that the timers of the other slots stay valid. A job with one slot has a new token after each step.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dispatch.core import clock
from dispatch.core.events import SYSTEM, Actor
from dispatch.jobs import policies, rules
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import Outcome, Slots
from dispatch.jobs.services import transitions
from dispatch.jobs.services.transitions import Waiting
from dispatch.jobs.sql import OfferRow
from dispatch.technicians import services as technicians


def offers_wanted(job: Job) -> int:
    """Return how many technicians are offered the job at once."""
    return rules.offers_wanted(policies.frozen_policy(job), job.priority)


def describe_at_once(job: Job, fit: int) -> dict[str, Any]:
    """Return how many of `fit` technicians are called at once, for the Event. Empty for one after another."""
    at_once = min(offers_wanted(job), fit)
    return {"at_once": at_once} if at_once > 1 else {}


def other_deadlines(job: Job, offer: Offer) -> list[datetime]:
    """Return the deadlines of the job's other pending offers."""
    if not _may_have_several(job):
        return []
    pending = job.offers.filter(status=Offer.Status.PENDING).exclude(pk=offer.pk)
    return list(pending.values_list("expires_at", flat=True))


def _may_have_several(job: Job) -> bool:
    """Return whether the job may have several pending offers: now, or since before its priority was changed."""
    return policies.frozen_policy(job).offers_at_once_for_emergencies > 1


def await_answer(job: Job, offer: Offer, *, new_token: bool = True) -> None:
    """Make the job wait for the offer's answer until its deadline, and for those of its other offers."""
    others = other_deadlines(job, offer)
    is_alone = not others and job.fill_at is None
    at = _earliest(offer.expires_at, *others, job.fill_at)
    transitions.wait_for(job, Waiting.ANSWER, at, new_token=new_token and is_alone)


def advance(job: Job, offer: Offer, at: datetime | None = None, *, enqueued: bool = True) -> None:
    """Call the next technician in the slot of a closed offer: now, or at `at`.

    `enqueued`: a worker runs a step that is due now; otherwise the caller invokes `offer_next`.
    """
    now = clock.now()
    if at is not None and _may_have_several(job):
        Offer.objects.filter(pk=offer.pk).update(holds_until=at)
    due = _earliest(at or now, job.fill_at)
    others = other_deadlines(job, offer)
    if others:
        job.fill_at, job.next_action_at = due, _earliest(due, *others)
        if due > now:
            transitions.set_timer(job, due)
        elif enqueued:
            transitions.enqueue_next_offer(job)
        return
    job.fill_at = None
    if due > now:
        transitions.wait_until(job, due)
    else:
        transitions.advance_job(job, enqueued=enqueued)


def call_more(job: Job) -> None:
    """Call further technicians at once with those who are being called, if the job may have more now."""
    if job.status != Job.Status.DISPATCHING or job.paused_at is not None:
        return
    pending = job.offers.filter(status=Offer.Status.PENDING).count()
    if job.waiting_for == Waiting.QUIET_HOURS:
        job.next_action_at = clock.now()  # an emergency does not wait for their end
    elif 0 < pending < offers_wanted(job):
        job.fill_at = job.next_action_at = clock.now()
    else:
        return
    transitions.enqueue_next_offer(job)


def wait_for_others(job: Job, pending: list[OfferRow], slots: Slots, poll_s: float | None = None) -> None:
    """End a step while others are being called.

    The next try is after `poll_s` seconds, or when a held slot becomes free; else when one of them is closed.
    """
    poll_at = transitions.seconds_from_now(poll_s) if poll_s is not None else None
    fill_at = _earliest(poll_at, slots.next_free_at) if poll_at or slots.next_free_at else None
    at = _earliest(fill_at, *(offer.expires_at for offer in pending))
    waiting_for = Waiting.ANSWER if job.waiting_for == Waiting.START else Waiting(job.waiting_for)
    if (job.fill_at, job.next_action_at, job.waiting_for) == (fill_at, at, waiting_for):
        return
    job.fill_at = fill_at
    transitions.wait_for(job, waiting_for, at, new_token=False)
    transitions.save_job(job, visible=False)
    if poll_at is None and fill_at is not None:
        transitions.set_timer(job, fill_at)


def release_holds(job: Job) -> None:
    """Let the next technician be called now in every slot that waits after an answer."""
    if _may_have_several(job):
        job.offers.filter(holds_until__isnull=False).update(holds_until=None)
    job.fill_at = None


def withdraw_offers(job: Job, outcome: Outcome, reason: str, actor: Actor) -> list[Offer]:
    """Withdraw the job's pending offers, hang up, and return them."""
    offers = transitions.live_offers(job)
    if len(offers) > 1:  # all technicians before the first call
        technicians.lock_technicians([offer.technician_id for offer in offers])
    for offer in offers:
        transitions.close_offer(offer, Offer.Status.RESCINDED, outcome, reason, actor=actor, hang_up=True)
    return offers


def withdraw_others(job: Job, winner: Offer, reason: str, actor: Actor = SYSTEM) -> list[int]:
    """Withdraw the pending offers of the technicians who did not get the job, and return the offers' ids.

    Their calls go on. A technician whose row is locked by another session does not hold back the winner: the loop
    that repairs technicians frees them.
    """
    others = [offer for offer in transitions.live_offers(job) if offer.pk != winner.pk]
    if not others:
        return []
    technicians.lock_technicians([winner.technician_id])
    free = technicians.lock_free([offer.technician_id for offer in others])
    for offer in others:
        transitions.close_offer(
            offer, Offer.Status.RESCINDED, Outcome.TAKEN, reason, actor=actor, hang_up=False,
            frees_technician=offer.technician_id in free,
        )  # fmt: skip
    return [offer.pk for offer in others]


def _earliest(*moments: datetime | None) -> datetime:
    """Return the earliest of the moments that are given."""
    return min(moment for moment in moments if moment is not None)
