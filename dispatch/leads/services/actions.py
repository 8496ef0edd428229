"""Apply the actions of users and clients to one lead."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import transaction

from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.leads import eligibility, redis_queue
from dispatch.leads.models import Lead
from dispatch.leads.redis_queue import PURPOSE, ScheduleEntry, to_ms
from dispatch.leads.rules.states import Reason
from dispatch.telephony import services as telephony


class LeadConflict(Conflict):
    """409: the lead's status does not allow the action. The response contains the status."""

    default_code = "illegal_transition"


def cancel_lead(lead_id: int, *, actor: Actor) -> Lead:
    """Cancel a lead. During its call, the call is hung up, and the lead ends with the call.

    A canceled lead is left unchanged. Raises LeadConflict if it has ended otherwise, and Lead.DoesNotExist.
    """
    with transaction.atomic():
        lead = _locked(lead_id)
        if lead.outcome == Lead.Outcome.CANCELLED:
            return lead
        if lead.status == Lead.Status.PROCESSING:
            _cancel_during_call(lead, actor)
            return lead
        if lead.status == Lead.Status.FINISHED:
            ended = _("This lead has ended ({outcome}), so it can't be canceled.")
            raise LeadConflict(ended.format(outcome=_outcome(lead)), **_state(lead))
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
        transaction.on_commit(partial(redis_queue.dequeue, [_entry(lead).member]), robust=True)
    return lead


def _cancel_during_call(lead: Lead, actor: Actor) -> None:
    """Record the cancellation of a locked lead, and hang up its call. The end of the call ends the lead."""
    if lead.cancel_requested_at is not None:
        return
    lead.cancel_requested_at = clock.now()
    lead.save(update_fields=["cancel_requested_at"])
    events.append(
        lead.organization_id,
        "lead.cancel_requested",
        lead.pk,
        actor=actor,
        attempt=lead.token,
        campaign_id=lead.campaign_id,
    )
    if (call := telephony.call_of(PURPOSE, lead.pk, lead.token)) is not None:
        telephony.hang_up(call.pk, actor=actor, reason="the lead was canceled")


def dispatch_now(lead_id: int, *, actor: Actor) -> Lead:
    """Make a waiting lead due now, also after a switch that holds it. All calling rules still apply.

    Its patience is counted from when it was wanted, or from the end of a switch's hold. A lead that waits for its
    customer's rate keeps its place, unless the rate allows its call now. Raises LeadConflict if it is being called
    or has ended, and Lead.DoesNotExist.
    """
    with transaction.atomic():
        lead = _locked(lead_id)
        if lead.status == Lead.Status.PROCESSING:
            raise LeadConflict(_("This lead is already being called."), **_state(lead))
        if lead.status == Lead.Status.FINISHED:
            ended = _("This lead has ended ({outcome}). Add it again to have it called.")
            raise LeadConflict(ended.format(outcome=_outcome(lead)), **_state(lead))
        now = clock.now()
        if lead.reason != Reason.CUSTOMER_RATE or eligibility.may_leave_rate_queue(lead, now):
            lead.due_at, lead.reason = min(lead.due_at, now), ""
            lead.save(update_fields=["due_at", "reason"])
        events.append(lead.organization_id, "lead.hurried", lead.pk, actor=actor, campaign_id=lead.campaign_id)
        transaction.on_commit(partial(redis_queue.enqueue, [_entry(lead)]), robust=True)
    return lead


def _locked(lead_id: int) -> Lead:
    lead: Lead = (
        Lead.objects.select_for_update(no_key=True, of=("self",)).select_related("campaign").get(pk=lead_id)
    )
    return lead


def _entry(lead: Lead) -> ScheduleEntry:
    return ScheduleEntry(lead.campaign.pool_id, lead.pk, lead.token + 1, to_ms(lead.due_at))


def _outcome(lead: Lead) -> str:
    return _(lead.get_outcome_display()).lower()


def _state(lead: Lead) -> dict[str, Any]:
    return {"status": lead.status, "outcome": lead.outcome}
