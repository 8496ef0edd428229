"""Read the data of the outbox's pages, for one organization. Counts stop at COUNT_LIMIT."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet
from django.http import QueryDict

from accounts.models import Organization
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.ids import read_ids
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.outbox import sql
from dispatch.outbox.models import Endpoint, Message, MessageGroup, Mode, Status
from dispatch.outbox.services import scheduling
from dispatch.outbox.services.creation_times import created_before, created_since
from dispatch.outbox.services.pool_slots import find_full_pools

PAGE = 50
COUNT_LIMIT = 10_000
OPEN = (Status.PENDING, Status.QUEUED, Status.PROCESSING)

TONES = {
    "PENDING": "waiting", "QUEUED": "calling", "PROCESSING": "calling", "COMPLETED": "good", "ERROR": "attention",
    "CANCELLED": "off", "EXPIRED": "late",
}  # fmt: skip
OUTCOMES = {
    "delivered": ("good", mark("Delivered")), "deferred": ("waiting", mark("Deferred")),
    "failed": ("late", mark("Failed")), "permanent": ("attention", mark("Refused")),
    "lapsed": ("late", mark("No result")),
}  # fmt: skip
HEALTH = {
    "healthy": ("good", mark("Healthy")), "deferring": ("late", mark("Deferring")),
    "failing": ("late", mark("Failing")), "probing": ("late", mark("Probing")),
    "circuit_open": ("attention", mark("Circuit open")), "paused": ("waiting", mark("Paused")),
    "disabled": ("attention", mark("Disabled")),
}  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """The current counts of an organization's outbox. `due_since`: when its oldest overdue message was due."""

    blocked: int
    errors: int
    pending: int
    in_flight: int
    due_since: datetime | None


# The names of events without their subject, which the histories show.
EVENT_NAMES = (
    mark("accepting"), mark("added"), mark("cancelled"), mark("certificate_expiring"),
    mark("certificate_replaced"), mark("changed"), mark("circuit_closed"), mark("circuit_opened"),
    mark("completed"), mark("created"), mark("deferred"), mark("deferring"), mark("deleted"), mark("disabled"),
    mark("enabled"), mark("erased"), mark("expired"), mark("failed"), mark("ignored"), mark("lapsed"),
    mark("missed_sent"), mark("paused"), mark("processing"), mark("queued"), mark("replayed"), mark("resolved"),
    mark("resumed"), mark("retried"), mark("retrying"), mark("secret_rotated"),
)  # fmt: skip
# `waiting_for` of a group's head that is not due yet → text.
LATER = {
    "retry": mark("Message {message} failed and will be retried"),
    "too_many_requests": mark("Message {message} was deferred by the receiver, which is limiting requests (429)"),
    "not_acknowledged": mark("Message {message} was deferred by the receiver"),
    "lookup": mark(
        "Message {message} is waiting because too many other names of your receivers are being looked up"
    ),
    "lease": mark("Message {message} will be sent again: its last attempt ended without a result"),
}


def count_outbox(organization_id: int) -> Counts:
    """Return the counts above every page of the outbox."""
    own = Message.objects.of(organization_id)
    # Ordered and unordered messages are queried separately, to match the partial indexes.
    ordered = own.filter(~Q(mode=Mode.IMMEDIATE), status=Status.PENDING)
    immediate = own.filter(mode=Mode.IMMEDIATE, status=Status.PENDING)
    groups = MessageGroup.objects.of(organization_id)
    return Counts(
        blocked=_count_rows(groups.filter(blocked_by__isnull=False)),
        errors=_count_rows(own.filter(status=Status.ERROR)),
        pending=_count_rows(ordered) + _count_rows(immediate),
        in_flight=_count_rows(own.filter(in_flight=True, pool__isnull=False)),
        due_since=scheduling.oldest_due(clock.now(), organization_id),
    )


