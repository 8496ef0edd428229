"""The cost of a claim does not depend on targets that have nothing to send, or that belong to somebody else."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from accounts.models import Organization
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.events import SYSTEM
from dispatch.outbox import sql
from dispatch.outbox.services import target_health
from dispatch.outbox.services.intake import NewMessage, accept_messages
from dispatch.outbox.services.scheduling import claim_next
from dispatch.outbox.sql.ordering import MAX_OWN_TARGETS, MAX_STEPS
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
CROWD = 3 * MAX_STEPS // 2


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
    with transaction.atomic(), prepared.pipeline(one_plan=True):
        plan = prepared.fetch_all("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, given)[0][0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    read: Counter[str] = Counter()
    for table, rows in scans(plan[0]["Plan"]):
        read[table] += round(rows)
    return read


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
    given = {"now": clock.now(), "pools": [world.pool.pk], "targets": []}
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
    given = {"now": clock.now(), "pools": [world.pool.pk], "targets": []}
    read = rows_read(sql.TARGET_STATES, given)
    assert read["outbox_messagegroup"] < MAX_STEPS + 20
    assert read["outbox_message"] < MAX_STEPS + 20
    assert read["outbox_target"] < (2 * MAX_STEPS if due else 0) + 20
    states = {row[0]: row[2:4] for row in prepared.fetch_all(sql.TARGET_STATES, given)}
    assert states == {erp.target.pk: (True, False), crm.target.pk: (False, True)}
    with transaction.atomic():
        claims, _ = claim_next(clock.now(), pools=[world.pool.pk])
    assert {claim.id for claim in claims} == {a, b}


def test_a_claim_reads_as_little_whatever_the_statistics_say(world: World) -> None:
    """Autovacuum visits each table at its own time: any of them may look empty, or have no statistics yet."""
    crowd(factories.organization("Greedy"), due=True)
    world.send_one(world.endpoint("ERP"), "a")
    world.send_one(world.endpoint("CRM"), "b", mode="IMMEDIATE")
    given = {"now": clock.now(), "pools": [world.pool.pk], "targets": []}
    waiting, targets, others = TABLES[:2], TABLES[2:3], TABLES[3:]
    for states in itertools.product((forget_statistics, pretend_empty, analyze), repeat=3):
        for state, tables in zip(states, (waiting, targets, others), strict=True):
            state(tables)
        read = rows_read_as_planned(sql.TARGET_STATES, given)
        assert read["outbox_target"] < 2 * MAX_STEPS + 20, [state.__name__ for state in states]


@pytest.mark.parametrize("own", [MAX_OWN_TARGETS - 1, MAX_OWN_TARGETS])
def test_claim_finds_what_waits_among_many_targets_of_its_own_and_others(world: World, own: int) -> None:
    crowd(factories.organization("Greedy"), due=True)
    add_idle_targets(world, own)
    a = world.send_one(world.endpoint(), "a")
    with transaction.atomic():
        claims, _ = claim_next(clock.now(), pools=[world.pool.pk])
    assert [claim.id for claim in claims] == [a]


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
    rows = prepared.fetch_all(sql.TARGET_STATES, {"now": clock.now(), "pools": None, "targets": []})
    assert [row[0] for row in rows] == [erp.target.pk]
    with transaction.atomic():
        claims, _ = claim_next(clock.now())
    assert [claim.id for claim in claims] == [a]


def test_a_poll_reads_nothing_of_targets_for_which_nothing_is_due(world: World) -> None:
    crowd(world.organization, due=False)
    a = world.send_one(world.endpoint(), "a")
    read = rows_read(sql.TARGET_STATES, {"now": clock.now(), "pools": None, "targets": []})
    assert read["outbox_target"] == 1
    with transaction.atomic():
        claims, _ = claim_next(clock.now())
    assert [claim.id for claim in claims] == [a]
