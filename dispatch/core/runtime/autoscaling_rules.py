"""Decide in pure functions how many workers a queue should have.

Scale up immediately and down slowly, so that a pause between two bursts of work does not stop needed workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """The scaling policy of a queue.

    `per_worker` is how many waiting jobs one worker can handle, `oldest_s` how long the oldest job may wait before
    workers are added, and `calm_s` how long fewer workers must have sufficed before a worker is stopped.
    """

    minimum: int
    maximum: int
    per_worker: int = 10
    oldest_s: float = 2.0
    calm_s: float = 60.0


@dataclass(frozen=True)
class QueueState:
    """The state of a queue: jobs waiting, the age of the oldest of them in seconds, jobs in progress."""

    waiting: int
    oldest_s: float
    busy: int = 0


@dataclass(frozen=True)
class Decision:
    """The number of workers that there should be, a short reason, and since when fewer would have sufficed.

    `calm_since` is in seconds on the caller's clock, or None if fewer would not suffice.
    """

    workers: int
    why: str
    calm_since: float | None = None


def decide(policy: Policy, seen: QueueState, workers: int, calm_since: float | None, now: float) -> Decision:
    """Decide how many workers a queue should have that has `workers` now.

    One step up at most doubles the workers. One step down stops one worker and starts a new calm period.
    """
    needed = max(policy.minimum, math.ceil(seen.waiting / policy.per_worker))
    why = f"{seen.waiting} waiting"
    if seen.waiting and seen.oldest_s > policy.oldest_s and needed <= workers:
        needed, why = workers + 1, f"the oldest of {seen.waiting} waits {seen.oldest_s:.0f} s"
    needed = min(needed, policy.maximum)
    if workers < policy.minimum:
        return Decision(policy.minimum, "the minimum")
    if workers > policy.maximum:
        return Decision(policy.maximum, "the maximum")
    if needed > workers:
        return Decision(min(needed, 2 * max(workers, 1)), why)
    if max(needed, seen.busy) >= workers:
        return Decision(workers, why)
    since = now if calm_since is None else calm_since
    if now - since < policy.calm_s:
        return Decision(workers, f"calm for {now - since:.0f} s", since)
    return Decision(workers - 1, f"calm for {now - since:.0f} s", now)


def cap_workers(cap: int, wanted: Mapping[str, int], minimums: Mapping[str, int]) -> dict[str, int]:
    """Reduce the wanted numbers to a total of at most `cap`.

    The queue furthest above its minimum is reduced first. No queue gets fewer workers than its minimum; minimums
    that exceed the cap in total are rejected at startup.
    """
    given = dict(wanted)
    while sum(given.values()) > cap:
        largest = max(given, key=lambda name: (given[name] - minimums[name], name))
        if given[largest] <= minimums[largest]:
            break
        given[largest] -= 1
    return given
