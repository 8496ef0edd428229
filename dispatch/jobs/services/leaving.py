"""Take the jobs and offers of a technician who is deactivated to others."""

from __future__ import annotations

from contextlib import suppress

from django.db import transaction

from dispatch.core.events import Actor
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import Outcome
from dispatch.jobs.services import transitions
from dispatch.jobs.services.actions import IllegalTransition, cannot_make_it, rescind_offer


def give_back_all(technician_id: int, actor: Actor) -> None:
    """Give back all open jobs of a technician who leaves, each in a separate transaction."""
    open_jobs = Job.objects.filter(technician_id=technician_id, status=Job.Status.ASSIGNED).order_by("pk")
    for job_id in open_jobs.values_list("pk", flat=True):
        with suppress(IllegalTransition):  # completed or reassigned meanwhile
            cannot_make_it(
                job_id, actor=actor, note="The technician was deactivated.", technician_id=technician_id
            )


def withdraw_offers(technician_id: int, actor: Actor) -> None:
    """Withdraw the live offer of a technician who was deactivated, and call the next technician."""
    live = Offer.objects.filter(technician_id=technician_id, status=Offer.Status.PENDING)
    for job_id in live.values_list("job_id", flat=True):
        with transaction.atomic():
            job = transitions.lock_job(job_id)
            offer = transitions.live_offer(job)
            if offer is None or offer.technician_id != technician_id:
                continue
            rescind_offer(offer, Outcome.SKIPPED, "the technician was deactivated", actor)
            job.line_wait_until = None
            transitions.advance_job(job)
            transitions.save_job(job)
