"""Create a tenant's rows of leads, for the tests of access across organizations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from django.db.models import Model

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.leads.models import (
    Campaign,
    ClosedDay,
    Consent,
    CustomerRate,
    DispositionRule,
    DoNotCall,
    KeyBranch,
    Lead,
    LeadDispatch,
    Recording,
    RecordingFile,
    RetryRule,
    VoiceAgent,
)
from tests.support import factories as make


def _campaign(t: Any) -> Campaign:
    fields = {"code": t.tag.lower(), "name": f"{t.tag} spring", "script": t.tag, "customer": t.tag.lower()}
    return Campaign.objects.create(organization=t.organization, pool=t.row(DispatchPool), **fields)


def _lead(t: Any) -> Lead:
    fields = {"external_id": t.tag, "data": {"name": t.tag}, "phone": make.phone()}
    return Lead.objects.create(organization=t.organization, campaign=t.row(Campaign), **fields)


ROWS: dict[type[Model], Callable[[Any], Model]] = {
    Campaign: _campaign,
    Lead: _lead,
    LeadDispatch: lambda t: LeadDispatch.objects.create(organization=t.organization, mode="live"),
    DoNotCall: lambda t: DoNotCall.objects.create(organization=t.organization, phone=make.phone(), note=t.tag),
    Consent: lambda t: Consent.objects.create(
        organization=t.organization, phone=make.phone(), given_at=clock.now(), source="form", words=t.tag
    ),
    VoiceAgent: lambda t: VoiceAgent.objects.create(
        organization=t.organization, campaign=t.row(Campaign), url=f"wss://{t.tag.lower()}.example.com/"
    ),
    ClosedDay: lambda t: ClosedDay.objects.create(
        organization=t.organization, date=date(2026, 12, 24), name=f"{t.tag} party"
    ),
    Recording: lambda t: Recording.objects.create(
        organization=t.organization, name=f"{t.tag} welcome", content_type="audio/wav", size_bytes=4, digest=t.tag
    ),
    RecordingFile: lambda t: RecordingFile.objects.create(
        organization=t.organization, recording=t.row(Recording), content=t.tag.encode()
    ),
    DispositionRule: lambda t: DispositionRule.objects.create(
        organization=t.organization, campaign=t.row(Campaign), disposition=f"said_{t.tag.lower()}"
    ),
    KeyBranch: lambda t: KeyBranch.objects.create(
        organization=t.organization, campaign=t.row(Campaign), key="1", say=t.tag
    ),
    RetryRule: lambda t: RetryRule.objects.create(
        organization=t.organization, campaign=t.row(Campaign), outcome="busy"
    ),
    CustomerRate: lambda t: CustomerRate.objects.create(
        organization=t.organization, customer=t.tag.lower(), most=5
    ),
}
