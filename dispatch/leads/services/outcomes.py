"""Record what people and voice agents report about a lead, during its call or afterwards."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from django.db import IntegrityError, transaction

from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.models import Event
from dispatch.leads import redis_queue
from dispatch.leads.models import DispositionRule, Lead
from dispatch.leads.redis_queue import ScheduleEntry, to_ms
from dispatch.leads.rules.states import Outcome, Reason
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
    ended lead is opened again. Such a call does not count the attempt before it. Without it, the campaign's rule
    for a new disposition decides what follows the newest call, also if that has ended. Raises LeadConflict and
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
            _write(lead, changes)
            if is_news and call_back_at is None:
                apply_rule_after_end(lead, actor)
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

    The result is the same as if the end had been processed afterwards. Returns False if the lead stays as it is:
    the call does not decide what follows, or another lead to the phone is open.
    """
    if not _follows_from_call(lead):
        return False
    uncounted = {"attempts": max(lead.attempts - 1, 0)}
    return _try_to_write(lead, lambda: {**uncounted, **_call_back(lead, at, actor)})


def apply_rule_after_end(lead: Lead, actor: Actor) -> None:
    """Do what the campaign's rule says about a locked lead whose outcome was recorded after its newest call.

    The result is the same as if it had been recorded during the call. If another lead to the phone is open, an
    ended lead stays ended.
    """
    if lead.status == Lead.Status.PROCESSING:
        return
    rule = DispositionRule.objects.filter(campaign=lead.campaign_id, disposition=lead.disposition).first()
    if rule is None or not _follows_from_call(lead):
        return
    if rule.then == DispositionRule.Then.AGAIN:
        if lead.attempts < lead.campaign.max_attempts:
            at = clock.now() + timedelta(hours=rule.delay_h)
            _try_to_write(lead, lambda: _plan_call(lead, at, Reason.RETRY, actor))
    elif lead.status == Lead.Status.BACKLOG:
        _write(lead, _end(lead, actor))


def _follows_from_call(lead: Lead) -> bool:
    """Return whether a locked lead ended, or waits to be called again, because of the end of its newest call.

    Not if it was canceled, ended for another reason, was erased, or is called back as the person asked in that
    call or since.
    """
    if not lead.phone or lead.last_outcome in ("", Outcome.NOT_PLACED):
        return False
    if lead.status == Lead.Status.FINISHED:
        is_ended_by_call = lead.reason in (Reason.CALLED, Reason.MOST_ATTEMPTS)
        if not is_ended_by_call or lead.cancel_requested_at is not None:
            return False
    call_backs = Event.objects.filter(
        organization_id=lead.organization_id, subject_type="lead", subject_id=lead.pk,
        kind="lead.outcome_reported", data__attempt=lead.token, data__has_key="call_back_at",
    )  # fmt: skip
    return not call_backs.exists()


def _try_to_write(lead: Lead, change: Callable[[], dict[str, Any]]) -> bool:
    """Write the changes, unless they open a lead to a phone to which the campaign has an open one."""
    try:
        with transaction.atomic():
            _write(lead, change())
    except IntegrityError:
        log.warning("lead_not_opened_again", lead=lead.pk)
        return False
    return True


def _write(lead: Lead, changes: dict[str, Any]) -> None:
    Lead.objects.filter(pk=lead.pk).update(**changes)
    for name, value in changes.items():
        setattr(lead, name, value)


def _call_back(lead: Lead, at: datetime, actor: Actor) -> dict[str, Any]:
    """Return the changes that have a locked lead called again, and schedule it after the commit.

    Raises LeadConflict if its phone was erased.
    """
    if not lead.phone:
        raise LeadConflict(_("The phone number of this lead was erased, so it can't be called."))
    if lead.status == Lead.Status.PROCESSING:
        return {"call_back_at": at}
    changes = _plan_call(lead, at, Reason.CALL_BACK, actor)
    if lead.status == Lead.Status.FINISHED:
        changes["attempts"] = max(lead.attempts - 1, 0)
    return changes


def _plan_call(lead: Lead, at: datetime, reason: Reason, actor: Actor) -> dict[str, Any]:
    """Return the changes with which a locked lead that is not in a call waits until then, and schedule it."""
    changes: dict[str, Any] = {"due_at": at, "wanted_at": at, "reason": reason}
    if lead.status == Lead.Status.FINISHED:
        changes |= {
            "status": Lead.Status.BACKLOG, "outcome": "", "finished_at": None, "claimed_at": None, "worker": "",
            "cancel_requested_at": None, "call_back_at": None,
        }  # fmt: skip
        events.append(lead.organization_id, "lead.reopened", lead.pk, actor=actor, campaign_id=lead.campaign_id)
    entry = ScheduleEntry(lead.campaign.pool_id, lead.pk, lead.token + 1, to_ms(at))
    transaction.on_commit(partial(_reschedule, entry), robust=True)
    return changes


def _reschedule(entry: ScheduleEntry) -> None:
    redis_queue.dequeue([entry.member])  # it may be ready already
    redis_queue.enqueue([entry])


def _end(lead: Lead, actor: Actor) -> dict[str, Any]:
    """Return the changes with which a locked lead that waits for another call ends with its last one."""
    events.append(
        lead.organization_id, "lead.finished", lead.pk, actor=actor, outcome=lead.last_outcome,
        reason=Reason.CALLED, attempt=lead.token, campaign_id=lead.campaign_id,
    )  # fmt: skip
    entry = ScheduleEntry(lead.campaign.pool_id, lead.pk, lead.token + 1, to_ms(lead.due_at))
    transaction.on_commit(partial(redis_queue.dequeue, [entry.member]), robust=True)
    return {
        "status": Lead.Status.FINISHED, "outcome": lead.last_outcome, "reason": Reason.CALLED,
        "finished_at": clock.now(),
    }  # fmt: skip
