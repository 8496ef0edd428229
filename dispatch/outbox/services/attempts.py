"""Start attempts: QUEUED → PROCESSING with a slot, a token and a lease, or refuse the pointer with a reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

from dispatch.core import clock, fault_injection
from dispatch.core.db.prepared import arrays, integers
from dispatch.outbox import metrics, sql
from dispatch.outbox.models import Endpoint
from dispatch.outbox.rules.admission import Circuit
from dispatch.outbox.services import pool_slots, scheduling
from dispatch.outbox.services.scheduling import Claim, StartedRow

log = structlog.get_logger(__name__)


class PointerRefused(Enum):
    """The reason why a pointer did not lead to an attempt. It is acknowledged in every case."""

    UNKNOWN = "unknown message"
    OVER = "no longer of this epoch"
    PUT_BACK = "requeued"
    EXPIRED = "expired"


@dataclass(frozen=True)
class NoShare:
    """The attempt has to wait: this organization has its share of the attempts of this process in progress."""

    organization_id: int


@dataclass(frozen=True)
class DeliveryAttempt:
    """Everything that is needed to make one attempt.

    `until` is when its lease ends, in `ticks()`. It counts from before the request to the database, so the real
    lease ends later.
    """

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
    slot: int
    is_probe: bool
    until: float
    # Why the attempt cannot be made; "" if it can.
    problem: str = ""
    deferred_since: datetime | None = None
    webhook_id: str | None = None
    replays: int = 0

    @property
    def public_id(self) -> str:
        return self.webhook_id or f"msg_{self.id}"

    @property
    def is_ordered(self) -> bool:
        return self.mode != "IMMEDIATE"

    @property
    def is_target_in_trouble(self) -> bool:
        return self.circuit != Circuit()


StartResult = DeliveryAttempt | PointerRefused | NoShare


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
    deferred_since: datetime | None
    webhook_id: str | None
    replays: int
    is_probe: bool = False
    slot: int = 0


def ticks() -> float:
    """Return monotonic seconds, shifted with the clock that tests move."""
    return time.monotonic() + clock.offset_ms() / 1000


def start_attempts(
    pointers: Sequence[tuple[int, int]], admit: Callable[[tuple[int, int], int], bool] | None = None
) -> tuple[list[StartResult], list[Claim]]:
    """Start an attempt for each (message id, epoch); return the results in this order, and claims to publish.

    At most one attempt starts per epoch. A message that cannot be sent now returns to PENDING without spending
    a retry. `admit(pointer, organization id)` says whether the organization has a share left: if not, nothing is
    changed, and the pointer can be started later.
    """
    asked, now = ticks(), clock.now()
    results: dict[tuple[int, int], StartResult] = {}
    waits: list[tuple[_Row, str]] = []
    expired: list[_Row] = []
    with transaction.atomic(), sql.pipeline(one_plan=True):
        read = _read_rows((message_id for message_id, _ in pointers), now)
        ready: list[_Row] = []
        for message_id, epoch in dict.fromkeys(pointers):
            row = read.get(message_id)
            if row is None:
                results[message_id, epoch] = PointerRefused.UNKNOWN
            elif row.epoch != epoch or row.status != "QUEUED":
                results[message_id, epoch] = PointerRefused.OVER
            elif row.expires_at and row.expires_at <= now:
                expired.append(row)
            elif admit is not None and not admit((message_id, epoch), row.organization_id):
                results[message_id, epoch] = NoShare(row.organization_id)
            elif reason := _closed(row, now):
                waits.append((row, reason))
            else:
                ready.append(row)
        started = _start(ready, waits, now, asked)
        if unused_probes := sorted({row.target_id for row, _ in waits if row.is_probe}):
            sql.execute(sql.UNPROBE, {"ids": unused_probes})
        fault_injection.crash_point("outbox.start.before_commit")
    fault_injection.crash_point("outbox.start.committed")
    results |= {(call.id, call.epoch): call for call in _build_attempts(started, asked)}
    claims = scheduling.requeue(
        [
            scheduling.RequeuedMessage(row.id, row.epoch, row.group_id, row.mode, waiting_for=why)
            for row, why in waits
        ]
        + [
            scheduling.RequeuedMessage(row.id, row.epoch, row.group_id, row.mode, status="EXPIRED")
            for row in expired
        ]
    )
    results |= {(row.id, row.epoch): PointerRefused.PUT_BACK for row, _ in waits}
    results |= {(row.id, row.epoch): PointerRefused.EXPIRED for row in expired}
    first = set()
    answers: list[StartResult] = []
    for pointer in pointers:  # the same pointer twice in one batch: one attempt
        again = pointer in first and isinstance(results.get(pointer), DeliveryAttempt)
        answers.append(PointerRefused.OVER if again else results.get(pointer, PointerRefused.OVER))
        first.add(pointer)
    return answers, claims


def build_started(rows: Sequence[StartedRow], asked: float) -> list[DeliveryAttempt]:
    """Return what is needed to make the attempts that `WaitingQueue.claim_and_start` has started.

    `asked`: `ticks()` before the request. Reads endpoints that have changed.
    """
    started = []
    for values in rows:
        row = _row(values)
        row.slot = values[-1]
        started.append((row, row.calls))
        metrics.delivery_seconds.observe(0.0)
    return _build_attempts(started, asked)


def renew_leases(calls: Sequence[DeliveryAttempt]) -> dict[tuple[int, int], float]:
    """Renew the leases of running attempts; return (message id, epoch) → new end in `ticks()`.

    An attempt that has lost its lease is missing from the result.
    """
    asked = ticks()
    given = arrays(sorted((call.id, call.epoch) for call in calls), ids=integers, epochs=integers)
    renewed = sql.fetch_all(sql.RENEW, {**given, "lease": settings.OUTBOX_LEASE_S})
    return {(row[0], row[1]): asked + settings.OUTBOX_LEASE_S for row in renewed}


def _closed(row: _Row, now: datetime) -> str:
    """Return why this message must not be sent to its target now, or "" if it may.

    If the circuit is probing, this message takes the probe.
    """
    if row.is_held:
        return "endpoint"
    if row.circuit.open_until is None:
        return ""
    if row.circuit.open_until > now:
        return "circuit"
    given = {"id": row.target_id, "now": now, "lease": settings.OUTBOX_LEASE_S}
    row.is_probe = bool(sql.fetch_all(sql.PROBE, given))
    return "" if row.is_probe else "circuit"


def _start(
    ready: list[_Row], waits: list[tuple[_Row, str]], now: datetime, asked: float
) -> list[tuple[_Row, int]]:
    """Assign the available slots and tokens; append the remaining rows to `waits`."""
    if not ready:
        return []
    taken: list[_Row] = []
    for row, assigned in zip(ready, pool_slots.assign_slots([row.pool_id for row in ready], now), strict=True):
        if assigned.slot is None:
            waits.append((row, assigned.why))
        else:
            row.slot = assigned.slot
            taken.append(row)
    return _store_start(taken, now) if taken else []


def _store_start(taken: list[_Row], now: datetime) -> list[tuple[_Row, int]]:
    """Make the messages PROCESSING in their slots; return those that were QUEUED, with the attempt's number.

    They are locked by id, as by user actions.
    """
    given = arrays(
        sorted((row.id, row.epoch, row.pool_id, row.slot) for row in taken),
        ids=integers, epochs=integers, pools=integers, slots=integers,
    )  # fmt: skip
    started = sql.fetch_all(sql.START, {**given, "from": "QUEUED", "now": now, "lease": settings.OUTBOX_LEASE_S})
    numbers = {message_id: number for message_id, number, _ in started}
    for _, _, queued_at in started:
        metrics.delivery_seconds.observe(max(0.0, (now - queued_at).total_seconds()))
    return [(row, numbers[row.id]) for row in taken if row.id in numbers]


def _read_rows(message_ids: Iterable[int], now: datetime) -> dict[int, _Row]:
    """Return the messages by id, with their groups, targets and endpoints' versions."""
    given = sql.fetch_all(sql.START_READ, {"ids": integers(message_ids), "now": now})
    return {row[0]: _row(row) for row in given}


