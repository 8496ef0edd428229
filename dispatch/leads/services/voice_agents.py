"""Connect calls to a campaign's voice agent, and record how its conversations ended."""

from __future__ import annotations

from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction

from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.http.ssrf import check_target_url
from dispatch.core.models import Event
from dispatch.leads.models import Campaign, Lead, LeadDispatch, VoiceAgent
from dispatch.leads.rules import voice_agents as rules
from dispatch.leads.rules.script import fill_in, split_names
from dispatch.leads.services import branches
from dispatch.leads.services.actions import LeadConflict
from dispatch.leads.services.outcomes import report_outcome
from dispatch.telephony.handlers import AgentConnection, AgentEnd
from dispatch.telephony.models import Call

log = structlog.get_logger(__name__)

CONNECTED, UNREACHABLE = "lead.agent_connected", "lead.agent_unreachable"


def agent_of(campaign: Campaign) -> VoiceAgent | None:
    """Return the campaign's voice agent, or None."""
    return getattr(campaign, "agent", None)


def url_problem(organization_id: int, url: str, *, is_stream: bool) -> str:
    """Return why an agent at this URL may not be connected to, or "".

    The URL must be one that the organization allows, and point to a public host: the rules are those of endpoints.
    """
    dispatch = LeadDispatch.objects.of(organization_id).first()
    hosts = split_names(dispatch.agent_hosts.lower()) if dispatch else []
    if problem := rules.url_problem(url, is_stream=is_stream, hosts=hosts, allows_ws=settings.DEVELOPMENT):
        return problem
    scheme, _, rest = url.partition("://")
    try:
        check_target_url(f"{'https' if scheme == 'wss' else 'http'}://{rest}")
    except ValidationError as error:
        return str(error.messages[0])
    return ""


def connect(lead: Lead, call: Call, say: tuple[str, ...] = ()) -> AgentConnection | None:
    """Return the connection to the campaign's agent, with the lead's data; None if it is not allowed."""
    campaign = lead.campaign
    agent = agent_of(campaign)
    if agent is None:
        return None
    if problem := url_problem(lead.organization_id, agent.url, is_stream=not agent.is_relay):
        log.warning("voice_agent_refused", campaign=campaign.pk, error=problem)
        return None
    given = {
        "lead_id": lead.pk, "call_id": call.pk, "campaign": campaign.code, "external_id": lead.external_id
    }  # fmt: skip
    return build(agent, given, lead.data, say)


def build(
    agent: VoiceAgent, given: dict[str, Any], data: dict[str, Any], say: tuple[str, ...] = ()
) -> AgentConnection:
    """Return a connection to an agent. `given`: parameters besides the lead's data."""
    return AgentConnection(
        say=say,
        url=agent.url,
        is_relay=agent.is_relay,
        parameters=rules.parameters(given, agent.names, data),
        limit_s=agent.limit_s,
        greeting=fill_in(agent.greeting, data),
    )


def record_end(lead: Lead, call: Call, end: AgentEnd) -> None:
    """Append the end of a conversation to the lead's events, and report its outcome. Once per conversation."""
    about = {
        "subject_type": "lead", "subject_id": lead.pk, "kind__in": (CONNECTED, UNREACHABLE), "data__call": call.pk,
        "data__step": end.step,
    }  # fmt: skip
    with transaction.atomic():
        locked = Lead.objects.select_for_update(no_key=True).get(pk=lead.pk)
        if Event.objects.filter(organization_id=lead.organization_id, **about).exists():
            return
        events.append(
            lead.organization_id, UNREACHABLE if end.has_failed else CONNECTED, lead.pk, call=call.pk,
            step=end.step, attempt=call.attempt, campaign_id=lead.campaign_id,
        )  # fmt: skip
        found = rules.read_handoff(end.handoff, clock.now()) if end.handoff else {}
        if end.has_failed and locked.token == call.attempt and not _has_outcome(locked, call):
            found.setdefault("disposition", rules.UNREACHABLE)
        if found:
            _report(lead.pk, found)


def _has_outcome(lead: Lead, call: Call) -> bool:
    """Return whether an outcome was reported in this call. The lead may still have that of an earlier call.

    A key that records the outcome that the lead has already appends no event.
    """
    if not lead.disposition:
        return False
    reports = Event.objects.filter(
        organization_id=lead.organization_id, subject_type="lead", subject_id=lead.pk,
        kind="lead.outcome_reported", data__attempt=call.attempt, data__has_key="disposition",
    )  # fmt: skip
    return reports.exists() or lead.disposition in _outcomes_of_keys(lead, call)


def _outcomes_of_keys(lead: Lead, call: Call) -> set[str]:
    """Return the outcomes that the keys pressed in this call record."""
    if not call.keys_pressed:
        return set()
    found = branches.load_branches(lead.campaign)
    return {found[key].disposition for key in call.keys_pressed if key in found}


def _report(lead_id: int, found: dict[str, Any]) -> None:
    """Report the outcome, without the call back if another lead to the phone is open by now."""
    try:
        report_outcome(lead_id, **found, actor=Actor("lead", lead_id, "The voice agent"))
    except LeadConflict as error:
        log.warning("voice_agent_call_back_refused", lead=lead_id, error=str(error.detail))
        found.pop("call_back_at", None)
        if found:
            report_outcome(lead_id, **found, actor=Actor("lead", lead_id, "The voice agent"))
