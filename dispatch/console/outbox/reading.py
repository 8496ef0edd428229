"""What the outbox's pages show, read for one organization. Counts stop at COUNT_LIMIT."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Q, QuerySet
from django.http import QueryDict

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.ids import read_ids
from dispatch.outbox import sql
from dispatch.outbox.models import Endpoint, Message, MessageGroup, Mode, Status

PAGE = 50
COUNT_LIMIT = 10_000
OPEN = (Status.PENDING, Status.QUEUED, Status.PROCESSING)

TONES = {
    "PENDING": "waiting", "QUEUED": "calling", "PROCESSING": "calling", "COMPLETED": "good", "ERROR": "attention",
    "CANCELLED": "off", "EXPIRED": "late",
}  # fmt: skip
OUTCOMES = {
    "delivered": ("good", "Delivered"), "deferred": ("waiting", "Put off"), "failed": ("late", "Failed"),
    "permanent": ("attention", "Refused"), "lapsed": ("late", "No result"),
}  # fmt: skip
HEALTH = {
    "healthy": ("good", "Healthy"), "failing": ("late", "Failing"), "probing": ("late", "Probing"),
    "circuit_open": ("attention", "Left alone"), "paused": ("waiting", "Paused"),
    "disabled": ("attention", "Disabled"),
}  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """What an organization's outbox holds now."""

    blocked: int
    errors: int
    pending: int
    in_flight: int
    due_since: datetime | None


# What the head of a group waits for, when its time has not come.
LATER = {
    "retry": "failed and is tried again",
    "too_many_requests": "was put off by the receiver, which asked for less (429)",
    "not_acknowledged": "was put off by the receiver",
    "lease": "is sent again: its last call ended without a result",
}

# Paused and disabled endpoints, and receivers that are left alone, are not late.
_NOT_HELD = Q(target__open_until=None) & (
    Q(endpoint=None) | Q(endpoint__is_paused=False, endpoint__disabled_at=None, endpoint__pool__is_paused=False)
)


def counts(organization_id: int) -> Counts:
    own = Message.objects.of(organization_id)
    # Asked for as the indexes are kept, those with and without order apart.
    ordered = own.filter(~Q(mode=Mode.IMMEDIATE), status=Status.PENDING)
    immediate = own.filter(mode=Mode.IMMEDIATE, status=Status.PENDING)
    groups = MessageGroup.objects.of(organization_id)
    return Counts(
        blocked=_counted(groups.filter(blocked_by__isnull=False)),
        errors=_counted(own.filter(status=Status.ERROR)),
        pending=_counted(ordered) + _counted(immediate),
        in_flight=_counted(own.filter(in_flight=True, pool__isnull=False)),
        due_since=groups.filter(_NOT_HELD, wake_at__lte=clock.now()).aggregate(at=Min("wake_at"))["at"],
    )


def endpoints_of(organization_id: int) -> QuerySet[Endpoint]:
    return Endpoint.objects.of(organization_id).select_related("pool", "target").order_by("name")


