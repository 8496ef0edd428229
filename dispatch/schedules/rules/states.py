"""The state machine of a run."""

from __future__ import annotations

from collections.abc import Mapping

_WAITING = frozenset({"scheduled", "retrying"})
_RUNNING = frozenset({"running"})

# The verb of an event, which is the new status → the statuses before it. A run has no event of its creation: it is
# `scheduled`, or created as `skipped` or `missed`.
LEGAL: Mapping[str, frozenset[str]] = {
    "in_progress": _WAITING | _RUNNING,  # claimed, or requeued after its worker died or gave it back
    "running": frozenset({"in_progress"}),
    "succeeded": _RUNNING,
    "failed": _RUNNING,
    # After an attempt, because a user wants it, or because it waits for a slot of its concurrency limit.
    "retrying": _RUNNING | _WAITING | {"failed"},
    "skipped": _WAITING,
    "missed": _WAITING,
    "cancelled": _WAITING | _RUNNING | {"in_progress"},
}
