"""What the RQ workers run for the schedules."""

from __future__ import annotations

from typing import Any

from dispatch.schedules.services import applying, bulk, working


def work(kind: str, pairs: list[list[int]]) -> None:
    """dispatch-<kind>-queue: runs to be done, as [id, epoch]."""
    working.work(kind, pairs)


def apply_status(run_ids: list[int], unwritten: list[list[Any]]) -> None:
    """dispatch-status-queue: these runs have reports; `unwritten` are those that could not be stored."""
    if unwritten:
        working.write(unwritten)
    applying.apply(run_ids)


def bulk_create(bulk_id: int) -> None:
    """dispatch-import-queue: the next part of a bulk creation."""
    bulk.work(bulk_id)
