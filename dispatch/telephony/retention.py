"""Retention of ended calls and texts and of their provider events."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet

from dispatch.core.languages import mark
from dispatch.core.privacy import retention
from dispatch.telephony.models import Call, CallEvent, InboundCall, Text

CALL_DAYS, TEXT_DAYS, PAYLOAD_DAYS = 400, 400, 30
# Limits on calls per person count the calls of this many days, so these must be kept.
MIN_DAYS = 31


def delete_calls(organization_id: int, before: datetime, limit: int) -> int:
    """Delete outbound calls that ended before the cutoff with their provider events, then inbound calls."""
    ended = Call.objects.of(organization_id).filter(ended_at__lt=before)
    ids = _first(ended.filter(requested_at__lt=before).order_by("requested_at"), limit)
    ids += _first(ended.filter(requested_at=None).order_by("pk"), limit - len(ids))
    Call.objects.filter(pk__in=ids).delete()
    ended_inbound = InboundCall.objects.of(organization_id).filter(ended_at__lt=before).order_by("pk")
    inbound = _first(ended_inbound, limit - len(ids))
    InboundCall.objects.filter(pk__in=inbound).delete()
    return len(ids) + len(inbound)


def delete_texts(organization_id: int, before: datetime, limit: int) -> int:
    """Delete texts that ended before the cutoff. Opt-outs are kept."""
    ended = Text.objects.of(organization_id).filter(ended_at__lt=before, created_at__lt=before).order_by("pk")
    ids = _first(ended, limit)
    Text.objects.filter(pk__in=ids).delete()
    return len(ids)


def delete_payloads(organization_id: int, before: datetime, limit: int) -> int:
    """Delete the provider events of ended calls. A webhook that is repeated after that changes nothing."""
    provider_events = CallEvent.objects.of(organization_id).filter(at__lt=before, call__ended_at__isnull=False)
    ids = _first(provider_events.order_by("pk"), limit)
    CallEvent.objects.filter(pk__in=ids).delete()
    return len(ids)


def _first(rows: QuerySet, limit: int) -> list[int]:
    return list(rows.values_list("pk", flat=True)[:limit]) if limit > 0 else []


def register() -> None:
    """Register the retention rules of telephony."""
    retention.register("calls", CALL_DAYS, delete_calls, label=mark("Calls"), shortest_days=MIN_DAYS)
    retention.register("texts", TEXT_DAYS, delete_texts, label=mark("Texts"))
    retention.register("provider_payloads", PAYLOAD_DAYS, delete_payloads, label=mark("Provider events of calls"))
