"""A loop with a condition rests while it has nothing to do, and one statement asks for all loops that rest."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import OperationalError, connection
from structlog.testing import capture_logs

from dispatch.core import clock, events
from dispatch.core.events import SYSTEM
from dispatch.core.events.readers import EventReader
from dispatch.core.models import EventCursor
from dispatch.core.runtime import due_checks
from dispatch.core.runtime.due_checks import DueChecks
from dispatch.core.runtime.loops import Loop, all_loops
from tests.core.loops import runs
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

HOLDS = "EXISTS (SELECT FROM accounts_organization WHERE name = 'Due')"
FAILS = "(SELECT 1 / count(*) FROM accounts_organization WHERE name = '') = 1"


def check(loop: Loop) -> bool:
    checks = DueChecks([Loop("other", lambda: None, 1.0, due=FAILS), loop])
    return bool(checks.find_due([loop.name]))


def test_resting_loop_runs_when_its_condition_holds() -> None:
    steps: list[int] = []
    with runs(Loop("rests", lambda: steps.append(1), 0.05, due=HOLDS, rest_s=3600)):
        wait_until(lambda: len(steps) == 1)
        factories.organization(name="Due")
        wait_until(lambda: len(steps) > 2)


def test_resting_loop_does_nothing_while_its_condition_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_checks, "LATE_S", PATIENCE)  # a busy machine answers late, and then every loop runs
    steps: list[int] = []
    neighbor: list[int] = []
    with runs(
        Loop("rests", lambda: steps.append(1), 0.05, due=HOLDS, rest_s=3600),
        Loop("neighbor", lambda: neighbor.append(1), 0.05, due="true"),
    ):
        wait_until(lambda: len(neighbor) > 3)
    assert len(steps) == 1


def test_rest_ends_by_itself() -> None:
    steps: list[int] = []
    with runs(Loop("rests", lambda: steps.append(1), 0.01, due="false", rest_s=0.05)):
        wait_until(lambda: len(steps) > 2)


def test_loop_that_names_its_next_time_does_not_rest() -> None:
    steps: list[int] = []

    def step() -> float:
        steps.append(1)
        return 0.02

    with runs(Loop("hasty", step, 3600, due="false", rest_s=3600)):
        wait_until(lambda: len(steps) > 2)


def test_loops_run_at_their_interval_while_conditions_cannot_be_checked() -> None:
    steps: list[int] = []
    with runs(Loop("rests", lambda: steps.append(1), 0.05, due=FAILS, rest_s=3600)):
        wait_until(lambda: len(steps) > 2)


def test_loops_run_at_their_interval_while_a_check_hangs() -> None:
    steps: list[float] = []
    hangs = "(SELECT pg_sleep(60)) IS NULL"
    with runs(
        Loop("rests", lambda: steps.append(time.monotonic()), 0.5, due="false", rest_s=3600),
        Loop("hangs", lambda: None, 0.05, due=hangs, rest_s=3600),
    ):
        wait_until(lambda: len(steps) > 4)  # the first check is canceled meanwhile, and the next one hangs as well


def test_checks_that_hang_for_a_while_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_checks, "REPORT_AFTER_S", 0.5)
    hangs = "(SELECT pg_sleep(60)) IS NULL"
    with capture_logs() as logs, runs(Loop("hangs", lambda: None, 0.05, due=hangs, rest_s=3600)):
        wait_until(lambda: [entry for entry in logs if entry["event"] == "due_checks_failed"])


def test_check_that_fails_once_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_checks, "REPORT_AFTER_S", PATIENCE)
    steps: list[int] = []
    with capture_logs() as logs, runs(Loop("rests", lambda: steps.append(1), 0.05, due=FAILS, rest_s=3600)):
        wait_until(lambda: len(steps) > 2)
    assert [entry for entry in logs if entry["event"] == "due_checks_failed"] == []


def test_late_check_triggers_loops_and_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_checks, "LATE_S", 0.01)
    monkeypatch.setattr(due_checks, "CHECK_S", PATIENCE)
    triggered, answered = threading.Event(), threading.Event()

    class LateChecks(DueChecks):
        def find_due(self, names: Collection[str]) -> frozenset[str]:
            assert triggered.wait(PATIENCE)
            answered.set()
            return frozenset()

        def _trigger_in_time(self, name: str, trigger: Callable[[str], None]) -> None:
            triggered.set()

    async def watch() -> None:
        stopping, notified = asyncio.Event(), asyncio.Event()
        loop = Loop("rests", lambda: None, PATIENCE, due="false", rest_s=3600)
        checks = LateChecks([loop])
        resting = asyncio.create_task(checks.rest(loop, notified))
        await asyncio.sleep(0)  # the loop begins to rest
        watching = asyncio.create_task(checks.watch(stopping, lambda name: None))
        assert await asyncio.to_thread(answered.wait, PATIENCE)
        stopping.set()
        notified.set()
        await asyncio.gather(watching, resting)

    with capture_logs() as logs:
        asyncio.run(watch())
    assert [entry for entry in logs if entry["event"] == "due_checks_failed"] == []


def end_connection_of_checks() -> bool:
    """Terminate the connection of the checks in this database; return whether one showed a check."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
            " AND query LIKE 'SELECT CASE WHEN%%' AND pid <> pg_backend_pid()"
        )
        return bool(cursor.fetchone()[0])


