"""Do what the branch of a pressed key says. Every function is idempotent, because a key may be applied twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any

import structlog
from django.db import transaction

from accounts.models import Organization
from dispatch.core import clock, events
from dispatch.core.db import fast_rows, prepared
from dispatch.core.events import Actor, EventRow
from dispatch.core.languages import gettext
from dispatch.core.models import Event
from dispatch.core.phone_numbers import InvalidPhone, parse_phone, parse_possible_phone
from dispatch.leads.models import Campaign, KeyBranch, Lead
from dispatch.leads.redis_queue import PURPOSE
from dispatch.leads.rules.script import Action, fill_in
from dispatch.leads.services import do_not_call, follow_ups, outcomes
from dispatch.telephony import services as telephony
from dispatch.telephony.group_handlers import ReportedCall
from dispatch.telephony.models import Call

log = structlog.get_logger(__name__)


def branches_of(campaign: Campaign) -> dict[str, KeyBranch]:
    """Return the campaign's branches by key. A campaign of an earlier version has only words per key."""
    return _by_key(campaign, campaign.branches.all())


def load_branches(campaign: Campaign) -> dict[str, KeyBranch]:
    """Return the same as `branches_of`, read by a prepared statement, for people who wait in a call."""
    return _by_key(campaign, fast_rows.fetch_many(KeyBranch, "t.campaign_id = %s", [campaign.pk], "recording"))


def load_branches_of(campaigns: Collection[Campaign]) -> dict[int, dict[str, KeyBranch]]:
    """Return the same as `load_branches` for several campaigns, by their ids."""
    ids = prepared.integers(campaign.pk for campaign in campaigns)
    rows = fast_rows.fetch_many(KeyBranch, "t.campaign_id = ANY(%s::bigint[])", [ids], "recording")
    return {
        campaign.pk: _by_key(campaign, [row for row in rows if row.campaign_id == campaign.pk])
        for campaign in campaigns
    }


def _by_key(campaign: Campaign, rows: Iterable[KeyBranch]) -> dict[str, KeyBranch]:
    found = {branch.key: branch for branch in rows}
    if found or not isinstance(campaign.keys, dict):
        return found
    return {
        key: KeyBranch(campaign=campaign, key=key, say=str(say), action=Action.SAY)
        for key, say in campaign.keys.items()
        if key in tuple("0123456789")
    }


def phones_problem(organization: Organization, phones: list[str]) -> str:
    """Return what is wrong with the entered phones of a branch, or ""."""
    for text in phones:
        try:
            phone = parse_phone(text, organization.default_region).as_e164
        except InvalidPhone as error:
            return str(error)
        if why := telephony.why_not_callable(phone, organization.allowed_countries):
            return gettext("{text} can't be called: {why}.").format(text=text, why=why)
    return ""


def connecting_branch(campaign: Campaign, keys_pressed: str) -> KeyBranch | None:
    """Return the branch by which a call was connected: that of the last such key."""
    found = load_branches(campaign)
    chosen = (found[key] for key in reversed(keys_pressed) if key in found)
    return next((branch for branch in chosen if branch.action == Action.CONNECT), None)


def apply_branch(lead: Lead, branch: KeyBranch, call: Call) -> None:
    """Record the branch's outcome, and do its action except for the connection, which is part of the prompt."""
    caller = caller_of(lead.pk)
    if branch.action == Action.OPT_OUT:
        do_not_call.add_to_list(call.organization_id, str(call.to_phone), source="key", actor=caller, but=call.pk)
    changes = outcome_of(branch)
    with transaction.atomic():
        if changes:
            _record_outcome(lead, call, changes, caller)
        if branch.action == Action.TEXT:
            _send_text(lead, branch, call)


def caller_of(lead_id: int) -> Actor:
    """Return the actor of what the called person chooses."""
    return Actor("lead", lead_id, "The person called")


