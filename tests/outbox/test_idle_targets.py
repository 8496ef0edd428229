"""The cost of a claim does not depend on targets that have nothing to send, or that belong to somebody else."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from accounts.models import Organization
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.events import SYSTEM
from dispatch.outbox import poller, sql
from dispatch.outbox.models import Message, Target
from dispatch.outbox.services import scheduling, target_health
from dispatch.outbox.services.intake import NewMessage, accept_messages
from dispatch.outbox.services.scheduling import claim_next, polled, refilled
from dispatch.outbox.services.target_rotation import TargetRotation
from tests.harness.outbox import World
from tests.support import factories
from tests.support.plans import forget_statistics, pretend_empty

IDLE = 5000
TABLES = [
    "outbox_message",
    "outbox_messagegroup",
    "outbox_target",
    "outbox_endpoint",
    "capacity_dispatchpool",
    "outbox_poolgate",
]
STEPS = 200
CROWD = 3 * STEPS // 2


def scans(node: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each table of a plan with the number of rows that were read from it."""
    if table := node.get("Relation Name"):
        read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield table, read * node["Actual Loops"]
    for child in node.get("Plans", []):
        yield from scans(child)


def rows_read(statement: str, given: dict[str, Any]) -> Counter[str]:
    """Return how many rows of each table the statement reads in a claim's pipeline, without statistics."""
    forget_statistics(TABLES)
    return rows_read_as_planned(statement, given)