def test_checks_go_on_after_their_connection_was_lost() -> None:
    steps: list[int] = []
    checked: list[int] = []
    with runs(
        Loop("rests", lambda: steps.append(1), 0.05, due=HOLDS, rest_s=3600),
        Loop("neighbor", lambda: checked.append(1), 0.05, due="true"),
    ):
        wait_until(lambda: len(checked) > 1)
        wait_until(end_connection_of_checks)  # between two checks the connection shows another statement
        factories.organization(name="Due")
        wait_until(lambda: len(steps) > 3)


def test_postgresql_cancels_a_check_that_hangs() -> None:
    checks = DueChecks([Loop("hangs", lambda: None, 1.0, due="(SELECT pg_sleep(60)) IS NULL")])
    with pytest.raises(OperationalError, match="statement timeout"):
        checks.find_due(["hangs"])


def test_loop_with_work_runs_no_earlier_than_at_its_interval() -> None:
    steps: list[float] = []
    with runs(Loop("busy", lambda: steps.append(time.monotonic()), 0.3, due="true", rest_s=3600)):
        wait_until(lambda: len(steps) > 3)
    assert min(later - earlier for earlier, later in pairwise(steps)) >= 0.3


def test_conditions_of_other_loops_are_not_evaluated() -> None:
    assert check(Loop("this", lambda: None, 1.0, due="true"))


def test_condition_holds_early_for_an_exact_time() -> None:
    at = clock.now() + timedelta(seconds=0.5)
    literal = f"'{at.isoformat()}'::timestamptz"
    assert check(Loop("exact", lambda: None, 1.0, due=f"{literal} <= %(soon)s"))
    assert not check(Loop("exact", lambda: None, 1.0, due=f"{literal} <= %(now)s"))


def test_every_loop_is_checked_in_one_statement() -> None:
    loops = [loop for loop in all_loops() if isinstance(loop, Loop) and loop.due]
    checks = DueChecks(loops)
    assert len(loops) >= 15
    assert checks.find_due([loop.name for loop in loops]) <= {loop.name for loop in loops}


def test_condition_of_a_reader_holds_until_it_has_read() -> None:
    ours = factories.organization()
    read: list[int] = []
    reader = EventReader("checked", lambda found: read.extend(event.pk for event in found), ("job.created",))
    loop = Loop("reader", lambda: None, 1.0, due=reader.is_due())
    assert check(loop)  # it has no cursor yet
    while reader.step():
        pass
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        EventCursor.objects.filter(name="checked").update(xid=cursor.fetchone()[0] - 1)
    events.append(ours.pk, "job.completed", 1, actor=SYSTEM)
    assert not check(loop)  # of a kind that it does not read
    events.append(ours.pk, "job.created", 1, actor=SYSTEM)
    assert check(loop)
    while reader.step():
        pass
    assert read
    assert not check(loop)
