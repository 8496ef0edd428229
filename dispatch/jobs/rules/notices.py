"""Notices to technicians: what is left to say after several changes, and until when a notice may wait."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

# News after which the technician has the job, and news after which they do not.
GAINS, LOSSES = ("assigned", "reopened"), ("cancelled", "reassigned")


def combine_news(unsent: str, news: str) -> str | None:
    """Return what to say if `news` follows an earlier notice of the same job that was never sent, or None.

    Nothing is left to say to a technician who never learned of a job that they have lost again. One who never
    learned that they had lost it learns that it has changed.
    """
    if unsent in GAINS:
        return None if news in LOSSES else unsent
    return "changed" if news in GAINS else news


def may_wait(quiet_end: datetime | None, begins: Iterable[datetime | None]) -> datetime | None:
    """Return until when a notice waits: the end of the quiet hours, or None if it must be sent now.

    `begins`: the known times at which the work or the trip to it began or begins. A job that begins before the
    quiet hours end cannot wait.
    """
    if quiet_end is None or any(begin is not None and begin < quiet_end for begin in begins):
        return None
    return quiet_end
