"""Decide the result of an attempt: succeeded, to be retried, or failed permanently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SUCCEEDED, FAILED, REFUSED, CANCELLED = "succeeded", "failed", "refused", "cancelled"
# The attempt could not be made: its endpoint is paused, a circuit is open, or a pool has no headroom.
DEFERRED = "deferred"
RETRYING = "retrying"
# The first and the longest delay of a deferred attempt, and the share of the time that it has waited already.
FIRST_DEFERRAL_S, LONGEST_DEFERRAL_S, DEFERRAL_SHARE = 1.0, 300.0, 0.25
# How often a run whose worker died is requeued within the same attempt: the worker may have executed it.
MAX_LAPSES = 1


@dataclass(frozen=True)
class Ending:
    """The run's status after the attempt and, if `retrying`, the seconds until the next attempt."""

    status: str
    delay_s: float = 0.0


def ending_after(
    outcome: str,
    attempt: int,
    retry_schedule_s: Sequence[int],
    again_in_s: float | None = None,
    *,
    is_cancel_requested: bool = False,
) -> Ending:
    """Decide a run's status from its report. `attempt` counts from 1.

    `again_in_s` is the delay that a receiver asked for; it can only lengthen the scheduled delay. A REFUSED run is
    not retried, because it would be refused again. A run whose cancellation was requested has succeeded or is
    canceled: it is neither retried nor a failure of its schedule. A DEFERRED attempt is made
    again in `again_in_s`.
    """
    if outcome == SUCCEEDED:
        return Ending(SUCCEEDED)
    if outcome == CANCELLED or is_cancel_requested:
        return Ending(CANCELLED)
    if outcome == DEFERRED:
        return Ending(RETRYING, again_in_s or FIRST_DEFERRAL_S)
    if outcome == REFUSED or attempt > len(retry_schedule_s):
        return Ending(FAILED)
    return Ending(RETRYING, max(float(retry_schedule_s[attempt - 1]), again_in_s or 0.0))


def deferral_s(deferred_s: float, wait_s: float, chance: float) -> float:
    """Return the delay of an attempt that has been deferred for `deferred_s` seconds.

    It grows with the wait, so that many waiting runs cost little, and it is never shorter than `wait_s`. `chance`
    is a random number from 0 to 1 that spreads runs.
    """
    grown = min(max(deferred_s * DEFERRAL_SHARE, FIRST_DEFERRAL_S), LONGEST_DEFERRAL_S)
    return max(grown * (1 + 0.2 * chance), wait_s)
