"""Decide the result of an attempt: succeeded, to be retried, or failed permanently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SUCCEEDED, FAILED, REFUSED, CANCELLED = "succeeded", "failed", "refused", "cancelled"
RETRYING = "retrying"
# How often a run whose worker died is requeued within the same attempt: the worker may have executed it.
MAX_LAPSES = 1


@dataclass(frozen=True)
class Ending:
    """The run's status after the attempt and, if `retrying`, the seconds until the retry."""

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
    canceled: it is neither retried nor a failure of its schedule.
    """
    if outcome == SUCCEEDED:
        return Ending(SUCCEEDED)
    if outcome == CANCELLED or is_cancel_requested:
        return Ending(CANCELLED)
    if outcome == REFUSED or attempt > len(retry_schedule_s):
        return Ending(FAILED)
    return Ending(RETRYING, max(float(retry_schedule_s[attempt - 1]), again_in_s or 0.0))