def endpoints_of(organization_id: int) -> QuerySet[Endpoint]:
    """Return the organization's endpoints by name."""
    return Endpoint.objects.of(organization_id).select_related("pool", "target").order_by("name")


# --- Groups ---------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupRow:
    """One group as its row shows it.

    `words` describes the state, which began at `since` or lasts until `until`. `message` is the message concerned.
    """

    group: MessageGroup
    tone: str
    state: str
    words: str
    since: datetime | None = None
    until: datetime | None = None
    message: Message | None = None


def groups_in(organization_id: int, state: str) -> QuerySet[MessageGroup]:
    """Return the groups that are "blocked" or "busy" (in flight or waiting), or all for any other `state`."""
    groups = MessageGroup.objects.of(organization_id).select_related("endpoint__pool", "target__pool")
    if state == "blocked":
        return groups.filter(blocked_by__isnull=False).order_by("blocked_since", "id")
    if state == "busy":
        in_flight = Message.objects.of(organization_id).filter(in_flight=True, pool__isnull=False)
        ids = list(in_flight.exclude(mode=Mode.IMMEDIATE).values_list("group_id", flat=True)[:COUNT_LIMIT])
        return groups.filter(Q(pk__in=ids) | Q(wake_at__isnull=False)).order_by("wake_at", "id")
    return groups.order_by("-id")


def group_rows(groups: Sequence[MessageGroup]) -> list[GroupRow]:
    """Return a row for each of these groups."""
    now = clock.now()
    rows = {row[0]: row for row in sql.fetch_all(sql.HEADS, sql.heads_of([group.pk for group in groups], now))}
    ids = {row[at] for row in rows.values() for at in (4, 5, 8) if row[at]}
    messages = Message.objects.in_bulk(ids)
    full = find_full_pools({pool for group in groups if (pool := _pool_of(group))})
    return [_group_row(group, rows.get(group.pk), messages, full, now) for group in groups]


def _pool_of(group: MessageGroup) -> DispatchPool | None:
    if group.endpoint:
        return group.endpoint.pool
    return group.target.pool if group.target else None


# Of a row of `sql.HEADS`: when to wake, blocked since, in flight, head, its due time, held by.
_HEAD_COLUMNS = (1, 3, 4, 5, 6, 8)


def _group_row(
    group: MessageGroup,
    row: tuple[Any, ...] | None,
    messages: dict[int, Message],
    full: set[int],
    now: datetime,
) -> GroupRow:
    wake_at, since, in_flight, head, due_at, held_by = (row[at] for at in _HEAD_COLUMNS) if row else (None,) * 6
    if held_by:
        blocking = messages.get(held_by)
        words = _("Blocked by the error of message {message}: {error}").format(
            message=held_by, error=blocking.last_error if blocking else ""
        )
        return GroupRow(group, "attention", mark("Blocked"), words.rstrip(": "), since=since, message=blocking)
    if in_flight:
        sending = messages.get(in_flight)
        is_called = sending is not None and sending.status == Status.PROCESSING
        words = _("Message {message} is being delivered") if is_called else _("Message {message} is queued")
        words = words.format(message=in_flight)
        at = (sending.started_at if is_called else sending.queued_at) if sending else None
        return GroupRow(group, "calling", mark("In flight"), words, since=at, message=sending)
    until = due_at if due_at and due_at > now else None
    if head and until and not _is_held(group):
        first = messages.get(head)
        waits_for = first.waiting_for if first else ""
        is_retry = waits_for == "retry"
        words = _(LATER.get(waits_for, mark("Message {message} is waiting until it is due")))
        tone, state = ("late", mark("Retrying")) if is_retry else ("waiting", mark("Waiting"))
        return GroupRow(group, tone, state, words.format(message=head), until=until, message=first)
    if head:
        since = None if until else wake_at
        return GroupRow(group, *_held_messages(group, head, full), since=since, message=messages.get(head))
    return GroupRow(group, "plain", mark("Idle"), _("No messages waiting"))