# --- Groups ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One group as its row shows it: the state, in words what is so, since or until when, and about which
    message."""

    group: MessageGroup
    tone: str
    state: str
    words: str
    since: datetime | None = None
    until: datetime | None = None
    message: Message | None = None


def groups_in(organization_id: int, state: str) -> QuerySet[MessageGroup]:
    """`state` is "blocked", "busy" (in flight or waiting) or anything else for all."""
    found = MessageGroup.objects.of(organization_id).select_related("endpoint__pool", "target__pool")
    if state == "blocked":
        return found.filter(blocked_by__isnull=False).order_by("blocked_since", "id")
    if state == "busy":
        flying = Message.objects.of(organization_id).filter(in_flight=True, pool__isnull=False)
        ids = list(flying.exclude(mode=Mode.IMMEDIATE).values_list("group_id", flat=True)[:COUNT_LIMIT])
        return found.filter(Q(pk__in=ids) | Q(wake_at__isnull=False)).order_by("wake_at", "id")
    return found.order_by("-id")


def lines(groups: Sequence[MessageGroup]) -> list[Line]:
    """These groups, each with what stands at its head."""
    now = clock.now()
    rows = {row[0]: row for row in sql.rows(sql.HEADS, sql.heads_of([group.pk for group in groups], now))}
    wanted = {row[at] for row in rows.values() for at in (4, 5, 8) if row[at]}
    messages = Message.objects.in_bulk(wanted)
    full = _full_pools({pool for group in groups if (pool := _pool_of(group))})
    return [_line(group, rows.get(group.pk), messages, full, now) for group in groups]


def _pool_of(group: MessageGroup) -> DispatchPool | None:
    if group.endpoint:
        return group.endpoint.pool
    return group.target.pool if group.target else None


def _full_pools(pools: set[DispatchPool]) -> set[int]:
    """Ids of those whose places are all taken."""
    taken = Message.objects.filter(in_flight=True, pool__in=pools).values_list("pool").annotate(n=Count("pk"))
    numbers = dict(taken.order_by())
    return {pool.pk for pool in pools if numbers.get(pool.pk, 0) >= pool.concurrency}


def _line(
    group: MessageGroup,
    row: tuple[Any, ...] | None,
    messages: dict[int, Message],
    full: set[int],
    now: datetime,
) -> Line:
    _, wake_at, _, since, flying, head, due_at, _, held_by = row or (None,) * 9
    if held_by:
        bad = messages.get(held_by)
        words = f"Stopped by the error of message {held_by}: {bad.last_error if bad else ''}".rstrip(": ")
        return Line(group, "attention", "Blocked", words, since=since, message=bad)
    if flying:
        going = messages.get(flying)
        is_called = going is not None and going.status == Status.PROCESSING
        words = f"Message {flying} is {'being called' if is_called else 'on the queue'}"
        at = (going.started_at if is_called else going.queued_at) if going else None
        return Line(group, "calling", "In flight", words, since=at, message=going)
    if head and due_at and due_at > now:
        first = messages.get(head)
        waits_for = first.waiting_for if first else ""
        is_retry = waits_for == "retry"
        words = f"Message {head} {LATER.get(waits_for, 'waits for its time')}"
        return Line(
            group, "late" if is_retry else "waiting", "Retrying" if is_retry else "Waiting", words,
            until=due_at, message=first,
        )  # fmt: skip
    if head:
        return Line(group, *_held_up(group, head, full, now), since=wake_at, message=messages.get(head))
    return Line(group, "plain", "Idle", "Nothing waits")


def _held_up(group: MessageGroup, head: int, full: set[int], now: datetime) -> tuple[str, str, str]:
    endpoint, target, pool = group.endpoint, group.target, _pool_of(group)
    if endpoint and endpoint.disabled_at:
        return "attention", "Waiting", f"Message {head} waits: {endpoint.name} is disabled"
    if endpoint and endpoint.is_paused:
        return "waiting", "Waiting", f"Message {head} waits: {endpoint.name} is paused"
    if target and target.open_until:
        return "late", "Waiting", f"Message {head} waits: the receiver fails and is left alone for a while"
    if pool and pool.is_paused:
        return "waiting", "Waiting", f"Message {head} waits: the pool {pool.name} is paused"
    if pool and pool.pk in full:
        return "waiting", "In line", f"Message {head} is due: all places of the pool {pool.name} are taken"
    return "waiting", "In line", f"Message {head} is due"


def queue_of(group: MessageGroup) -> QuerySet[Message]:
    """What has not ended, and ERRORs, in their order."""
    own = group.messages.exclude(mode=Mode.IMMEDIATE).filter(status__in=[*OPEN, Status.ERROR])
    return own.select_related("endpoint__pool", "target__pool", "group").order_by("sequence", "created_at", "id")


# --- Messages ---------------------------------------------------------------------------

STATUS_CHOICES = (
    ("", "All"), ("open", "Not ended yet"), ("ERROR", "Error"), ("PENDING", "Pending"), ("QUEUED", "Queued"),
    ("PROCESSING", "Processing"), ("COMPLETED", "Completed"), ("CANCELLED", "Cancelled"), ("EXPIRED", "Expired"),
)  # fmt: skip
FILTERS = ("status", "endpoint", "type", "group", "id")


def messages_in(organization_id: int, asked: QueryDict) -> QuerySet[Message]:
    """The messages that fit the filters of an address, the newest first; a value that means nothing finds none."""
    found = Message.objects.of(organization_id).select_related("endpoint", "group").order_by("-id")
    status = asked.get("status", "")
    if status == "open":
        found = found.filter(status__in=OPEN)
    elif status:
        found = found.filter(status=status)
    for name, column in (("endpoint", "endpoint_id"), ("id", "pk")):
        if value := asked.get(name, "").strip():
            found = found.filter(**{f"{column}__in": read_ids([value])})
    for name, column in (("type", "type"), ("group", "group__name")):
        if value := asked.get(name, "").strip():
            found = found.filter(**{column: value.replace("\x00", "")})
    return found


def pretty(payload: str) -> str:
    """JSON to be read; anything else as it is."""
    try:
        return json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
    except ValueError:
        return payload


def _counted(rows: QuerySet[Any]) -> int:
    return rows.order_by()[:COUNT_LIMIT].count()
