"""Admit and end direct requests: HTTP requests that belong to no message, such as those of scheduled runs.

They pass the same gates as messages: their endpoint's pause, their target's circuit, and their pool's slots and
rate. Their results count in the health of their target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from django.db import transaction

from dispatch.core import clock
from dispatch.core.runtime import queues
from dispatch.outbox import sql
from dispatch.outbox.models import Endpoint
from dispatch.outbox.rules.admission import Circuit
from dispatch.outbox.rules.responses import Verdict
from dispatch.outbox.services import pool_slots, target_health
from dispatch.outbox.services.intake import find_target

# A slot is held for longer than its request can take, so that only a dead process loses it.
LEASE_MARGIN_S = 15.0


@dataclass(frozen=True)
class DirectRequest:
    """One request. `holder` names who makes it, for logs; `number` distinguishes it in the target's health.

    `own_headers` replace configured `headers` of the same name. With an endpoint, the request has its headers and
    signature, and passes its pool.
    """

    holder: str
    number: int
    organization_id: int
    method: str
    url: str
    body: bytes
    timeout_s: float
    endpoint: Endpoint | None = None
    webhook_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    own_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def receiver(self) -> str:
        """Return the name of the receiver in sentences."""
        return f"endpoint {self.endpoint.name}" if self.endpoint else f"server {urlsplit(self.url).hostname or ''}"


@dataclass(frozen=True)
class Admitted:
    """A request that may be sent now. It holds a slot of its pool until `end_requests`."""

    request: DirectRequest
    target_id: int
    circuit: Circuit
    is_probe: bool
    pool_id: int
    lease_id: int
    took_last_slot: bool = False

    @property
    def id(self) -> int:
        return -self.request.number

    @property
    def endpoint(self) -> Endpoint | None:
        return self.request.endpoint

    @property
    def is_target_in_trouble(self) -> bool:
        return self.circuit != Circuit()


@dataclass(frozen=True)
class Held:
    """A request that must not be sent now: `why` is a stable key, `error` a sentence.

    `wait_s` is the shortest time after which another try makes sense, as far as it is known.
    """

    request: DirectRequest
    why: str
    error: str
    wait_s: float = 0.0
    pool_id: int = 0


@dataclass(frozen=True)
class DirectResult:
    """The result of an admitted request."""

    call: Admitted
    verdict: Verdict
    ended_at: datetime
    elapsed_s: float
    status_code: int | None = None
    answer: str = ""


@dataclass
class _Row:
    target_id: int
    circuit: Circuit
    pool_id: int
    is_paused: bool
    is_disabled: bool
    is_probe: bool = False


def admit_requests(requests: Sequence[DirectRequest]) -> list[Admitted | Held]:
    """Decide for each request whether it may be sent now, and reserve a slot and a token for those that may."""
    now = clock.now()
    targets = _targets(requests)
    answers: dict[int, Admitted | Held] = {}
    with transaction.atomic():
        known = {
            row[0]: _Row(row[0], Circuit(*row[1:6]), *row[6:])
            for row in sql.fetch_all(sql.DIRECT_TARGETS, {"ids": sorted(set(targets))})
        }
        ready: list[tuple[int, _Row, bool]] = []
        # Probes lock their targets: in the order of ids, as everywhere.
        for index in sorted(range(len(requests)), key=targets.__getitem__):
            request, row = requests[index], known.get(targets[index])
            if row is None:
                answers[index] = Held(request, "endpoint", f"The {request.receiver} was deleted.")
            elif held := _closed(request, row, now):
                answers[index] = held
            else:
                ready.append((index, row, row.circuit.open_until is not None))
        ready.sort(key=lambda one: one[0])
        answers |= _take_slots(requests, ready, now)
        unused = [row.target_id for index, row, is_probe in ready if is_probe and isinstance(answers[index], Held)]
        if unused:
            sql.execute(sql.UNPROBE, {"ids": sorted(unused)})
    return [answers[index] for index in range(len(requests))]


def end_requests(results: Sequence[DirectResult]) -> None:
    """Free the slots and record the results in the health of the targets."""
    now = clock.now()
    with transaction.atomic():
        if target_health.is_concerned(results):
            target_health.update_circuits(results, now)
        target_health.clear_failures(results, now)
        sql.execute(sql.END_DIRECT, {"ids": [result.call.lease_id for result in results]})
    _wake_messages([result.call for result in results])
    target_health.disable_gone(results)


def release_requests(admitted: Sequence[Admitted]) -> None:
    """Free the slots of requests without a result: they were not sent, or they were closed."""
    if not admitted:
        return
    with transaction.atomic():
        if probes := sorted({call.target_id for call in admitted if call.is_probe}):
            sql.execute(sql.UNPROBE, {"ids": probes})
        sql.execute(sql.END_DIRECT, {"ids": [call.lease_id for call in admitted]})
    _wake_messages(admitted)


def _wake_messages(ended: Sequence[Admitted]) -> None:
    """Wake the poller if messages may have waited for these slots."""
    if any(call.took_last_slot for call in ended):
        queues.notify_loop(target_health.POLLER)


def _targets(requests: Sequence[DirectRequest]) -> list[int]:
    """Return the target of each request, creating new ones; 0 if its endpoint was deleted."""
    known: dict[tuple[int, int | None, str], int] = {}
    found = []
    for request in requests:
        parts = urlsplit(request.url)
        key = (request.organization_id, request.endpoint.pk if request.endpoint else None,
               "" if request.endpoint else f"{parts.scheme}://{parts.netloc}")  # fmt: skip
        if key not in known:
            known[key] = find_target(request.organization_id, key[1], request.url) or 0
        found.append(known[key])
    return found


def _closed(request: DirectRequest, row: _Row, now: datetime) -> Held | None:
    """Return why this request must not be sent to its target now, or None if it may.

    If the circuit is probing, this request takes the probe.
    """
    if row.is_disabled:
        return Held(request, "endpoint", f"The {request.receiver} is disabled.")
    if row.is_paused:
        return Held(request, "endpoint", f"The {request.receiver} is paused.")
    if row.circuit.open_until is None:
        return None
    error = f"The {request.receiver} isn't responding."
    if row.circuit.open_until > now:
        return Held(request, "circuit", error, (row.circuit.open_until - now).total_seconds())
    given = {"id": row.target_id, "now": now, "lease": request.timeout_s + LEASE_MARGIN_S}
    return None if sql.fetch_all(sql.PROBE, given) else Held(request, "circuit", error)


def _take_slots(
    requests: Sequence[DirectRequest], ready: Sequence[tuple[int, _Row, bool]], now: datetime
) -> dict[int, Admitted | Held]:
    """Reserve slots and tokens; return an answer for each of these requests, by its index."""
    if not ready:
        return {}
    answers: dict[int, Admitted | Held] = {}
    chosen = []
    assigned = pool_slots.assign_slots([row.pool_id for _, row, _ in ready], now)
    for (index, row, is_probe), given in zip(ready, assigned, strict=True):
        if given.slot is None:
            answers[index] = Held(requests[index], given.why, _REASONS[given.why], given.wait_s, row.pool_id)
        else:
            chosen.append((index, row, is_probe, given))
    if not chosen:
        return answers
    sql.execute(sql.DELETE_LAPSED_DIRECT, {"pools": sorted({row.pool_id for _, row, _, _ in chosen})})
    values = [
        (requests[index].organization_id, row.pool_id, given.slot, requests[index].timeout_s + LEASE_MARGIN_S)
        for index, row, _, given in chosen
    ]
    organizations, pools, slots, seconds = sql.columns(values, 4)
    added = sql.fetch_all(
        sql.ADD_DIRECT, {"organizations": organizations, "pools": pools, "slots": slots, "seconds": seconds}
    )
    leases = {(pool_id, slot): lease_id for lease_id, pool_id, slot in added}
    for index, row, is_probe, given in chosen:
        lease_id = leases[row.pool_id, given.slot or 0]
        answers[index] = Admitted(
            requests[index], row.target_id, row.circuit, is_probe, row.pool_id, lease_id, given.is_last
        )
    return answers


_REASONS = {
    "pool paused": "The message pool is paused.",
    "rate": "The message pool's rate is used up.",
    "slot": "The message pool has no free slot.",
}