def _is_held(group: MessageGroup) -> bool:
    """Return whether the endpoint or the pool is paused or disabled: its messages wait, whenever they are due."""
    endpoint, pool = group.endpoint, _pool_of(group)
    is_endpoint_held = endpoint is not None and (endpoint.is_paused or endpoint.disabled_at is not None)
    return is_endpoint_held or (pool is not None and pool.is_paused)


def _held_messages(group: MessageGroup, head: int, full: set[int]) -> tuple[str, str, str]:
    endpoint, target, pool = group.endpoint, group.target, _pool_of(group)
    tone, state = "waiting", mark("Waiting")
    if endpoint and endpoint.disabled_at:
        tone, words = "attention", _("Message {message} is waiting: {endpoint} is disabled")
    elif endpoint and endpoint.is_paused:
        words = _("Message {message} is waiting: {endpoint} is paused")
    elif target and target.open_until:
        tone, words = "late", _("Message {message} is waiting: the receiver is failing, so its circuit is open")
    elif pool and pool.is_paused:
        words = _("Message {message} is waiting: the pool {pool} is paused")
    elif pool and pool.pk in full:
        state, words = mark("Due"), _("Message {message} is due: all slots of the pool {pool} are in use")
    else:
        state, words = mark("Due"), _("Message {message} is due")
    names = {"endpoint": endpoint.name if endpoint else "", "pool": pool.name if pool else ""}
    return tone, state, words.format(message=head, **names)


def queue_of(group: MessageGroup) -> QuerySet[Message]:
    """Return the open messages of the group and those in error, in delivery order."""
    own = group.messages.exclude(mode=Mode.IMMEDIATE).filter(status__in=[*OPEN, Status.ERROR])
    return own.select_related("endpoint__pool", "target__pool", "group").order_by("sequence", "id")


# --- Messages ---------------------------------------------------------------------------

STATUS_CHOICES = (
    ("", mark("All")), ("open", mark("Open")), ("ERROR", mark("Error")), ("PENDING", mark("Pending")),
    ("QUEUED", mark("Queued")), ("PROCESSING", mark("Processing")), ("COMPLETED", mark("Completed")),
    ("CANCELLED", mark("Canceled")), ("EXPIRED", mark("Expired")),
)  # fmt: skip
FILTERS = ("status", "endpoint", "type", "group", "since", "until", "id")


def messages_in(organization_id: int, query: QueryDict) -> QuerySet[Message]:
    """Return the messages that match the filters of a URL, newest first; an invalid value matches none."""
    matches = Message.objects.of(organization_id).select_related("endpoint", "group").order_by("-id")
    status = query.get("status", "")
    if status == "open":
        matches = matches.filter(status__in=OPEN)
    elif status:
        matches = matches.filter(status=status)
    for name, column in (("endpoint", "endpoint_id"), ("id", "pk")):
        if value := query.get(name, "").strip():
            matches = matches.filter(**{f"{column}__in": read_ids([value])})
    for name, column in (("type", "type"), ("group", "group__name")):
        if value := query.get(name, "").strip():
            matches = matches.filter(**{column: value.replace("\x00", "")})
    for name in ("since", "until"):
        if value := query.get(name, "").strip():
            at = _read_time(organization_id, value)
            if at is None:
                return matches.none()
            narrow = created_since if name == "since" else created_before
            matches = narrow(matches, organization_id, at)
    return matches


def _read_time(organization_id: int, text: str) -> datetime | None:
    """Return the time that a form gives in the organization's zone, or None if it is invalid."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            zone = Organization.objects.values_list("time_zone", flat=True).get(pk=organization_id)
            at = at.replace(tzinfo=ZoneInfo(zone))
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def format_json(payload: str) -> str:
    """Format JSON for display; return anything else unchanged."""
    try:
        return json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
    except ValueError:
        return payload


def _count_rows(rows: QuerySet[Any]) -> int:
    return rows.order_by()[:COUNT_LIMIT].count()
