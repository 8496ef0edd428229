"""What comes of an attempt: succeeded, to be retried, or failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SUCCEEDED, FAILED, REFUSED = "succeeded", "failed", "refused"
RETRYING = "retrying"
# A run whose worker died may have been carried out: it is tried this often more in the same attempt, not oftener.
MOST_LAPSES = 1


@dataclass(frozen=True)
class Ending:
    """The run's status after the attempt, and, when it is `retrying`, in how many seconds it is tried again."""

    status: str
    delay_s: float = 0.0


def after(outcome: str, attempt: int, retry_schedule_s: Sequence[int], again_in_s: float | None = None) -> Ending:
    """What a report makes of its run. `attempt` counts from 1; `again_in_s`: what a receiver asked for, which may
    be later than the schedule says, never earlier. REFUSED is not tried again: it would be refused again."""
    if outcome == SUCCEEDED:
        return Ending(SUCCEEDED)
    if outcome == REFUSED or attempt > len(retry_schedule_s):
        return Ending(FAILED)
    return Ending(RETRYING, max(float(retry_schedule_s[attempt - 1]), again_in_s or 0.0))
