"""One failing row of a pass stops no other row; an unavailable database stops the pass."""

from __future__ import annotations

import time

import psycopg
import pytest
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from dispatch.core.db import isolation, lock_waits
from dispatch.core.db.isolation import FailureRule, run_each, run_unlocked
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.models import Leadership
from dispatch.core.runtime.loops import NothingSucceeded, Tally


def caused(cause: Exception) -> OperationalError:
    error = OperationalError(str(cause))
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("no"), caused(psycopg.errors.LockNotAvailable("held"))]
)
def test_one_bad_row_stops_no_other(error: Exception) -> None:
    seen: list[int] = []

    def step(item: int) -> int:
        seen.append(item)
        if item == 2:
            raise error
        return 1

    assert run_each(step, [1, 2, 3], event="row_failed") == 2
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    "error",
    [
        InterfaceError("closed"),
        OperationalError("gone"),
        caused(psycopg.errors.AdminShutdown("stops")),
        caused(psycopg.errors.TooManyConnections("full")),
    ],
)
def test_unavailable_database_stops_the_pass(error: Exception) -> None:
    def step(item: int) -> int:
        raise error

    with pytest.raises(type(error)):
        run_each(step, [1, 2], event="row_failed")


def fails(item: int) -> int:
    raise ValueError("no")


def test_item_that_keeps_failing_is_quarantined_after_its_last_attempt() -> None:
    failures = {1: 0}
    postponed: list[int] = []
    quarantined: list[tuple[int, str]] = []

    def count(item: int) -> int:
        failures[item] += 1
        return failures[item]

    rule = FailureRule[int](
        postponed.append,
        count,
        max_failures=3,
        quarantine=lambda item, error: quarantined.append((item, str(error))),
    )
    for _ in range(3):
        run_each(fails, [1], event="row_failed", rule=rule)
    assert postponed == [1, 1]
    assert quarantined == [(1, "no")]


def test_locked_row_is_postponed_and_not_counted_as_failed() -> None:
    postponed: list[int] = []

    def is_locked(item: int) -> int:
        raise caused(psycopg.errors.LockNotAvailable("held"))

    rule = FailureRule[int](postponed.append, lambda item: 99, max_failures=1, quarantine=pytest.fail)
    tally = Tally()
    run_each(is_locked, [1, 2], event="row_failed", rule=rule, count=tally)
    assert postponed == [1, 2]
    tally.check()


def test_step_whose_items_all_fail_is_known_to_have_failed() -> None:
    tally = Tally()
    run_each(fails, [1, 2], event="row_failed", count=tally)
    with pytest.raises(NothingSucceeded):
        tally.check()


def test_rule_that_fails_stops_no_other_item() -> None:
    seen: list[int] = []

    def step(item: int) -> int:
        seen.append(item)
        raise ValueError("no")

    run_each(step, [1, 2], event="row_failed", rule=FailureRule[int](fails))
    assert seen == [1, 2]


def test_pause_of_a_row_doubles_with_each_consecutive_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(lock_waits.time, "monotonic", lambda: now)
    skipped = RecentlyBlocked(10.0, longest_s=30.0)
    for pause_s in (10.0, 20.0, 30.0, 30.0):
        skipped.add(1)
        now += pause_s - 1
        assert 1 in skipped
        now += 2
        assert 1 not in skipped
    now += 60.0
    skipped.add(1)
    now += 11.0
    assert 1 not in skipped
    monkeypatch.setattr(lock_waits.time, "monotonic", time.monotonic)


@pytest.mark.django_db(transaction=True)
def test_rows_that_fail_at_the_front_do_not_starve_those_behind() -> None:
    for name in ("a", "b", "c"):
        Leadership.objects.create(name=name, holder="x", expires_at=timezone.now())
    done: list[str] = []

    def step(name: str) -> int:
        if name in ("a", "b"):
            raise ValueError("poison")
        done.append(name)
        return 1

    skipped = RecentlyBlocked(60.0)
    for _ in range(2):
        run_unlocked(step, Leadership.objects.order_by("name"), 2, event="row_failed", skipped=skipped)  # type: ignore[arg-type]
    assert done == ["c"]
    assert isolation.unlocked_ids(Leadership.objects.order_by("name"), 1) == ["a"]
