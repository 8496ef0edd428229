"""Handle a failed claim: determine whether one of its leads is the cause, and defer that lead."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from dispatch.core import clock, events
from dispatch.core.db.errors import is_conflict, sqlstate
from dispatch.core.models import Event
from dispatch.core.redis.client import REDIS_ERRORS
from dispatch.leads import counters, redis_queue
from dispatch.leads.models import Lead
from dispatch.leads.redis_queue import ClaimOutcome, Reservation
from dispatch.leads.rules.states import Outcome, Reason, Status

log = structlog.get_logger(__name__)

FAILED = "lead.claim_failed"
# Delay after a lead's first failure, which doubles with each further failure, and the number of failures that ends
# the lead.
DELAY = timedelta(minutes=10)
MAX_FAILURES = 6
# Delay for a lead that is locked by another session, which is not the lead's fault.
LOCKED = timedelta(seconds=10)
# SQLSTATE classes and codes of errors of the database or the schema, as opposed to a row.
_OUTAGES = ("08", "25", "42", "53", "57P", "58", "F0", "XX")


def is_outage(error: Exception) -> bool:
    """Return whether a claim failed because Redis or the database is unavailable: no lead is the cause."""
    if isinstance(error, (*REDIS_ERRORS, redis_queue.NotReady, InterfaceError)):
        return True
    if not isinstance(error, DatabaseError) or is_conflict(error):
        return False
    code = sqlstate(error)
    return code.startswith(_OUTAGES) if code else isinstance(error, OperationalError)


def defer(reservation: Reservation, error: Exception) -> ClaimOutcome:
    """Defer a lead whose claim fails even though it is claimed alone: longer each time.

    After MAX_FAILURES, it ends as failed. Call it outside any transaction. Raises nothing.
    """
    until = clock.now() + LOCKED
    if not is_conflict(error):
        log.error("lead_claim_failed", lead=reservation.lead_id, attempt=reservation.attempt, exc_info=error)
        counters.picked.labels("error").inc()
        try:
            retry_at = _record_failure(reservation, error)
        except Exception:
            log.exception("lead_claim_failure_not_written", lead=reservation.lead_id)
            until = clock.now() + DELAY
        else:
            if retry_at is None:
                return ClaimOutcome(reservation.batch, reservation.member, "gone")
            until = retry_at
    return ClaimOutcome(
        reservation.batch, reservation.member, "later", redis_queue.to_ms(until), reservation.member
    )


def _record_failure(reservation: Reservation, error: Exception) -> datetime | None:
    """Write the failure. Return when to retry the lead, or None if it ended or no longer exists."""
    now = clock.now()
    with transaction.atomic():
        waiting = Lead.objects.select_for_update(no_key=True, skip_locked=True)
        lead = waiting.filter(pk=reservation.lead_id, status=Status.BACKLOG, token=reservation.attempt - 1).first()
        if lead is None:
            return now + LOCKED if Lead.objects.filter(pk=reservation.lead_id).exists() else None
        failures = _failures_of(lead.pk) + 1
        details: dict[str, Any] = {
            "error": type(error).__name__,
            "attempt": reservation.attempt,
            "campaign_id": lead.campaign_id,
        }
        if failures >= MAX_FAILURES:
            lead.status, lead.outcome, lead.reason = Status.FINISHED, Outcome.FAILED, Reason.ERROR
            lead.finished_at = now
            lead.save(update_fields=["status", "outcome", "reason", "finished_at"])
            details |= {"outcome": Outcome.FAILED, "reason": Reason.ERROR}
            events.append(lead.organization_id, "lead.finished", lead.pk, **details)
            return None
        lead.wanted_at += max(now - lead.due_at, timedelta())  # as in `sql.DEFER`
        lead.due_at, lead.reason = now + DELAY * 2 ** (failures - 1), Reason.ERROR
        lead.save(update_fields=["due_at", "wanted_at", "reason"])
        events.append(
            lead.organization_id, FAILED, lead.pk, **details, failures=failures, due_at=lead.due_at.isoformat()
        )
        return lead.due_at


def _failures_of(lead_id: int) -> int:
    """Return the number of failed claims since the lead was last claimed successfully."""
    events_of_lead = Event.objects.filter(subject_type="lead", subject_id=lead_id)
    claimed = (
        events_of_lead.filter(kind="lead.processing").order_by("-id").values_list("id", flat=True).first() or 0
    )
    return events_of_lead.filter(kind=FAILED, id__gt=claimed).count()
