"""What the event log must say about runs: one worker at a time, epochs that increase, one run per occurrence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from dispatch.core.events import history
from dispatch.core.events.history import Entry, Machine, Scope, stream
from dispatch.schedules.models import Run, RunStatus
from dispatch.schedules.rules.states import LEGAL


class RunHistory(Machine):
    """Follow one run by `rules.states.LEGAL`. Its token is the epoch."""

    type: ClassVar[str] = "run"
    table: ClassVar[str] = Run._meta.db_table
    steps_are_pruned: ClassVar[bool] = True
    begins_with: ClassVar[frozenset[str]] = frozenset(
        verb for verb, before in LEGAL.items() if RunStatus.SCHEDULED in before
    )

    def __init__(self) -> None:
        super().__init__()
        self._is_first = True

    def follow(self, entry: Entry) -> None:
        if self._is_first and self.has_begun(entry) and entry.data.get("epoch") in (None, 1):
            self.status = RunStatus.SCHEDULED
        self._is_first = False
        if entry.verb not in LEGAL:
            return
        self.move(LEGAL[entry.verb], entry.verb)
        (self.raise_token if entry.verb == RunStatus.IN_PROGRESS else self.keep_token)(entry.data.get("epoch"))


# The number of an occurrence is unique in its schedule; a damaged index would no longer notice. The index does not
# know the further occurrences of a stretch.
_REPEATED = """
SELECT schedule_id, number, array[before, id] FROM (
    SELECT id, schedule_id, number, lag(id) OVER w AS before, lag(number + stretch_count) OVER w AS after_before
    FROM schedules_run WHERE number IS NOT NULL WINDOW w AS (PARTITION BY schedule_id ORDER BY number, id)
) r
WHERE number < after_before ORDER BY schedule_id, number
"""


def check_occurrences(scope: Scope) -> Iterator[str]:
    """Yield a line for each occurrence with several runs."""
    for schedule_id, number, runs in stream(_REPEATED, {}):
        yield f"schedule {schedule_id}: occurrence {number} has the runs {', '.join(map(str, runs))}"


def register() -> None:
    """Register the checks. Called when the applications are ready."""
    history.register(RunHistory)
    history.register_check("runs of an occurrence", check_occurrences)
