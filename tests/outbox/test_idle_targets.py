"""The cost of a poll does not depend on the number of targets that have nothing to send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.outbox import sql
from tests.harness.outbox import World

IDLE = 5000


def scans(node: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each table of a plan with the number of rows that were read from it."""
    if table := node.get("Relation Name"):
        read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield table, read * node["Actual Loops"]
    for child in node.get("Plans", []):
        yield from scans(child)


@pytest.mark.parametrize("statement", ["TARGET_STATES", "NEXT_WAKE"])
def test_idle_targets_are_not_read(world: World, statement: str) -> None:
    erp, crm = world.endpoint("ERP"), world.endpoint("CRM")
    world.send(erp, "now")
    world.send(crm, "later", mode="IMMEDIATE")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_target (organization_id, origin, pool_id, failures, last_error, openings)"
            " SELECT %s, 'https://' || n, %s, 0, '', 0 FROM generate_series(1, %s) n",
            [world.organization.pk, world.pool.pk, IDLE],
        )
        cursor.execute("ANALYZE outbox_target, outbox_messagegroup, outbox_message")
    given = {"now": clock.now(), "pools": [world.pool.pk], "targets": []}
    text = "EXPLAIN (ANALYZE, FORMAT JSON) " + getattr(sql, statement)
    plan = prepared.fetch_all(text, given)[0][0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    read = sum(rows for table, rows in scans(plan[0]["Plan"]) if table == "outbox_target")
    assert read < 10
    if statement == "TARGET_STATES":
        assert len(prepared.fetch_all(sql.TARGET_STATES, given)) == 2