def _row(values: Sequence[Any]) -> _Row:
    return _Row(*(*values[:18], Circuit(*values[18:23]), *values[23:27]))


def _build_attempts(started: Sequence[tuple[_Row, int]], asked: float) -> list[DeliveryAttempt]:
    """Return what is needed to make the attempts. Reads endpoints that have changed."""
    endpoints, problems = _endpoints([row for row, _ in started])
    return [_build_attempt(row, number, endpoints, problems, asked) for row, number in started]


def _build_attempt(
    row: _Row, number: int, endpoints: dict[int, Endpoint], problems: dict[int, str], asked: float
) -> DeliveryAttempt:
    endpoint = endpoints.get(row.endpoint_id) if row.endpoint_id else None
    return DeliveryAttempt(
        id=row.id, epoch=row.epoch, number=number, organization_id=row.organization_id, group_id=row.group_id,
        group=row.group, mode=row.mode, type=row.type, sequence=row.sequence,
        url=endpoint.url if endpoint else row.url, payload=row.payload, attempts=row.attempts, endpoint=endpoint,
        target_id=row.target_id, circuit=row.circuit, pool_id=row.pool_id, slot=row.slot,
        is_probe=row.is_probe, until=asked + settings.OUTBOX_LEASE_S,
        problem=problems.get(row.endpoint_id or 0, ""),
        deferred_since=row.deferred_since, webhook_id=row.webhook_id, replays=row.replays,
    )  # fmt: skip


def hold_queued(pointers: Sequence[tuple[int, int]], seconds: float) -> None:
    """Record that this process has the pointers, (id, epoch), of these QUEUED messages for `seconds`."""
    sql.execute(sql.HOLD_QUEUED, {**arrays(pointers, ids=integers, epochs=integers), "seconds": seconds})


# Endpoints as last read, by id, with the version of their row: decrypting secrets is expensive.
_known: dict[int, tuple[str | None, Endpoint]] = {}


def _endpoints(rows: Sequence[_Row]) -> tuple[dict[int, Endpoint], dict[int, str]]:
    """Return the endpoints of these rows by id, and the errors of those that cannot be read."""
    wanted = {row.endpoint_id: row.endpoint_version for row in rows if row.endpoint_id}
    endpoints: dict[int, Endpoint] = {}
    unreadable: dict[int, str] = {}
    for key, version in wanted.items():
        known = _known.get(key)  # other threads replace and remove it
        if known and known[0] == version:
            endpoints[key] = known[1]
            continue
        try:  # one at a time: an endpoint that cannot be decrypted must not affect the others
            endpoints[key] = Endpoint.objects.get(pk=key)
            _known[key] = (version, endpoints[key])
        except (ImproperlyConfigured, ValueError, Endpoint.DoesNotExist) as error:
            _known.pop(key, None)
            unreadable[key] = f"The endpoint's secret or headers cannot be read: {error}"
            log.error("endpoint_unreadable", endpoint=key, error=str(error))
    return endpoints, unreadable
