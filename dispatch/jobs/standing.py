"""How an offer stands for its technician, whichever way they look at it."""

from __future__ import annotations

from dispatch.core import clock
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services.answers import Answer


def standing(offer: Offer) -> Answer | None:
    """None while it can be answered; else what became of it. `offer.job` as it is now."""
    job = offer.job
    if offer.status == Offer.Status.ACCEPTED and job.technician_id == offer.technician_id:
        return Answer.ACCEPTED
    if offer.status == Offer.Status.DECLINED:
        return Answer.DECLINED
    if job.technician_id not in (None, offer.technician_id):
        return Answer.TAKEN
    if offer.status == Offer.Status.PENDING:
        if job.status != Job.Status.DISPATCHING or job.paused_at:
            return Answer.NO_LONGER
        return None if clock.now() < offer.expires_at else Answer.EXPIRED
    return Answer.EXPIRED if offer.status in (Offer.Status.TIMED_OUT, Offer.Status.FAILED) else Answer.NO_LONGER
