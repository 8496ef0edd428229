"""Limits, schedules and runs for the tests of concurrency limits. No limit is exceeded at the end of any."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.schedules.kinds.base import Assignment, Outcome
from dispatch.schedules.models import ConcurrencyLimit, Run, Schedule
from dispatch.schedules.rules.outcomes import SUCCEEDED
from dispatch.schedules.services import concurrency_limits, worker
from tests.harness.schedules import ANA, World
from tests.support.histories import history_is_legal

IN_PROGRESS = ("in_progress", "running")


@pytest.fixture
def two(world: World) -> ConcurrencyLimit:
    """A limit of two runs."""
    return limited(world, 2)


@pytest.fixture(autouse=True)
def limits_hold(world: World) -> Iterator[None]:
    yield
    for limit in ConcurrencyLimit.objects.all():
        assert held(limit) <= limit.max_runs
    history_is_legal()


def limited(world: World, max_runs: int, key: str = "reports") -> ConcurrencyLimit:
    return concurrency_limits.create_limit(world.organization.pk, key, max_runs, actor=ANA)


def due(world: World, number: int, limit: ConcurrencyLimit | None, **fields: object) -> list[Schedule]:
    """Create schedules that run once, a second apart, and travel until all are due."""
    first = clock.now() + timedelta(seconds=1)
    made = [
        world.schedule(
            f"Report {place}", trigger_at=first + timedelta(seconds=place), concurrency_limit=limit, **fields
        )
        for place in range(number)
    ]
    world.travel(number + 1)
    return made


def held(limit: ConcurrencyLimit) -> int:
    """Return how many runs with the key are in progress, with distinct slots."""
    slots = Run.objects.filter(concurrency_limit=limit, status__in=IN_PROGRESS)
    found = list(slots.exclude(concurrency_slot=None).values_list("concurrency_slot", flat=True))
    assert len(found) == len(set(found))
    return len(found)


def states(made: list[Schedule]) -> list[str]:
    """Return the status of each schedule's only run; "waiting" if it waits for its key."""
    found = [Run.objects.get(schedule=schedule) for schedule in made]
    return ["waiting" if run.waiting_for == "concurrency" else run.status for run in found]


def run_of(schedule: Schedule) -> Run:
    return Run.objects.get(schedule=schedule)


def take(world: World) -> list[Assignment]:
    """Start what is queued in a worker that does not report."""
    pairs = [pair for message in world.messages() for pair in message.args[1]]
    return worker.start_runs(pairs)


def report(world: World, *started: Assignment, outcome: str = SUCCEEDED) -> None:
    """Report these runs, and let the status worker apply it."""
    worker.report_outcomes([(assignment, Outcome(outcome, {})) for assignment in started])
    world.settle()
