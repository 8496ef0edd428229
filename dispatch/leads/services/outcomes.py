"""Record what people and voice agents report about a lead, during its call or afterwards."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import structlog
from django.db import IntegrityError, transaction

from dispatch.core import events
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.models import Event
from dispatch.leads import redis_queue
from dispatch.leads.models import Lead
from dispatch.leads.redis_queue import ScheduleEntry, to_ms
from dispatch.leads.rules.states import Reason
from dispatch.leads.services import follow_ups
from dispatch.leads.services.actions import LeadConflict

log = structlog.get_logger(__name__)


def report_outcome(
    lead_id: int,
    *,
    disposition: str | None = None,
    notes: str | None = None,
    call_back_at: datetime | None = None,
    actor: Actor,
) -> Lead:
    """Write the outcome. None leaves a field unchanged.

    `call_back_at`: a lead in a call is called again then, instead of ending; a waiting lead is moved to then; an
    ended lead is opened again. Such a call does not count the attempt before it. Raises LeadConflict and
    Lead.DoesNotExist.
    """
    try:
        with transaction.atomic():
            lead: Lead = (
                Lead.objects.select_for_update(no_key=True, of=("self",))
                .select_related("campaign")
                .get(pk=lead_id)
            )
            changes: dict[str, Any] = {"disposition": disposition, "notes": notes}
            changes = {name: value for name, value in changes.items() if value is not None}
            if call_back_at is not None:
                changes |= _call_back(lead, call_back_at, actor)
            is_news = disposition is not None and disposition != lead.disposition
            for name, value in changes.items():
                setattr(lead, name, value)
            lead.save(update_fields=list(changes))
            data = {"disposition": disposition, "call_back_at": call_back_at and call_back_at.isoformat()}
            events.append(
                lead.organization_id, "lead.outcome_reported", lead.pk, actor=actor, attempt=lead.token,
                campaign_id=lead.campaign_id, **{name: value for name, value in data.items() if value},
            )  # fmt: skip
            if is_news:
                follow_ups.send_follow_up(lead, disposition or "", actor=actor)
    except IntegrityError:
        raise LeadConflict(_("The campaign already has an open lead to this phone.")) from None
    return lead


def call_back_after_end(lead: Lead, at: datetime, actor: Actor) -> bool:
    """Have a locked lead called again as the person asked in its newest call, whose end was processed before.

    The result is the same as if it had been processed afterwards. Returns False if the lead stays as it is: it was
    canceled, ended for another reason than its call, is called back already, or another lead to the phone is open.
    """
    if lead.status == Lead.Status.FINISHED:
        is_ended_by_call = lead.reason in (Reason.CALLED, Reason.MOST_ATTEMPTS)
        if not is_ended_by_call or lead.cancel_requested_at is not None:
            return False
    if _is_called_back(lead):
        return False
    try:
        with transaction.atomic():
            changes = {"attempts": max(lead.attempts - 1, 0), **_call_back(lead, at, actor)}
            Lead.objects.filter(pk=lead.pk).update(**changes)
    except IntegrityError:
        log.warning("lead_call_back_refused", lead=lead.pk)
        return False
    return True


def _is_called_back(lead: Lead) -> bool:
    """Return whether a call back was reported in the lead's newest call or since."""
    reports = Event.objects.filter(
        organization_id=lead.organization_id, subject_type="lead", subject_id=lead.pk,
        kind="lead.outcome_reported", data__attempt=lead.token, data__has_key="call_back_at",
    )  # fmt: skip
    return reports.exists()


def _call_back(lead: Lead, at: datetime, actor: Actor) -> dict[str, Any]:
    """Return the changes that have a locked lead called again, and schedule it after the commit."""
    if lead.status == Lead.Status.PROCESSING:
        return {"call_back_at": at}
    changes: dict[str, Any] = {"due_at": at, "wanted_at": at, "reason": Reason.CALL_BACK}
    if lead.status == Lead.Status.FINISHED:
        changes |= {
            "status": Lead.Status.BACKLOG, "outcome": "", "finished_at": None, "claimed_at": None, "worker": "",
            "attempts": max(lead.attempts - 1, 0), "cancel_requested_at": None, "call_back_at": None,
        }  # fmt: skip
        events.append(lead.organization_id, "lead.reopened", lead.pk, actor=actor, campaign_id=lead.campaign_id)
    entry = ScheduleEntry(lead.campaign.pool_id, lead.pk, lead.token + 1, to_ms(at))
    transaction.on_commit(partial(_reschedule, entry), robust=True)
    return changes


def _reschedule(entry: ScheduleEntry) -> None:
    redis_queue.dequeue([entry.member])  # it may be ready already
    redis_queue.enqueue([entry])
