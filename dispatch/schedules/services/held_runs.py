"""Try held runs again as soon as their endpoint or pool is resumed, instead of at their next try.

A held run is tried again within six minutes anyway, so nothing is lost if a process dies before it has woken the
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog
from django.db import DatabaseError, transaction

from dispatch.core import clock, events
from dispatch.core.db.prepared import fetch_all
from dispatch.core.models import Event
from dispatch.core.runtime import queues
from dispatch.schedules import sql
from dispatch.schedules.services.shards import EXECUTOR

log = structlog.get_logger(__name__)

# Event → `waiting_for` of the runs that it concerns.
WAKES = {
    "endpoint.resumed": ("endpoint",),
    "endpoint.enabled": ("endpoint", "circuit"),
    "pool.resumed": ("pool paused",),
}
# Of more runs, the others wait for their next try.
MAX_WOKEN = 5000


def wake_after(event: Event) -> None:
    """Wake the runs that this event concerns, after its commit."""
    if reasons := WAKES.get(event.kind):
        endpoint = str(event.data.get("name", "")) if event.subject_type == "endpoint" else ""
        transaction.on_commit(partial(_try_to_wake, event.organization_id, reasons, endpoint), robust=True)


def wake_held_runs(organization_id: int, reasons: Sequence[str], endpoint: str = "") -> int:
    """Make the runs that are held for these reasons due now; return how many.

    With `endpoint`, only those that call it. Locked runs are skipped: they are being tried.
    """
    given = {
        "organization": organization_id, "reasons": list(reasons), "endpoint": endpoint, "most": MAX_WOKEN,
        "now": clock.now(),
    }  # fmt: skip
    woken = fetch_all(sql.WAKE_HELD, given)
    if woken:
        queues.notify_loop(EXECUTOR)
    return len(woken)


def _try_to_wake(organization_id: int, reasons: Sequence[str], endpoint: str) -> None:
    try:
        wake_held_runs(organization_id, reasons, endpoint)
    except DatabaseError as error:
        log.warning("held_runs_not_woken", organization=organization_id, error=str(error).strip())


def register() -> None:
    """Follow the events of this process."""
    events.on_append(wake_after)
