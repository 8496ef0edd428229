"""What telephony forgets with time: calls and texts that have ended, and what the provider told about them."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet

from dispatch.core import retention
from dispatch.telephony.models import Call, CallEvent, InboundCall, Text

CALL_DAYS, TEXT_DAYS, PAYLOAD_DAYS = 400, 400, 30
# Caps on calls to a person look back that far.
SHORTEST_DAYS = 31


def forget_calls(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes calls of ours that ended before then, with what the provider told; then those that came to us."""
    over = Call.objects.of(organization_id).filter(ended_at__lt=before)
    ids = _first(over.filter(requested_at__lt=before).order_by("requested_at"), limit)
    ids += _first(over.filter(requested_at=None).order_by("pk"), limit - len(ids))
    Call.objects.filter(pk__in=ids).delete()
    theirs = InboundCall.objects.of(organization_id).filter(ended_at__lt=before).order_by("pk")
    inbound = _first(theirs, limit - len(ids))
    InboundCall.objects.filter(pk__in=inbound).delete()
    return len(ids) + len(inbound)


def forget_texts(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes texts that ended before then; who has opted out stays so."""
    over = Text.objects.of(organization_id).filter(ended_at__lt=before, created_at__lt=before).order_by("pk")
    ids = _first(over, limit)
    Text.objects.filter(pk__in=ids).delete()
    return len(ids)


def forget_payloads(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes what the provider told about calls that are over; a late repetition changes nothing."""
    told = CallEvent.objects.of(organization_id).filter(at__lt=before, call__ended_at__isnull=False)
    ids = _first(told.order_by("pk"), limit)
    CallEvent.objects.filter(pk__in=ids).delete()
    return len(ids)


def _first(rows: QuerySet, limit: int) -> list[int]:
    return list(rows.values_list("pk", flat=True)[:limit]) if limit > 0 else []


def register() -> None:
    retention.register("calls", CALL_DAYS, forget_calls, label="Calls", shortest_days=SHORTEST_DAYS)
    retention.register("texts", TEXT_DAYS, forget_texts, label="Texts")
    retention.register("provider_payloads", PAYLOAD_DAYS, forget_payloads, label="What the provider told of calls")
