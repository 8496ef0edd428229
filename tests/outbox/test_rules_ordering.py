"""The database and the pure rule agree on the next message of a group, whatever is in it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch.core import clock
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.rules.ordering import Waiting, next_in_group, passes_filter
from dispatch.outbox.services import scheduling
from tests.harness.outbox import World
from tests.outbox.receiver import Receiver

MODES = st.sampled_from(["BLOCK_ON_ERROR", "NEXT_ON_ERROR", "IMMEDIATE"])
STATUSES = st.sampled_from(["PENDING", "PENDING", "PENDING", "ERROR", "ERROR", "COMPLETED", "CANCELLED"])
ONE = st.tuples(st.integers(1, 4), st.integers(0, 2), MODES, STATUSES, st.booleans(), st.booleans())


@pytest.fixture
def ground(receiver: Receiver, db: None) -> tuple[World, Endpoint]:
    world = World(receiver)
    return world, world.endpoint()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ONE, max_size=8), flying=st.integers(0, 20))
def test_sql_and_rule_choose_the_same_head(ground: tuple[World, Endpoint], rows: list, flying: int) -> None:
    world, erp = ground
    with transaction.atomic():
        ids = world.send(erp, *[str(n) for n in range(len(rows))], "seed")
        now = clock.now()
        Message.objects.filter(pk=ids[-1]).update(status="COMPLETED")
        for message_id, (sequence, second, mode, status, is_due, is_expired) in zip(ids, rows, strict=False):
            Message.objects.filter(pk=message_id).update(
                sequence=sequence,
                created_at=now - timedelta(seconds=60 - second),
                mode=mode,
                status=status,
                due_at=now - timedelta(seconds=5) if is_due else now + timedelta(seconds=60),
                expires_at=now - timedelta(seconds=1) if is_expired else None,
            )
        if flying < len(rows) and rows[flying][2] != "IMMEDIATE" and rows[flying][3] == "PENDING":
            Message.objects.filter(pk=ids[flying]).update(status="QUEUED", in_flight=True)
        group = world.group()
        found = scheduling._heads([group.pk], now)[0]
        model = next_in_group(_waiting(group.pk), now)
        assert found.message_id == (model.message.id if model.message else None)
        assert found.flying == (model.in_flight.id if model.in_flight else None)
        assert (found.held_by is None) == (model.blocked_by is None)
        assert found.held_by == (model.blocked_by.id if model.blocked_by else None)
        transaction.set_rollback(True)


def _waiting(group_id: int) -> list[Waiting]:
    names = ("id", "sequence", "mode", "status", "due_at", "expires_at", "in_flight")
    return [Waiting(**row) for row in Message.objects.filter(group_id=group_id).values(*names)]


@pytest.mark.parametrize(
    ("event_types", "kind", "wanted"),
    [
        (["job.assigned"], "job.assigned", True),
        (["job.*"], "job.assigned", True),
        (["job.*"], "jobs.assigned", False),
        (["*"], "anything.at_all", True),
        (["*"], "message.completed", False),
        (["message.completed"], "message.completed", False),
        ([], "job.assigned", False),
        (["job"], "job.assigned", False),
    ],
)
def test_wildcards_of_event_types(event_types: list[str], kind: str, wanted: bool) -> None:
    assert passes_filter(event_types, kind) is wanted
