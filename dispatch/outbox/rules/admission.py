"""Decide how many messages a pool and a target may take now: slots, tokens, and the circuit breaker."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

WINDOW_S = 60.0
# When to check a rate again if queued messages need all its tokens: one of their attempts must start first.
CLAIMED_TOKENS_WAIT_S = 1.0


@dataclass(frozen=True)
class Pool:
    """A message pool's current state.

    `in_flight` counts QUEUED and PROCESSING messages, `queued` those without a started attempt. `full_at` is
    when its rate bucket is full again, by the database's clock, which shows `db_now`.
    """

    id: int
    concurrency: int
    rate_per_minute: int | None
    is_paused: bool
    full_at: datetime | None = None
    in_flight: int = 0
    queued: int = 0
    db_now: datetime | None = None


@dataclass(frozen=True)
class Circuit:
    """A target's circuit: closed if `open_until` is None, else open until then, then probing."""

    failures: int = 0
    openings: int = 0
    open_until: datetime | None = None
    probe_until: datetime | None = None
    failing_since: datetime | None = None


@dataclass(frozen=True)
class Headroom:
    """`free` more may be taken now. If 0, `again_at` is when to check again (None: when something changes)."""

    free: int
    again_at: datetime | None = None


# --- Rates: the generic cell rate algorithm ---


def burst_size(rate_per_minute: int) -> int:
    """Return how many attempts may start at once after a pause: a tenth of the rate, at least one.

    No window of 60 s then holds more attempts than the rate plus this burst.
    """
    return max(1, math.ceil(rate_per_minute / 10))


def available_tokens(rate_per_minute: int, full_at: datetime | None, now: datetime) -> int:
    """Return how many attempts may start now."""
    interval = WINDOW_S / rate_per_minute
    missing = max(0.0, (full_at - now).total_seconds()) if full_at else 0.0
    return max(0, math.floor(burst_size(rate_per_minute) - missing / interval + 1e-9))


def token_at(rate_per_minute: int, full_at: datetime | None, now: datetime) -> datetime:
    """Return when the next attempt may start."""
    if full_at is None or available_tokens(rate_per_minute, full_at, now):
        return now
    return full_at - timedelta(seconds=WINDOW_S / rate_per_minute * (burst_size(rate_per_minute) - 1))


def token_wait_s(rate_per_minute: int, full_at: datetime | None, now: datetime, place: int) -> float:
    """Return the seconds until the token of the request at this position of the queue, counted from 0."""
    first = (token_at(rate_per_minute, full_at, now) - now).total_seconds()
    return max(0.0, first) + place * WINDOW_S / rate_per_minute


def unclaimed_token_wait_s(rate_per_minute: int, full_at: datetime | None, now: datetime, queued: int) -> float:
    """Return the seconds until there is a token that none of the `queued` messages needs."""
    interval, burst = WINDOW_S / rate_per_minute, burst_size(rate_per_minute)
    if queued >= burst:  # there are never more tokens
        return max(CLAIMED_TOKENS_WAIT_S, interval)
    missing = (full_at - now).total_seconds() if full_at else 0.0
    return max(0.0, missing - interval * (burst - queued - 1))


def take_tokens(rate_per_minute: int, full_at: datetime | None, now: datetime, count: int) -> datetime:
    """Return when the bucket is full again after `count` attempts."""
    base = max(full_at or now, now)
    return base + timedelta(seconds=WINDOW_S / rate_per_minute * count)


# --- Pools ---------------------------------------------------------------------------


def pool_headroom(pool: Pool, now: datetime) -> Headroom:
    """Return how many more messages may become QUEUED: never more than the free slots and tokens."""
    if pool.is_paused:
        return Headroom(0)
    free = max(0, pool.concurrency - pool.in_flight)
    if pool.rate_per_minute:
        at = pool.db_now or now
        left = available_tokens(pool.rate_per_minute, pool.full_at, at) - pool.queued
        if left <= 0 < free:
            wait_s = unclaimed_token_wait_s(pool.rate_per_minute, pool.full_at, at, pool.queued)
            return Headroom(0, now + timedelta(seconds=wait_s))
        free = min(free, max(0, left))
    return Headroom(free)


