"""Release the offers and jobs of technicians and organizations that were deactivated.

A pending offer is withdrawn: its call is hung up, and the cascade moves on. A key that was recorded before
counts.
"""

from __future__ import annotations

from contextlib import suppress

from django.db import transaction
from django.db.models import Q, QuerySet

from accounts.models import Organization
from dispatch.core.db import lock_waits
from dispatch.core.db.isolation import run_unlocked
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.events import SYSTEM, Actor
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import Outcome
from dispatch.jobs.services import slots, transitions
from dispatch.jobs.services.actions import IllegalTransition, apply_recorded_keys, cannot_make_it
from dispatch.jobs.services.answers import apply_answers_before_closing, apply_recorded_key
from dispatch.technicians.models import Technician

BATCH = 100
_failed_offers = RecentlyBlocked(5.0)


def lock_jobs(technician_id: int) -> None:
    """Lock the open and offered jobs of a technician who leaves until the end of the transaction, in id order."""
    open_jobs = _open_jobs(technician_id).values_list("pk", flat=True)
    ids = {*open_jobs, *_live_offers(technician_id).values_list("job_id", flat=True)}
    list(Job.objects.filter(pk__in=ids).order_by("pk").select_for_update(no_key=True).values_list("pk"))


def apply_answers(technician_id: int) -> None:
    """Apply the recorded keys of a technician who is about to leave, so that a job they have taken is known."""
    for job_id in _live_offers(technician_id).values_list("job_id", flat=True):
        apply_recorded_keys(job_id)


def give_back_all(technician_id: int, actor: Actor) -> None:
    """Give back all open jobs of a technician who leaves. The jobs must be locked (`lock_jobs`).

    Giving back the first one locks the technician, whom others lock after a job. Other technicians are ranked by
    the roads that are known: the server is not asked within a transaction.
    """
    for job_id in _open_jobs(technician_id).values_list("pk", flat=True):
        with suppress(IllegalTransition):  # completed or reassigned meanwhile
            cannot_make_it(
                job_id, actor=actor, note="The technician was deactivated.", technician_id=technician_id
            )


def withdraw_offers(technician_id: int, actor: Actor) -> None:
    """Withdraw the pending offer of a technician who has just been deactivated. Call it after the commit."""
    for offer_id in _live_offers(technician_id).values_list("pk", flat=True):
        _withdraw_offer(offer_id, actor)


def find_inactive_offers() -> QuerySet[Offer]:
    """Select the pending offers, few at any time, whose technician or organization is inactive."""
    inactive = Q(technician__is_active=False) | Q(organization__is_active=False)
    offers: QuerySet[Offer] = Offer.objects.filter(inactive, status=Offer.Status.PENDING)
    return offers.order_by("pk")


def withdraw_inactive_offers() -> int:
    """Withdraw the pending offers of inactive technicians and organizations. Return how many.

    The loop of waiting jobs runs this every second, because an organization is deactivated without an Event, and
    because a process may die after it has deactivated a technician.
    """
    pending = find_inactive_offers()
    with lock_waits.limit_lock_waits(lock_waits.LOOP_S):
        return run_unlocked(
            lambda pk: _withdraw_offer(pk, SYSTEM), pending, BATCH, event="offer_not_withdrawn",
            skipped=_failed_offers,
        )  # fmt: skip


def _open_jobs(technician_id: int) -> QuerySet[Job]:
    open_jobs: QuerySet[Job] = Job.objects.filter(technician_id=technician_id, status=Job.Status.ASSIGNED)
    return open_jobs.order_by("pk")


def _live_offers(technician_id: int) -> QuerySet[Offer]:
    offers: QuerySet[Offer] = Offer.objects.filter(technician_id=technician_id, status=Offer.Status.PENDING)
    return offers.order_by("pk")


def _withdraw_offer(offer_id: int, actor: Actor) -> int:
    """Withdraw the offer if it is pending and its technician or organization is inactive. Return 1 if it was."""
    job_id = Offer.objects.values_list("job_id", flat=True).get(pk=offer_id)
    apply_answers_before_closing(job_id)
    return _close_left_offer(job_id, offer_id, actor)


@transaction.atomic
def _close_left_offer(job_id: int, offer_id: int, actor: Actor) -> int:
    job = transitions.lock_job(job_id)
    offer = transitions.lock_live_offer(job, offer_id)
    if offer is None or not (reason := _reason(offer)):
        return 0
    if apply_recorded_key(job, offer):
        return 1
    transitions.close_offer(offer, Offer.Status.RESCINDED, Outcome.DEACTIVATED, reason, actor=actor, hang_up=True)
    if job.status == Job.Status.DISPATCHING and job.paused_at is None:
        job.line_wait_until = None
        slots.advance(job, offer)
        transitions.save_job(job)
    return 1


def _reason(offer: Offer) -> str:
    """Return why the offer is withdrawn, or an empty string if technician and organization are active."""
    if not Technician.objects.filter(pk=offer.technician_id, is_active=True).exists():
        return f"{offer.technician.name} was deactivated"
    if not Organization.objects.filter(pk=offer.organization_id, is_active=True).exists():
        return "the organization was deactivated"
    return ""
