"""Fixtures of the schedules' tests; at the end of each test, the invariants hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db.models import Count

from dispatch.core.db.snapshots import read_snapshot
from dispatch.core.models import Event
from dispatch.outbox import publisher
from dispatch.schedules.models import Run, Schedule
from tests.harness.schedules import World, noting


@pytest.fixture
def world(transactional_db: None, settings: Any) -> Iterator[World]:
    settings.LEADER_LEASE_S = 1000.0  # no lease may expire because the machine paused
    found = World()
    with noting(found.note):
        yield found
    promises_hold()


@pytest.fixture
def real(transactional_db: None) -> Iterator[World]:
    """A world with the kinds as they are."""
    publisher.reset()
    yield World()
    promises_hold()
    publisher.reset()


def promises_hold() -> None:
    """Check the invariants, which hold at any moment: processes may still act on the runs."""
    with read_snapshot():
        _rows_agree()


def _rows_agree() -> None:
    for schedule in Schedule.objects.defer("headers"):
        coming = Run.objects.filter(schedule=schedule, status="scheduled").exclude(number=None)
        wanted = 1 if schedule.status in ("active", "paused") else 0
        assert coming.count() == wanted, f"{schedule} is {schedule.status} and has {coming.count()} next runs"
        if wanted:
            assert coming.get().trigger_at == schedule.next_at
            assert coming.get().number == schedule.occurrences
            assert (coming.get().due_at is None) == (schedule.status == "paused")
    for run in Run.objects.exclude(status="scheduled"):
        last = Event.objects.filter(subject_type="run", subject_id=run.pk).order_by("id").last()
        assert last is not None, f"nothing tells of {run}"
        assert last.kind == f"run.{run.status}"
    twice = Run.objects.exclude(number=None).values("schedule", "number").annotate(n=Count("id")).filter(n__gt=1)
    assert not twice
