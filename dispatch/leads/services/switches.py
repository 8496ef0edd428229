"""Change the switches that hold leads back: the kill switch, the promoter, an organization, a campaign.

Each switch is a row that every batch reads, so that it takes effect immediately. Each change is an Event with its
actor. `release_lifted` finds and releases the leads that a lifted switch had held back; a lost wakeup delays that,
but never prevents it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from django.db import transaction
from django.db.models import Q

from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.db.isolation import FailureRule, run_each
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.db.prepared import prefer_index_plans
from dispatch.core.events import Actor, EventRow
from dispatch.core.languages import gettext as _
from dispatch.core.runtime import queues
from dispatch.leads import eligibility, redis_queue, sql
from dispatch.leads.models import Campaign, EngineSwitch, LeadDispatch
from dispatch.leads.redis_queue import ScheduleEntry
from dispatch.leads.rules.retries import CampaignRules
from dispatch.leads.rules.script import NO_WORDS
from dispatch.leads.rules.states import Mode, Reason
from dispatch.telephony import services as telephony

LIFTED = "leads_lifted"  # the loop that releases leads that are no longer held


class CampaignWithoutScript(Conflict):
    """409: the campaign has neither a script nor a TwiML URL, so it stays paused."""

    default_code = "campaign_without_script"


def set_engine(
    *, is_stopped: bool | None = None, promoter_paused: bool | None = None, actor: Actor
) -> EngineSwitch:
    """Set the switches for all organizations. None leaves a switch unchanged.

    The event log of each organization records the change.
    """
    with transaction.atomic():
        EngineSwitch.objects.get_or_create(pk=1)
        row = EngineSwitch.objects.select_for_update().get(pk=1)
        changed = _change_switches(row, {"is_stopped": is_stopped, "promoter_paused": promoter_paused})
        if changed:
            # in one statement, so that the switch takes effect within a second for any number of organizations
            ids = LeadDispatch.objects.order_by("organization_id").values_list("organization_id", flat=True)
            events.append_many([EventRow(pk, "lead_engine.switched", row.pk, changed) for pk in ids], actor=actor)
            _notify_dialers()
            _wake_texts()
    return row


def set_dispatch(
    organization_id: int,
    *,
    mode: str | None = None,
    is_paused: bool | None = None,
    agent_hosts: str | None = None,
    actor: Actor,
) -> LeadDispatch:
    """Set an organization's mode (off, dry_run, live), its pause and the hosts of its voice agents.

    None leaves a value unchanged.

    Raises ValueError for an unknown mode.
    """
    if mode is not None and mode not in LeadDispatch.Mode.values:
        raise ValueError(f"{mode!r} is not a valid mode. Choose one of: {', '.join(LeadDispatch.Mode.values)}.")
    with transaction.atomic():
        LeadDispatch.objects.get_or_create(organization_id=organization_id)
        row = LeadDispatch.objects.select_for_update().get(organization_id=organization_id)
        changed = _change_switches(row, {"mode": mode, "is_paused": is_paused, "agent_hosts": agent_hosts})
        if changed:
            events.append(organization_id, "lead_dispatch.switched", row.pk, actor=actor, **changed)
            _notify_dialers()
            _wake_texts(organization_id=organization_id)
    return row


def pause_campaign(campaign_id: int, is_paused: bool, *, actor: Actor) -> Campaign:
    """Pause or resume a campaign.

    Raises Campaign.DoesNotExist, and CampaignWithoutScript if a campaign that has nothing to say would be resumed.
    """
    with transaction.atomic():
        row = Campaign.objects.select_for_update(no_key=True).get(pk=campaign_id)
        if not is_paused and row.is_paused and not row.has_words:
            raise CampaignWithoutScript(_("{name} has no script.").format(name=row.name) + " " + _(NO_WORDS))
        if _change_switches(row, {"is_paused": is_paused}):
            kind = "campaign.paused" if is_paused else "campaign.resumed"
            events.append(row.organization_id, kind, row.pk, actor=actor)
            _notify_dialers()
            _wake_texts(organization_id=row.organization_id, context__campaign_id=campaign_id)
    return row


def wake_after_change() -> None:
    """Wake the release of leads that waited for something that a saved campaign had lacked.

    Call it after the commit, or within a transaction.
    """
    _notify_dialers()


def _change_switches(row: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Write the fields that differ, and return them."""
    changed = {name: value for name, value in wanted.items() if value is not None and getattr(row, name) != value}
    for name, value in changed.items():
        setattr(row, name, value)
    if changed:
        row.save(update_fields=list(changed))
    return changed


