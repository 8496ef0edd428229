"""The beginning of a call: QUEUED → PROCESSING with a slot, a token and a lease, or why not."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from django.conf import settings
from django.db import transaction

from dispatch.core import clock, faults
from dispatch.outbox import metrics, sql
from dispatch.outbox.models import Endpoint
from dispatch.outbox.rules import rooms
from dispatch.outbox.rules.rooms import Circuit
from dispatch.outbox.services import putting_back
from dispatch.outbox.services.claims import Claim


class Refused(Enum):
    """Why a pointer does not lead to a call. In every case it is done with."""

    UNKNOWN = "unknown message"
    OVER = "not of this epoch any more"
    PUT_BACK = "put back to wait"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Call:
    """What one call needs. `until` is when its lease ends, in `ticks()`; it was asked for before the database gave
    it, so the real one ends later."""

    id: int
    epoch: int
    number: int
    organization_id: int
    group_id: int
    group: str
    mode: str
    type: str
    sequence: int
    url: str
    payload: str
    attempts: int
    endpoint: Endpoint | None
    target_id: int
    circuit: Circuit
    pool_id: int
    is_probe: bool
    until: float

    @property
    def is_ordered(self) -> bool:
        return self.mode != "IMMEDIATE"

    @property
    def is_target_in_trouble(self) -> bool:
        return self.circuit != Circuit()


@dataclass
class _Row:
    id: int
    epoch: int
    status: str
    organization_id: int
    group_id: int
    mode: str
    type: str
    sequence: int
    group: str
    url: str
    payload: str
    attempts: int
    calls: int
    expires_at: datetime | None
    endpoint_id: int | None
    endpoint_version: str | None
    is_held: bool
    target_id: int
    circuit: Circuit
    pool_id: int
    is_probe: bool = field(default=False)


def ticks() -> float:
    """Seconds that never jump, moved along with the tests' clock."""
    return time.monotonic() + clock.offset_ms() / 1000


def start(pointers: Sequence[tuple[int, int]]) -> tuple[list[Call | Refused], list[Claim]]:
    """Begins a call for each (message id, epoch), in the order given; and what may be published because of it.

    At most one call begins per epoch. Who cannot go now is put back to PENDING, which spends nothing."""
    asked, now = ticks(), clock.now()
    found: dict[tuple[int, int], Call | Refused] = {}
    waits: list[tuple[_Row, str]] = []
    expired: list[_Row] = []
    with transaction.atomic(), sql.pipelined(one_plan=True):
        given = sql.rows(sql.START_READ, {"ids": [message_id for message_id, _ in pointers]})
        read = {row[0]: _Row(*(*row[:18], Circuit(*row[18:23]), row[23])) for row in given}
        ready: list[_Row] = []
        for message_id, epoch in dict.fromkeys(pointers):
            row = read.get(message_id)
            if row is None:
                found[message_id, epoch] = Refused.UNKNOWN
            elif row.epoch != epoch or row.status != "QUEUED":
                found[message_id, epoch] = Refused.OVER
            elif row.expires_at and row.expires_at <= now:
                expired.append(row)
            elif reason := _closed(row, now):
                waits.append((row, reason))
            else:
                ready.append(row)
        started = _start(ready, waits, now, asked)
        if unmade := sorted({row.target_id for row, _ in waits if row.is_probe}):
            sql.do(sql.UNPROBE, {"ids": unmade})
        faults.point("outbox.start.before_commit")
    faults.point("outbox.start.committed")
    endpoints = _endpoints([row for row, *_ in started])
    for row, number in started:
        found[row.id, row.epoch] = _call(row, number, endpoints, asked)
    claims = putting_back.put_back(
        [putting_back.Return(row.id, row.epoch, row.group_id, row.mode, waiting_for=why) for row, why in waits]
        + [putting_back.Return(row.id, row.epoch, row.group_id, row.mode, status="EXPIRED") for row in expired]
    )
    found |= {(row.id, row.epoch): Refused.PUT_BACK for row, _ in waits}
    found |= {(row.id, row.epoch): Refused.EXPIRED for row in expired}
    first = set()
    answers: list[Call | Refused] = []
    for pointer in pointers:  # the same pointer twice in one batch: one call
        again = pointer in first and isinstance(found.get(pointer), Call)
        answers.append(Refused.OVER if again else found.get(pointer, Refused.OVER))
        first.add(pointer)
    return answers, claims


def renew(calls: Sequence[Call]) -> dict[int, float]:
    """Prolongs the leases of calls that still run; message id → when the new one ends, in `ticks()`, for those
    that still had theirs."""
    asked = ticks()
    given = {"ids": [c.id for c in calls], "epochs": [c.epoch for c in calls], "lease": settings.OUTBOX_LEASE_S}
    return {row[0]: asked + settings.OUTBOX_LEASE_S for row in sql.rows(sql.RENEW, given)}


