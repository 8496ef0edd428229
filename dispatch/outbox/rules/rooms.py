"""How much a pool and a target may take now: slots, tokens, and the circuit breaker."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

WINDOW_S = 60.0


@dataclass(frozen=True)
class Pool:
    """A message pool as it is now. `in_flight` counts QUEUED and PROCESSING, `queued` those that have not called
    yet; `full_at` is its rate bucket."""

    id: int
    concurrency: int
    rate_per_minute: int | None
    is_paused: bool
    full_at: datetime | None = None
    in_flight: int = 0
    queued: int = 0


@dataclass(frozen=True)
class Circuit:
    """A target's health: closed when `open_until` is None, else open until then, then probing."""

    failures: int = 0
    openings: int = 0
    open_until: datetime | None = None
    probe_until: datetime | None = None
    failing_since: datetime | None = None


@dataclass(frozen=True)
class Room:
    """`free` more may be taken now; when that is none, `again_at` is when to look again (None: when something
    changes)."""

    free: int
    again_at: datetime | None = None


# --- Rates: the generic cell rate algorithm ---


def burst(rate_per_minute: int) -> int:
    """How many may go at once after a pause: a tenth of the rate, at least one. No 60 s window then holds more
    than the rate plus this."""
    return max(1, math.ceil(rate_per_minute / 10))


def tokens(rate_per_minute: int, full_at: datetime | None, now: datetime) -> int:
    """How many calls may go now."""
    interval = WINDOW_S / rate_per_minute
    missing = max(0.0, (full_at - now).total_seconds()) if full_at else 0.0
    return max(0, math.floor(burst(rate_per_minute) - missing / interval + 1e-9))


def token_at(rate_per_minute: int, full_at: datetime | None, now: datetime) -> datetime:
    """When the next call may go."""
    if full_at is None or tokens(rate_per_minute, full_at, now):
        return now
    return full_at - timedelta(seconds=WINDOW_S / rate_per_minute * (burst(rate_per_minute) - 1))


def take(rate_per_minute: int, full_at: datetime | None, now: datetime, count: int) -> datetime:
    """The bucket after `count` calls."""
    base = max(full_at or now, now)
    return base + timedelta(seconds=WINDOW_S / rate_per_minute * count)


# --- Pools ---------------------------------------------------------------------------


def pool_room(pool: Pool, now: datetime) -> Room:
    """How many more messages may become QUEUED: never more than its slots and its tokens will let call."""
    if pool.is_paused:
        return Room(0)
    free = max(0, pool.concurrency - pool.in_flight)
    if pool.rate_per_minute:
        left = tokens(pool.rate_per_minute, pool.full_at, now) - pool.queued
        if left <= 0 < free:
            return Room(0, token_at(pool.rate_per_minute, pool.full_at, now))
        free = min(free, max(0, left))
    return Room(free)


def free_slots(concurrency: int, used: Iterable[int]) -> list[int]:
    """Slots (from 1) that new calls may take: as many as are missing to the concurrency, which may just have been
    lowered below a slot still in use."""
    taken = set(used)
    count = max(0, concurrency - len(taken))
    return [slot for slot in range(1, concurrency + 1) if slot not in taken][:count]


# --- Circuit breaker ---------------------------------------------------------------------------


def circuit_room(circuit: Circuit, now: datetime) -> Room:
    """A closed circuit sets no limit, an open one lets nothing through, a probing one a single message."""
    if circuit.open_until is None:
        return Room(10**9)
    if circuit.open_until > now:
        return Room(0, circuit.open_until)
    if circuit.probe_until and circuit.probe_until > now:
        return Room(0, circuit.probe_until)
    return Room(1)


def after_answer(circuit: Circuit, outcome: str, now: datetime) -> Circuit:
    """Somebody answers there: the circuit is closed. Only what was delivered ends `failing_since`: an endpoint
    that refuses everything for days fails too."""
    if outcome == "delivered":
        return Circuit()
    return Circuit(failing_since=circuit.failing_since or (now if outcome == "permanent" else None))


def after_failure(
    circuit: Circuit, now: datetime, *, threshold: int, open_s: float, longest_s: float, was_probe: bool
) -> Circuit:
    """Opens after `threshold` failures in a row, or when a probe failed: each time in a row twice as long."""
    failures = circuit.failures + 1
    since = circuit.failing_since or now
    closed = circuit.open_until is None
    if (closed and failures >= threshold) or (was_probe and not closed):
        pause = min(open_s * 2 ** min(circuit.openings, 16), longest_s)
        return Circuit(failures, circuit.openings + 1, now + timedelta(seconds=pause), None, since)
    return replace(circuit, failures=failures, failing_since=since)


# --- Lines: who is taken next ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Lane:
    """A target as the poller sees it: its circuit, its pool, and whether its endpoint is paused or disabled."""

    target_id: int
    pool: Pool
    circuit: Circuit = Circuit()
    is_held: bool = False
    has_groups: bool = False
    has_immediates: bool = False


class Rooms:
    """How many messages of each lane may be taken now; `take` counts them off lane and pool."""

    def __init__(self, lanes: Iterable[Lane], now: datetime) -> None:
        self._now = now
        self.lanes: dict[int, Lane] = {}
        self._pools: dict[int, int] = {}
        self._circuits: dict[int, int] = {}
        self._waits: list[datetime | None] = []
        self.add(lanes)

    def add(self, lanes: Iterable[Lane]) -> None:
        """Adds lanes that are not known yet; what was taken from their pools stays taken."""
        for lane in lanes:
            self.lanes[lane.target_id] = lane
            pool, circuit = pool_room(lane.pool, self._now), circuit_room(lane.circuit, self._now)
            self._pools.setdefault(lane.pool.id, pool.free)
            self._circuits[lane.target_id] = circuit.free
            if not lane.is_held:
                self._waits += [pool.again_at, circuit.again_at]

    @property
    def again_at(self) -> datetime | None:
        """When the first of the lanes that are closed for a time opens."""
        return min((at for at in self._waits if at), default=None)

    def free(self, target_id: int) -> int:
        """How many more of this target may go; an unknown or held one: none."""
        lane = self.lanes.get(target_id)
        if lane is None or lane.is_held:
            return 0
        return min(self._pools[lane.pool.id], self._circuits[target_id])

    def take(self, target_id: int) -> bool:
        """Takes one, if there is room."""
        if self.free(target_id) < 1:
            return False
        self._pools[self.lanes[target_id].pool.id] -= 1
        self._circuits[target_id] -= 1
        return True