def outcome_of(branch: KeyBranch) -> dict[str, Any]:
    """Return the fields of the lead that the branch changes: `disposition`, and `call_back_at` as of now."""
    changes: dict[str, Any] = {}
    if branch.disposition:
        changes["disposition"] = branch.disposition
    if branch.action == Action.LATER and branch.call_back_h:
        changes["call_back_at"] = clock.now() + timedelta(hours=branch.call_back_h)
    return changes


def _record_outcome(lead: Lead, call: Call, changes: dict[str, Any], actor: Actor) -> None:
    """Write the outcome, unless the lead has another call by now, or had it already."""
    locked = Lead.objects.select_for_update(no_key=True).get(pk=lead.pk)
    if locked.token != call.attempt:
        return
    locked.campaign = lead.campaign
    call_back_at = changes.pop("call_back_at", None)
    if locked.call_back_at is not None:
        call_back_at = None
    changed = {name: value for name, value in changes.items() if getattr(locked, name) != value}
    reported = dict(changed)
    if call_back_at is not None and locked.status == Lead.Status.PROCESSING:
        changed["call_back_at"] = reported["call_back_at"] = call_back_at
    elif call_back_at is not None and outcomes.call_back_after_end(locked, call_back_at, actor):
        reported["call_back_at"] = call_back_at
    if not reported:
        return
    if changed:
        Lead.objects.filter(pk=lead.pk).update(**changed)
    events.append_many([outcome_event(lead, call, reported)], actor=actor)
    if disposition := changed.get("disposition"):
        locked.disposition = disposition
        outcomes.apply_rule_after_end(locked, actor)
        follow_ups.send_follow_up(locked, disposition, actor=actor)


def outcome_event(lead: Lead, call: Call | ReportedCall, changed: dict[str, Any]) -> EventRow:
    """Return the event about an outcome that a key has recorded."""
    written = {name: value if isinstance(value, str) else value.isoformat() for name, value in changed.items()}
    data = {"call": call.pk, "attempt": call.attempt, "campaign_id": lead.campaign_id, **written}
    return EventRow(lead.organization_id, "lead.outcome_reported", lead.pk, data)


def _send_text(lead: Lead, branch: KeyBranch, call: Call) -> None:
    try:
        telephony.create_text(
            organization=lead.campaign.organization,
            to_phone=str(call.to_phone),
            body=fill_in(branch.text, lead.data),
            purpose=PURPOSE,
            subject_id=lead.pk,
            attempt=call.attempt,
            pool=call.pool,
            context={"campaign_id": lead.campaign_id},
        )
    except (telephony.TextNotAllowed, telephony.NoTextNumber) as error:
        log.warning("lead_text_not_sent", lead=lead.pk, error=str(error))


def open_legs(branch: KeyBranch, call: Call) -> list[Call]:
    """Return the calls to the people of a branch; none if the lead has hung up."""
    call = Call.objects.select_related("organization", "pool", "number", "account").get(pk=call.pk)
    if call.ended_at is not None or call.cancel_requested_at is not None:
        return []
    region, phones = call.organization.default_region, []
    for text in branch.phone_list:
        try:
            phones.append(parse_possible_phone(text, region).as_e164)
        except InvalidPhone:
            log.warning("leg_not_a_phone", branch=branch.pk)
    legs = telephony.create_legs(call, phones, branch.ring_s, branch.talk_limit_s)
    for leg in legs:
        leg.account = call.account  # for the URLs of its webhooks
    return legs


def record_connection(lead: Lead, call: Call, is_connected: bool) -> None:
    """Append the result of a connection to the lead's events, once per call. A lead that talked was connected."""
    kind = "lead.connected" if is_connected else "lead.not_connected"
    known = {"lead.connected", kind}
    about = {"subject_type": "lead", "subject_id": lead.pk, "kind__in": known, "data__call": call.pk}
    with transaction.atomic():
        Lead.objects.select_for_update(no_key=True).get(pk=lead.pk)
        if not Event.objects.filter(organization_id=lead.organization_id, **about).exists():
            events.append(
                lead.organization_id,
                kind,
                lead.pk,
                call=call.pk,
                attempt=call.attempt,
                campaign_id=lead.campaign_id,
            )
