"""Which slots a purpose may take, and which number is chosen. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

ALERT, OFFER, LEAD = "alert", "offer", "lead"

# Seconds after which it is worth asking again, by the reason for which there was no line.
RETRY_IN_S = {"lines_busy": 1.0, "pool_full": 1.0, "no_number": 10.0, "pool_paused": 5.0}


@dataclass(frozen=True)
class NumberLimits:
    """An active number's lines: slots 1…`lines`, the topmost of them reserved."""

    id: int
    lines: int
    for_alerts: int = 0
    for_offers: int = 0


def slot_ranges(number: NumberLimits, purpose: str) -> list[tuple[int, int]]:
    """The (lowest, highest) slots that `purpose` may take on the number, in the order in which they are tried.

    Slots from the top: reserved for alerts, reserved for offers; the rest is everybody's. Whoever has reserved
    slots tries them first, so that the common ones stay free for the others."""
    offers_from = number.lines - number.for_alerts
    common = offers_from - number.for_offers
    ranges = [(1, common)]
    if purpose in (ALERT, OFFER):
        ranges.insert(0, (common + 1, offers_from))
    if purpose == ALERT:
        ranges.insert(0, (offers_from + 1, number.lines))
    return [(low, high) for low, high in ranges if low <= high]


def free_lines(
    numbers: Collection[NumberLimits], purpose: str, taken: Mapping[int, Collection[int]]
) -> Iterator[tuple[int, int]]:
    """(number id, slot) of every free line that `purpose` may take, the best first: the number with most free
    lines, its slots in the order of `slot_ranges`. `taken` maps a number's id to its slots in use; a number
    that carries as many calls as it has lines (it may have been made smaller) gives none."""
    for number in sorted(numbers, key=lambda n: (len(taken.get(n.id, ())) - n.lines, n.id)):
        used = taken.get(number.id, ())
        if len(used) >= number.lines:
            continue
        for low, high in slot_ranges(number, purpose):
            yield from ((number.id, slot) for slot in range(low, high + 1) if slot not in used)


def free_pool_slots(concurrency: int, taken: Collection[int]) -> Iterator[int]:
    """The pool's free slots, lowest first; none while it carries as many calls as it may."""
    if len(taken) < concurrency:
        yield from (slot for slot in range(1, concurrency + 1) if slot not in taken)


def pace_interval_s(calls_per_second: float) -> float:
    """Seconds from one request of an account to its next."""
    return 1.0 / calls_per_second
