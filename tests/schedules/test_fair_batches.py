"""Organizations take turns among due runs, so that thousands of one delay no run of another."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from dispatch.core import clock
from dispatch.core.db import due_rows, prepared
from dispatch.core.runtime.queues import rq_queue
from dispatch.schedules import kinds, sql
from dispatch.schedules.models import Run
from dispatch.schedules.services import executor
from dispatch.schedules.services.executor import claim_due_runs, find_due_ids
from tests.harness.schedules import ALL, World
from tests.support.copies import copy_row
from tests.support.plans import explain_rows_read, forget_statistics

ROWS, BATCH = 3000, 40


def add_runs(world: World, count: int, since: datetime) -> list[int]:
    """Add a schedule with runs that have been due since that time, a millisecond apart."""
    schedule = world.schedule(trigger_at=since + timedelta(days=9), overlap="allow")
    due = {"due_at": f"'{since.isoformat()}'::timestamptz + n * interval '1 ms'", "number": "NULL"}
    assert copy_row(world.run(schedule), count, due) == count
    return list(Run.objects.filter(schedule=schedule, number=None).order_by("due_at").values_list("pk", flat=True))


def queue_of(run_id: int) -> str:
    return kinds.get_kind(Run.objects.get(pk=run_id).kind).queue


@pytest.mark.parametrize("due_s", [10, 3600])
def test_one_run_of_a_small_organization_is_in_the_first_batch(world: World, due_s: int) -> None:
    other, now = World(), clock.now()
    greedy = add_runs(world, ROWS, now - timedelta(seconds=due_s))
    (own,) = add_runs(other, 1, now)
    clock.travel(1)
    claimed = claim_due_runs(ALL, BATCH)
    served = Run.objects.filter(pk__in=greedy).exclude(status="scheduled").count()
    assert (claimed.taken, served) == (BATCH, BATCH - 1)
    assert Run.objects.get(pk=own).status == "in_progress"


@pytest.mark.parametrize("due_s", [1, 7200])
def test_runs_that_take_long_to_plan_delay_no_run_of_another_organization(
    world: World, due_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "PLANNING_S", -1.0)
    other, now = World(), clock.now()
    add_runs(world, 20, now - timedelta(days=1))
    (own,) = add_runs(other, 1, now - timedelta(seconds=due_s))
    assert claim_due_runs(ALL, BATCH).taken == 2
    assert Run.objects.get(pk=own).status == "in_progress"


def test_a_run_goes_before_the_queued_runs_of_a_greedy_organization(world: World, settings: Any) -> None:
    settings.SCHEDULE_CHUNK_SIZE = 10
    add_runs(world, 300, clock.now() - timedelta(seconds=10))
    assert claim_due_runs(ALL, 1000).taken == 300
    other = World()
    (own,) = add_runs(other, 1, clock.now())
    clock.travel(1)
    assert claim_due_runs(ALL, 1000).taken == 1
    messages = [[run_id for run_id, _ in job.args[1]] for job in rq_queue(queue_of(own)).get_jobs()]
    assert len(messages) == 31
    assert messages.index([own]) <= 1
    assert sum(map(len, messages)) == 301


def test_runs_of_many_organizations_share_messages(world: World, settings: Any) -> None:
    settings.SCHEDULE_CHUNK_SIZE = 10
    others = [add_runs(World(), 1, clock.now() - timedelta(seconds=10))[0] for _ in range(4)]
    many = add_runs(world, 25, clock.now() - timedelta(seconds=10))
    assert claim_due_runs(ALL, 1000).taken == 29
    messages = [[run_id for run_id, _ in job.args[1]] for job in rq_queue(queue_of(many[0])).get_jobs()]
    assert sorted(map(len, messages)) == [9, 10, 10]
    assert sorted(run_id for message in messages for run_id in message) == sorted([*many, *others])


def test_organizations_take_turns_among_late_runs_too_which_get_a_quarter(world: World) -> None:
    now = clock.now()
    expected = []
    for organization in (world, World()):
        late = add_runs(organization, 100, now - timedelta(hours=1))
        fresh = add_runs(organization, 100, now - timedelta(seconds=10))
        expected += [*fresh[: BATCH // 2], *late[: BATCH // 8]]
    assert sorted(find_due_ids(ALL, now, BATCH)) == sorted(expected)


def test_new_run_does_not_wait_for_late_runs_of_more_organizations_than_a_batch_has_places(world: World) -> None:
    now, batch = clock.now(), 4
    for _ in range(batch + 1):
        add_runs(World(), 2, now - timedelta(hours=1))
    (fresh,) = add_runs(world, 1, now - timedelta(seconds=10))
    ids = find_due_ids(ALL, now, batch)
    assert fresh in ids
    assert len(ids) == batch


def test_places_that_small_organizations_leave_go_to_the_greedy_one(world: World) -> None:
    now = clock.now()
    greedy = add_runs(world, 100, now - timedelta(seconds=10))
    small = [pk for _ in range(3) for pk in add_runs(World(), 2, now - timedelta(seconds=5))]
    assert sorted(find_due_ids(ALL, now, BATCH)) == sorted([*small, *greedy[: BATCH - 6]])


def test_batch_reads_few_of_the_due_runs_whatever_postgresql_knows(world: World) -> None:
    now = clock.now()
    for organization, count in ((world, ROWS), (World(), 3)):
        add_runs(organization, count, now - timedelta(hours=1))
    forget_statistics(["schedules_run"])
    index = sql.DUE_INDEX
    given = {"shards": list(ALL), "kinds": ["http"], "until": now, "limit": BATCH, "since": None, "share": 20}
    with transaction.atomic():
        prepared.execute(due_rows._IN_ORDER)
        owners = list(Run.objects.order_by().values_list("organization_id", flat=True).distinct())
        names = {"table": index.table, "due": index.due, "condition": index.condition}
        read = [
            explain_rows_read(statement.format(**names), {**given, "organizations": owners})
            for statement in (due_rows._ORGANIZATIONS, due_rows._FIRST_ROWS)
        ]
    assert max(read) <= BATCH, read
