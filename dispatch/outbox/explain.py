"""Load the facts from which `rules.descriptions` explains the state of one message."""

from __future__ import annotations

from django.conf import settings

from dispatch.core import clock
from dispatch.core.languages import mark
from dispatch.outbox import sql
from dispatch.outbox.models import Message, Mode
from dispatch.outbox.rules.descriptions import Situation, explain_status
from dispatch.outbox.services.pool_slots import find_full_pools

NO_REASON = mark("disabled.")


def why_stuck(message: Message, zone: str = "UTC") -> str:
    """Explain why this message is in its state; times are shown in `zone`."""
    return explain_status(load_situation(message, zone))


def load_situation(message: Message, zone: str = "UTC") -> Situation:
    """Read the state of the message, its group, target and pool."""
    now = clock.now()
    endpoint, target = message.endpoint, message.target
    pool = endpoint.pool if endpoint else target.pool
    flying = ahead = blocked_by = None
    if message.status == "PENDING" and message.mode != Mode.IMMEDIATE:
        row = sql.fetch_all(sql.HEADS, sql.heads_of([message.group_id], now))[0]
        flying, head = row[4], row[5]
        blocked_by = _blocking_error(message)
        ahead = head if head != message.pk and blocked_by is None else None
    return Situation(
        status=message.status, mode=message.mode, due_at=message.due_at, now=now, waiting_for=message.waiting_for,
        last_error=message.last_error, attempts=message.attempts, resolution=message.resolution,
        is_in_flight=message.in_flight, lease_until=message.lease_until, queued_at=message.queued_at,
        blocked_by=blocked_by, flying=flying, ahead=ahead, endpoint=endpoint.name if endpoint else "",
        is_endpoint_paused=bool(endpoint and endpoint.is_paused),
        disabled_reason=(endpoint.disabled_reason or NO_REASON) if endpoint and endpoint.disabled_at else "",
        pool=pool.name if pool else "", is_pool_paused=bool(pool and pool.is_paused),
        is_pool_full=bool(pool and find_full_pools([pool])), circuit_open_until=target.open_until,
        is_outbox_enabled=settings.OUTBOX_ENABLED, zone=zone,
    )  # fmt: skip


def _blocking_error(message: Message) -> int | None:
    """Return the id of the earliest ERROR that blocks this message, whatever else its group does meanwhile."""
    errors = Message.objects.filter(group_id=message.group_id, status="ERROR").exclude(mode=Mode.IMMEDIATE)
    if message.mode == Mode.NEXT:
        errors = errors.filter(mode=Mode.BLOCK)
    position = (message.sequence, message.pk)
    first = errors.order_by("sequence", "id").values_list("sequence", "id").first()
    return first[1] if first and first < position else None
