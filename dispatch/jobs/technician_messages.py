"""Let a higher slice send the technicians' texts through another channel as well.

The handler runs in the transaction of the change. It must be fast, and must not fail.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

OFFER, JOB, JOB_NEWS = "offer", "job", "job_news"
# (technician's id, what it is about, id of the offer, job or notice, which message about it, until when)
Handler = Callable[[int, str, int, int, datetime], None]
_handlers: list[Handler] = []


def register(handler: Handler) -> None:
    """Register a handler, once."""
    if handler not in _handlers:
        _handlers.append(handler)


def report(technician_id: int, kind: str, subject_id: int, *, until: datetime, attempt: int = 0) -> None:
    """Report a message to a technician. It is worthless after `until`."""
    for handler in _handlers:
        handler(technician_id, kind, subject_id, attempt, until)
