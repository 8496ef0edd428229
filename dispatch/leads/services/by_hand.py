"""What persons and clients do to one lead."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import transaction

from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.problems import Conflict
from dispatch.leads import schedule
from dispatch.leads.models import Lead
from dispatch.leads.schedule import Entry, ms


class LeadConflict(Conflict):
    """409: the lead's status does not allow it; the answer says what it is."""

    default_code = "illegal_transition"


def cancel(lead_id: int, *, actor: Actor) -> Lead:
    """Ends a waiting lead; one that was cancelled before stays as it is.

    Raises LeadConflict when it is being called, or has ended otherwise; Lead.DoesNotExist."""
    with transaction.atomic():
        lead = _locked(lead_id)
        if lead.outcome == Lead.Outcome.CANCELLED:
            return lead
        if lead.status == Lead.Status.PROCESSING:
            raise LeadConflict("This lead is being called, so it cannot be cancelled any more.", **_state(lead))
        if lead.status == Lead.Status.FINISHED:
            outcome = lead.get_outcome_display().lower()
            raise LeadConflict(f"This lead has ended ({outcome}), so it cannot be cancelled.", **_state(lead))
        lead.status, lead.outcome, lead.reason = Lead.Status.FINISHED, Lead.Outcome.CANCELLED, "by_hand"
        lead.finished_at = clock.now()
        lead.save(update_fields=["status", "outcome", "reason", "finished_at"])
        events.append(
            lead.organization_id,
            "lead.finished",
            lead.pk,
            actor=actor,
            outcome=lead.outcome,
            reason=lead.reason,
            campaign_id=lead.campaign_id,
        )
        transaction.on_commit(partial(schedule.remove, [_entry(lead).member]), robust=True)
    return lead


def dispatch_now(lead_id: int, *, actor: Actor) -> Lead:
    """Makes a waiting lead due at once: through every gate, as any other.

    Raises LeadConflict when it is being called or has ended; Lead.DoesNotExist."""
    with transaction.atomic():
        lead = _locked(lead_id)
        if lead.status == Lead.Status.PROCESSING:
            raise LeadConflict("This lead is being called at this moment.", **_state(lead))
        if lead.status == Lead.Status.FINISHED:
            outcome = lead.get_outcome_display().lower()
            raise LeadConflict(f"This lead has ended ({outcome}). Add it anew to have it called.", **_state(lead))
        lead.due_at, lead.reason = min(lead.due_at, clock.now()), ""
        lead.save(update_fields=["due_at", "reason"])
        events.append(lead.organization_id, "lead.hurried", lead.pk, actor=actor, campaign_id=lead.campaign_id)
        transaction.on_commit(partial(schedule.put, [_entry(lead)]), robust=True)
    return lead


def _locked(lead_id: int) -> Lead:
    lead: Lead = (
        Lead.objects.select_for_update(no_key=True, of=("self",)).select_related("campaign").get(pk=lead_id)
    )
    return lead


def _entry(lead: Lead) -> Entry:
    return Entry(lead.campaign.pool_id, lead.pk, lead.token + 1, ms(lead.due_at))


def _state(lead: Lead) -> dict[str, Any]:
    return {"status": lead.status, "outcome": lead.outcome}
