"""Reads what `rules.telling` needs to say why a lead is where it is."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock
from dispatch.leads.models import Lead
from dispatch.leads.rules import telling
from dispatch.telephony.models import Call


def why(lead: Lead) -> str:
    """Why this lead was called, is not called yet, or never will be, in words."""
    now = clock.now()
    if lead.status == Lead.Status.FINISHED:
        return telling.how_it_ended(lead.outcome)
    if lead.status == Lead.Status.PROCESSING:
        call = Call.objects.filter(purpose="lead", subject_id=lead.pk, attempt=lead.token).first()
        return f"Being called: {call.get_status_display().lower()}." if call else "Being called."
    line = _no_line(lead.campaign.pool) if not lead.reason and lead.due_at <= now else ""
    return telling.why_it_waits(lead.reason, lead.due_at, now, _shown(lead, lead.due_at), line)


def _shown(lead: Lead, moment: datetime) -> str:
    return f"{moment.astimezone(ZoneInfo(lead.organization.time_zone)):%a %d %b, %H:%M:%S %Z}"


def _no_line(pool: DispatchPool) -> str:
    if pool.is_paused:
        return f"pool {pool.name}, which is paused"
    if not OutboundNumber.objects.filter(pool=pool, is_paused=False, account__is_active=True).exists():
        return f"a usable number in pool {pool.name}"
    return f"a free line of pool {pool.name}"
