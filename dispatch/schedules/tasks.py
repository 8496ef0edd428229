"""Define the RQ tasks of schedules."""

from __future__ import annotations

from typing import Any

from dispatch.schedules.services import bulk_import, calendars, results, worker


def work(kind: str, pairs: list[list[int]]) -> None:
    """Execute these runs, given as [id, epoch]. Queue: dispatch-<kind>-queue."""
    worker.work_runs(kind, pairs)


def apply_status(run_ids: list[int], unwritten: list[list[Any]]) -> None:
    """Apply the reports of these runs. Queue: dispatch-status-queue.

    `unwritten` are reports that the worker could not store; they are stored first.
    """
    if unwritten:
        worker.store_reports(unwritten)
    results.apply_reports(run_ids)


def bulk_create(bulk_id: int) -> None:
    """Process the next parts of a bulk import. Queue: dispatch-import-queue."""
    bulk_import.work_import(bulk_id)


def refresh_calendar(calendar_id: int, refresh_at: str = "") -> None:
    """Read an exclusion calendar again and apply it to schedules. Queue: dispatch-import-queue."""
    calendars.refresh_calendar(calendar_id, refresh_at)