def _closed(row: _Row, now: datetime) -> str:
    """Why this message's target may not be called now; "" when it may. A probe is taken here."""
    if row.is_held:
        return "endpoint"
    if row.circuit.open_until is None:
        return ""
    if row.circuit.open_until > now:
        return "circuit"
    given = {"id": row.target_id, "now": now, "lease": settings.OUTBOX_LEASE_S}
    row.is_probe = bool(sql.rows(sql.PROBE, given))
    return "" if row.is_probe else "circuit"


def _start(
    ready: list[_Row], waits: list[tuple[_Row, str]], now: datetime, asked: float
) -> list[tuple[_Row, int]]:
    """Gives slots and tokens to as many as there are; the rest joins `waits`. The gates' locks make the count
    exact over all routers, and the unique (pool, slot) has the last word."""
    if not ready:
        return []
    pools = sorted({row.pool_id for row in ready})
    locked, in_use = sql.ask(sql.LOCK_GATES, {"ids": pools}), sql.ask(sql.SLOTS_IN_USE, {"ids": pools})
    gates, slots_used = locked(), in_use()
    if len(gates) < len(pools):
        sql.do(sql.ADD_GATES, {"ids": pools, "now": now})
        gates = sql.rows(sql.LOCK_GATES, {"ids": pools})
        slots_used = sql.rows(sql.SLOTS_IN_USE, {"ids": pools})
    used: dict[int, list[int]] = defaultdict(list)
    for pool_id, slot in slots_used:
        used[pool_id].append(slot)
    by_pool: dict[int, list[_Row]] = defaultdict(list)
    for row in ready:
        by_pool[row.pool_id].append(row)
    taken: list[tuple[_Row, int]] = []
    buckets: list[tuple[int, datetime]] = []
    for pool_id, full_at, concurrency, rate, is_paused, at in gates:
        mine = by_pool[pool_id]
        slots = [] if is_paused else rooms.free_slots(concurrency, used[pool_id])
        tokens = rooms.tokens(rate, full_at, at) if rate else len(mine)
        count = min(len(mine), len(slots), tokens)
        taken += list(zip(mine[:count], slots, strict=False))
        why = "pool paused" if is_paused else "rate" if count == tokens < len(slots) else "slot"
        waits += [(row, why) for row in mine[count:]]
        if rate and count:
            buckets.append((pool_id, rooms.take(rate, full_at, at, count)))
    if buckets:
        ids, fulls = sql.columns(buckets, 2)
        sql.do(sql.SAVE_GATES, {"ids": ids, "fulls": fulls})
    if not taken:
        return []
    given: dict[str, Any] = dict(
        zip(
            ("ids", "epochs", "pools", "slots"),
            sql.columns([(row.id, row.epoch, row.pool_id, slot) for row, slot in taken], 4),
            strict=True,
        )
    )
    started = sql.rows(sql.START, {**given, "from": "QUEUED", "now": now, "lease": settings.OUTBOX_LEASE_S})
    numbers = {message_id: number for message_id, number, _ in started}
    for _, _, queued_at in started:
        metrics.delivery_seconds.observe(max(0.0, (now - queued_at).total_seconds()))
    return [(row, numbers[row.id]) for row, _ in taken if row.id in numbers]


def _call(row: _Row, number: int, endpoints: dict[int, Endpoint], asked: float) -> Call:
    endpoint = endpoints[row.endpoint_id] if row.endpoint_id else None
    return Call(
        id=row.id, epoch=row.epoch, number=number, organization_id=row.organization_id, group_id=row.group_id,
        group=row.group, mode=row.mode, type=row.type, sequence=row.sequence,
        url=endpoint.url if endpoint else row.url, payload=row.payload, attempts=row.attempts, endpoint=endpoint,
        target_id=row.target_id, circuit=row.circuit, pool_id=row.pool_id, is_probe=row.is_probe,
        until=asked + settings.OUTBOX_LEASE_S,
    )  # fmt: skip


# Endpoints as they were last read, by id, with the version of their row: decrypting secrets is dear.
_known: dict[int, tuple[str | None, Endpoint]] = {}


def _endpoints(rows: Sequence[_Row]) -> dict[int, Endpoint]:
    wanted = {row.endpoint_id: row.endpoint_version for row in rows if row.endpoint_id}
    missing = [key for key, version in wanted.items() if key not in _known or _known[key][0] != version]
    if missing:
        for endpoint in Endpoint.objects.filter(pk__in=missing):
            _known[endpoint.pk] = (wanted[endpoint.pk], endpoint)
    return {key: _known[key][1] for key in wanted}
