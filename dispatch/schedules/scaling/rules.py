"""How many workers a queue should have: pure. Up at once, down slowly, so that a lull between two waves of work
does not stop what the next one needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """`per_worker`: how many waiting jobs one worker is thought to keep up with; `oldest_s`: how long the oldest
    may wait before there must be more; `calm_s`: how long fewer must have been enough before one is stopped."""

    minimum: int
    maximum: int
    per_worker: int = 10
    oldest_s: float = 2.0
    calm_s: float = 60.0


@dataclass(frozen=True)
class Seen:
    """A queue now: jobs waiting, the age of the oldest of them in seconds, jobs being worked on."""

    waiting: int
    oldest_s: float
    busy: int = 0


@dataclass(frozen=True)
class Decision:
    """How many workers there should be, why in a few words, and since when (seconds on the caller's clock) fewer
    would have been enough, None while they would not."""

    workers: int
    why: str
    calm_since: float | None = None


def decide(policy: Policy, seen: Seen, workers: int, calm_since: float | None, now: float) -> Decision:
    """What to do about a queue that has `workers` of them. One step up at most doubles them; one step down stops
    one, and begins a new calm."""
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


def within(cap: int, wanted: Mapping[str, int], minimums: Mapping[str, int]) -> dict[str, int]:
    """The wanted numbers, cut so that they are not above `cap` in all: whoever is furthest above its minimum gives
    first, and no queue loses its minimum (which may be more than the cap: that is refused at start)."""
    given = dict(wanted)
    while sum(given.values()) > cap:
        most = max(given, key=lambda name: (given[name] - minimums[name], name))
        if given[most] <= minimums[most]:
            break
        given[most] -= 1
    return given