def free_slots(concurrency: int, used: Iterable[int]) -> list[int]:
    """Return the slots, numbered from 1, that new attempts may take.

    The slots in use count against the concurrency even if it was just lowered below their numbers.
    """
    taken = set(used)
    count = max(0, concurrency - len(taken))
    return [slot for slot in range(1, concurrency + 1) if slot not in taken][:count]


# --- Circuit breaker ---------------------------------------------------------------------------


def circuit_headroom(circuit: Circuit, now: datetime) -> Headroom:
    """Return a circuit's headroom: unlimited if closed, none if open, a single message if probing."""
    if circuit.open_until is None:
        return Headroom(10**9)
    if circuit.open_until > now:
        return Headroom(0, circuit.open_until)
    if circuit.probe_until and circuit.probe_until > now:
        return Headroom(0, circuit.probe_until)
    return Headroom(1)


def after_answer(circuit: Circuit, outcome: str) -> Circuit:
    """Return the circuit after a response: closed. Only a delivery clears `failing_since`."""
    if outcome == "delivered":
        return Circuit()
    return Circuit(failing_since=circuit.failing_since)


def after_failure(
    circuit: Circuit, now: datetime, *, threshold: int, open_s: float, longest_s: float, was_probe: bool
) -> Circuit:
    """Return the circuit after a failure.

    It opens after `threshold` consecutive failures or a failed probe, each consecutive time for twice as long.
    """
    failures = circuit.failures + 1
    closed = circuit.open_until is None
    if (closed and failures >= threshold) or (was_probe and not closed):
        pause = min(open_s * 2 ** min(circuit.openings, 16), longest_s)
        return Circuit(failures, circuit.openings + 1, now + timedelta(seconds=pause), None, circuit.failing_since)
    return replace(circuit, failures=failures)


# --- Targets: which may take the next message --------------------------------------------------------------------


@dataclass(frozen=True)
class TargetState:
    """A target's circuit, pool and waiting messages. `is_held`: its endpoint is paused or disabled."""

    target_id: int
    pool: Pool
    circuit: Circuit = Circuit()
    is_held: bool = False
    has_groups: bool = False
    has_immediates: bool = False
    organization_id: int = 0


class AdmissionState:
    """Track how many more messages of each target may be taken; `take` counts against target and pool."""

    def __init__(self, targets: Iterable[TargetState], now: datetime) -> None:
        self._now = now
        self.targets: dict[int, TargetState] = {}
        self._pools: dict[int, int] = {}
        self._circuits: dict[int, int] = {}
        self._waits: list[datetime | None] = []
        self.add(targets)

    def add(self, targets: Iterable[TargetState]) -> None:
        """Add targets that are not known yet; messages already taken still count against their pools."""
        for target in targets:
            self.targets[target.target_id] = target
            if target.is_held:
                continue
            pool, circuit = pool_headroom(target.pool, self._now), circuit_headroom(target.circuit, self._now)
            self._pools.setdefault(target.pool.id, pool.free)
            self._circuits[target.target_id] = circuit.free
            self._waits += [pool.again_at, circuit.again_at]

    @property
    def again_at(self) -> datetime | None:
        """Return when the first target without headroom may take a message again."""
        return min((at for at in self._waits if at), default=None)

    def free(self, target_id: int) -> int:
        """Return how many more messages of this target may be taken; 0 if it is unknown or held."""
        target = self.targets.get(target_id)
        if target is None or target.is_held:
            return 0
        return min(self._pools[target.pool.id], self._circuits[target_id])

    def take(self, target_id: int) -> bool:
        """Take one message of this target; return False if there is no headroom."""
        if self.free(target_id) < 1:
            return False
        self._pools[self.targets[target_id].pool.id] -= 1
        self._circuits[target_id] -= 1
        return True