def rows_read_as_planned(statement: str, given: dict[str, Any]) -> Counter[str]:
    with transaction.atomic(), prepared.pipeline(one_plan=True), prepared.index_order():
        plan = prepared.fetch_all("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, given)[0][0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    read: Counter[str] = Counter()
    for table, rows in scans(plan[0]["Plan"]):
        read[table] += round(rows)
    return read


def states_of(world: World, *, pools: bool) -> dict[str, Any]:
    """Return the parameters of TARGET_STATES for the pools of the world's organization, or for a poll."""
    turns = TargetRotation(STEPS).parameters([world.organization.pk] if pools else None)
    return {"now": clock.now(), "pools": [world.pool.pk] if pools else None, "targets": [], **turns}


def analyze(tables: Sequence[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE " + ", ".join(tables))


def crowd(organization: Organization, *, due: bool) -> None:
    """Let messages to many servers wait: ordered ones, and as many unordered ones to others."""
    at = None if due else clock.now() + timedelta(days=1)
    for mode in ("BLOCK_ON_ERROR", "IMMEDIATE"):
        urls = [f"https://{mode[0]}{n}.example/".lower() for n in range(CROWD)]
        items = [NewMessage("order.changed", "{}", None, url=url, mode=mode, scheduled_for=at) for url in urls]
        accept_messages(organization.pk, items)


@contextmanager
def levels_of_a_burst() -> Iterator[None]:
    """Let the index of waiting targets have more levels than others, as after a burst whose rows are gone."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER INDEX group_waiting_targets SET (fillfactor = 10)")
        cursor.execute("BEGIN")
        cursor.execute(
            "INSERT INTO outbox_messagegroup (organization_id, name, key, target_id, wake_at, created_at)"
            " SELECT t.organization_id, n, 'burst ' || n, t.id, now() + make_interval(secs => n), now()"
            " FROM generate_series(1, 30000) n, (SELECT * FROM outbox_target ORDER BY id DESC LIMIT 1) t"
        )
        cursor.execute("ROLLBACK")
        cursor.execute("REINDEX INDEX group_of_organization")
        try:
            yield
        finally:
            cursor.execute("ALTER INDEX group_waiting_targets RESET (fillfactor)")
            cursor.execute("REINDEX TABLE outbox_messagegroup")


def add_idle_targets(world: World, count: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_target (organization_id, origin, pool_id, failures, last_error, openings)"
            " SELECT %s, 'https://' || n, %s, 0, '', 0 FROM generate_series(1, %s) n",
            [world.organization.pk, world.pool.pk, count],
        )


@pytest.mark.parametrize("statement", ["TARGET_STATES", "NEXT_WAKE"])
def test_idle_targets_are_not_read(world: World, statement: str) -> None:
    erp, crm = world.endpoint("ERP"), world.endpoint("CRM")
    world.send(erp, "now")
    world.send(crm, "later", mode="IMMEDIATE")
    add_idle_targets(world, IDLE)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE outbox_target, outbox_messagegroup, outbox_message")
    given = states_of(world, pools=True)
    text = "EXPLAIN (ANALYZE, FORMAT JSON) " + getattr(sql, statement)
    plan = prepared.fetch_all(text, given)[0][0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    read = sum(rows for table, rows in scans(plan[0]["Plan"]) if table == "outbox_target")
    assert read < 10
    if statement == "TARGET_STATES":
        assert len(prepared.fetch_all(sql.TARGET_STATES, given)) == 2


@pytest.mark.parametrize("due", [True, False])
def test_waiting_targets_of_others_cost_a_claim_for_some_pools_little(world: World, due: bool) -> None:
    crowd(factories.organization("Greedy"), due=due)
    erp, crm = world.endpoint("ERP"), world.endpoint("CRM")
    a, b = world.send_one(erp, "a"), world.send_one(crm, "b", mode="IMMEDIATE")
    world.send(world.endpoint("Later"), "c", scheduled_for=clock.now() + timedelta(days=1))
    given = states_of(world, pools=True)
    read = rows_read(sql.TARGET_STATES, given)
    assert read["outbox_messagegroup"] < 20
    assert read["outbox_message"] < 20
    assert read["outbox_target"] < 20
    states = {row[0]: row[2:4] for row in prepared.fetch_all(sql.TARGET_STATES, given)}
    assert states == {erp.target.pk: (True, False), crm.target.pk: (False, True)}
    with transaction.atomic():
        claims, _ = claim_next(clock.now(), pools=[world.pool.pk], organizations=[world.organization.pk])
    assert {claim.id for claim in claims} == {a, b}


def test_a_claim_reads_as_little_whatever_the_statistics_say(world: World) -> None:
    """Autovacuum visits each table at its own time: any of them may look empty, or have no statistics yet."""
    crowd(factories.organization("Greedy"), due=True)
    world.send_one(world.endpoint("ERP"), "a")
    world.send_one(world.endpoint("CRM"), "b", mode="IMMEDIATE")
    given = states_of(world, pools=True)
    waiting, targets, others = TABLES[:2], TABLES[2:3], TABLES[3:]
    for states in itertools.product((forget_statistics, pretend_empty, analyze), repeat=3):
        for state, tables in zip(states, (waiting, targets, others), strict=True):
            state(tables)
        read = rows_read_as_planned(sql.TARGET_STATES, given)
        assert max(read.values()) < 20, [state.__name__ for state in states]
        read = rows_read_as_planned(sql.TARGET_STATES, states_of(world, pools=False))
        assert read["outbox_messagegroup"] < STEPS + 20, [state.__name__ for state in states]
        assert read["outbox_message"] < STEPS + 20, [state.__name__ for state in states]
        assert read["outbox_target"] < 2 * STEPS + 20, [state.__name__ for state in states]


def test_a_walk_sorts_nothing_although_another_index_seems_cheaper(world: World) -> None:
    crowd(factories.organization("Greedy"), due=True)
    world.send(world.endpoint("ERP"), "a")
    with levels_of_a_burst():
        pretend_empty(["outbox_messagegroup"])
        for pools in (True, False):
            read = rows_read_as_planned(sql.TARGET_STATES, states_of(world, pools=pools))
            assert read["outbox_messagegroup"] < (20 if pools else STEPS + 20)


def test_claim_finds_what_waits_among_many_targets_of_its_own_and_others(world: World) -> None:
    crowd(factories.organization("Greedy"), due=True)
    add_idle_targets(world, IDLE)
    a = world.send_one(world.endpoint(), "a")
    with transaction.atomic():
        claims, _ = claim_next(clock.now(), pools=[world.pool.pk], organizations=[world.organization.pk])
    assert [claim.id for claim in claims] == [a]


@pytest.mark.parametrize("statement", ["TARGET_STATES", "NEXT_WAKE", "OLDEST_DUE"])
@pytest.mark.parametrize("due", [True, False])
def test_waiting_targets_of_an_organization_cost_a_poll_a_fixed_number_of_steps(
    world: World, statement: str, due: bool
) -> None:
    crowd(factories.organization("Greedy"), due=due)
    world.send(world.endpoint("ERP"), "a")
    world.send(world.endpoint("CRM"), "b", mode="IMMEDIATE")
    turns = TargetRotation(50).parameters(None)
    read = rows_read(getattr(sql, statement), {"now": clock.now(), "pools": None, "targets": [], **turns})
    at_each = 2 if due and statement == "NEXT_WAKE" else 1  # also what waits after what is due
    assert read["outbox_messagegroup"] < 50 * at_each + 20
    assert read["outbox_message"] < 50 * at_each + 20


@pytest.mark.parametrize("mode", ["BLOCK_ON_ERROR", "IMMEDIATE"])
def test_each_of_many_waiting_targets_is_polled_in_its_turn(
    world: World, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polled, "steps", 10)
    crowd(world.organization, due=True)
    Target.objects.update(open_until=clock.now() + timedelta(hours=1))
    erp = world.endpoint()
    a = world.send_one(erp, "a", mode=mode)
    polls = 0
    while world.status(a) == "PENDING":
        assert polls < 2 * CROWD / 10 + 3
        polls += 1
        pause = world.poll()
        assert pause is not None
        assert pause <= poller.PARTIAL_PAUSE_S, "the next targets are read soon"
    assert polls > 2


def test_slots_of_a_pool_are_refilled_from_all_of_many_waiting_targets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refilled, "steps", 5)
    world.pool.concurrency = 1
    world.pool.save()
    erps = [world.endpoint(f"ERP {n}") for n in range(30)]
    for erp in erps:
        world.send(erp, "a", "b")
    claimed = []
    for _ in range(60):
        with transaction.atomic():
            claims, _ = claim_next(clock.now(), pools=[world.pool.pk], organizations=[world.organization.pk])
        for claim in claims:
            claimed.append(claim.id)
            Message.objects.filter(pk=claim.id).update(status="COMPLETED", in_flight=False, ended_at=clock.now())
            with transaction.atomic():
                scheduling.lock_groups([claim.group_id])
                scheduling.reschedule_groups([claim.group_id], clock.now())
    assert len(set(claimed)) == 60


@pytest.mark.parametrize("why", ["paused", "disabled", "paused pool"])
def test_a_poll_gets_no_targets_that_are_held(world: World, why: str) -> None:
    slow = DispatchPool.objects.create(
        organization=world.organization, code="slow", name="Slow", kind="messages", is_paused=why == "paused pool"
    )
    held, erp = world.endpoint("Held", pool=slow), world.endpoint("ERP")
    if why == "paused":
        target_health.pause_endpoint(held.pk, "An outage", actor=SYSTEM)
    elif why == "disabled":
        target_health.disable_endpoint(held.pk, "An outage", actor=SYSTEM)
    world.send(held, "held")
    a = world.send_one(erp, "a")
    rows = prepared.fetch_all(sql.TARGET_STATES, states_of(world, pools=False))
    assert [row[0] for row in rows] == [erp.target.pk]
    with transaction.atomic():
        claims, _ = claim_next(clock.now())
    assert [claim.id for claim in claims] == [a]


def test_a_poll_reads_nothing_of_targets_for_which_nothing_is_due(world: World) -> None:
    crowd(world.organization, due=False)
    a = world.send_one(world.endpoint(), "a")
    read = rows_read(sql.TARGET_STATES, {**states_of(world, pools=False), "steps": 2 * CROWD})
    assert read["outbox_target"] == 1
    with transaction.atomic():
        claims, _ = claim_next(clock.now())
    assert [claim.id for claim in claims] == [a]