def _notify_dialers() -> None:
    queues.notify_loop(LIFTED)
    queues.notify_loop(redis_queue.PROMOTER)


# How the error message of a follow-up text begins while a switch holds it.
HELD_TEXT = "Held back:"


def _wake_texts(**where: Any) -> None:
    """Make follow-up texts due that a lifted switch may have held back. Lost wakeups only delay them."""
    telephony.wake_texts(Q(purpose=redis_queue.PURPOSE, error_message__startswith=HELD_TEXT, **where))


def holding_switches_of(campaign_id: int) -> set[Reason]:
    """Return the reasons for which switches hold the campaign now; none if it no longer exists."""
    stopped, rules = eligibility.switches([campaign_id])
    return holding_switches(rules[campaign_id], stopped) if campaign_id in rules else set()


CAMPAIGNS_AT_ONCE = 1000


def release_lifted() -> int:
    """Release all leads that wait for a switch that no longer holds them. Return how many.

    A campaign that fails stops no other and is skipped for a while.
    """
    return run_each(
        _release_campaign, _campaigns_no_longer_held(), event="leads_not_released", rule=_SKIP_CAMPAIGN
    )


def _release_campaign(lifted: tuple[int, list[Reason]]) -> int:
    campaign_id, reasons = lifted
    return release_leads(reasons, campaign_id=campaign_id)


_failed_campaigns = RecentlyBlocked(30.0, longest_s=600.0)
_SKIP_CAMPAIGN = FailureRule[tuple[int, list[Reason]]](lambda lifted: _failed_campaigns.add(lifted[0]))


def holding_switches(rules: CampaignRules, stopped: bool) -> set[Reason]:
    """Return the reasons for which switches hold the campaign's leads now."""
    return {
        reason
        for reason, holds in (
            (Reason.STOPPED, stopped),
            (Reason.ORGANIZATION_OFF, rules.mode == Mode.OFF),
            (Reason.ORGANIZATION_PAUSED, rules.organization_paused),
            (Reason.CAMPAIGN_PAUSED, rules.is_paused),
            (Reason.NO_SCRIPT, not rules.has_words),
            (Reason.DRY_RUN, rules.mode == Mode.DRY_RUN),
        )
        if holds
    }


def _campaigns_no_longer_held() -> Iterator[tuple[int, list[Reason]]]:
    """Yield the campaigns with leads that wait for lifted switches, with these reasons."""
    with transaction.atomic():
        prefer_index_plans()
        pairs = sql.fetch_all(sql.HELD_PAIRS)
    held: dict[int, list[Reason]] = {}
    for campaign_id, reason in pairs:
        held.setdefault(campaign_id, []).append(Reason(reason))
    ids = sorted(held.keys() - _failed_campaigns.keys())
    for start in range(0, len(ids), CAMPAIGNS_AT_ONCE):
        stopped, campaigns = eligibility.switches(ids[start : start + CAMPAIGNS_AT_ONCE])
        for pk, rules in campaigns.items():
            holding = holding_switches(rules, stopped)
            if lifted := [reason for reason in held[pk] if reason not in holding]:
                yield pk, lifted


BATCH = 5000


def release_leads(
    reasons: Collection[Reason], *, organization_id: int | None = None, campaign_id: int | None = None
) -> int:
    """Make leads that wait for one of these reasons due again: now, or at their original time. Return how many.

    Call it after the commit that lifted the reasons. The eligibility of the leads is checked again, so other
    reasons still hold them.
    """
    released = 0
    while True:
        with transaction.atomic():
            rows = sql.fetch_all(
                sql.RELEASE,
                {
                    "reasons": sql.texts(reasons),
                    "organization": organization_id,
                    "campaign": campaign_id,
                    "limit": BATCH,
                    "now": clock.now(),
                },
            )
        redis_queue.enqueue([ScheduleEntry(*row) for row in rows])
        released += len(rows)
        if len(rows) < BATCH:
            return released
