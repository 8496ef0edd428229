"""Whatever becomes of Redis, no number carries more than its lines, and lines are free again soon."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from dispatch.capacity import fast
from dispatch.capacity import lines as capacity
from dispatch.core import clock, generation
from dispatch.core.redis import REDIS_ERRORS, client
from dispatch.telephony import services
from dispatch.telephony.models import Call
from tests.capacity.conftest import Lines, OwnRedis


def believed() -> dict[str, str]:
    """Holder → lease, as Redis has it."""
    stored = client().hgetall(f"{fast.base_key()}:leases")
    return {holder.decode(): lease.decode().rpartition(":")[0] for holder, lease in stored.items()}  # type: ignore[union-attr]


def really() -> dict[str, str]:
    return {
        call.holder: f"{call.number_id}:{call.line_slot}:{call.pool_id}:{call.pool_slot}"
        for call in Call.objects.filter(ended_at=None)
    }


def test_flushed_during_calls_it_is_rebuilt_before_the_next_line(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(3)
    first, _ = lines.call(), lines.call()

    own_redis.flush()

    assert [lines.slot(), lines.slot()] == [3, "lines_busy"]
    assert believed() == really()
    assert generation.current()
    lines.end(first)
    assert lines.slot() == first.line_slot


def test_stopped_during_calls_postgres_goes_on_and_redis_learns_of_it(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(3)
    before = lines.call()

    own_redis.stop()
    during = lines.call()
    lines.end(before)
    assert (during.line_slot, lines.slot(), lines.slot()) == (2, 1, 3)
    assert lines.slot() == "lines_busy"

    own_redis.start()
    fast.spared.believe_again()  # the second in which a lost server is spared is over
    lines.end(during)
    assert [lines.slot(), lines.slot()] == [2, "lines_busy"]
    assert believed() == really()


def test_a_line_that_ended_during_the_outage_is_free_at_its_end(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(2)
    calls = [lines.call(), lines.call()]
    own_redis.stop()
    lines.end(calls[0])
    own_redis.start()
    fast.believe_again()  # another process, which did not notice the outage

    assert lines.slot() == "lines_busy"
    assert capacity.reconcile() == (0, 1)

    assert lines.slot() == calls[0].line_slot


@pytest.mark.parametrize("loss", ["flush", "restart_empty", "wrong_beliefs"])
def test_many_at_once_while_redis_is_lost_again_and_again(lines: Lines, own_redis: OwnRedis, loss: str) -> None:
    lines.number(4)
    chance = random.Random(4)
    hits = {
        "flush": own_redis.flush,
        "restart_empty": lambda: (own_redis.flush(), own_redis.stop(), own_redis.start()),
        # the generation stays, so that scripts answer, and answer wrongly
        "wrong_beliefs": lambda: _forget_leases(),
    }
    one_loss_at_a_time = threading.Lock()
    plan = ["call"] * 60 + ["lose"] * 6
    chance.shuffle(plan)

    def one(step: tuple[int, str]) -> str:
        try:
            if step[1] == "lose":
                with one_loss_at_a_time:
                    hits[loss]()
                return "lost"
            call = lines.call(subject_id=10_000 + step[0])
            open_now = Call.objects.filter(ended_at=None).count()
            assert open_now <= 4
            if step[0] % 2:
                lines.end(call)
            return "called"
        except services.NoLine:
            return "no line"
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as crowd:
        outcomes = list(crowd.map(one, enumerate(plan)))

    still_open = Call.objects.filter(ended_at=None)
    assert outcomes.count("called") >= 4
    assert len({call.line_slot for call in still_open}) == still_open.count() <= 4
    fast.believe_again()
    assert generation.ensure()
    clock.travel(capacity.ORPHAN_GRACE_S + 1)
    capacity.reconcile()
    assert believed() == really()


def _forget_leases() -> None:
    try:
        for name in client().scan_iter(f"{fast.base_key()}:*"):
            client().delete(name)
    except REDIS_ERRORS:
        pass


def test_the_reconciler_adopts_what_redis_does_not_know(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(3)
    calls = [lines.call() for _ in range(3)]
    _forget_leases()
    assert believed() == {}

    assert capacity.reconcile() == (3, 0)

    assert believed() == really()
    assert lines.slot() == "lines_busy"
    for call in calls:
        lines.end(call)
    assert believed() == {}


def test_a_wrong_belief_gives_way_to_the_open_call(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(2)
    call = lines.call()
    _forget_leases()
    ghost = capacity.propose(lines.pool, "lead", "lead:404:1")
    assert isinstance(ghost, capacity.Proposal)
    assert ghost.line_slot == call.line_slot

    assert capacity.reconcile() == (1, 0)

    assert believed() == really()


def test_the_loop_does_nothing_while_redis_is_gone(own_redis: OwnRedis, step: Callable[[str], None]) -> None:
    own_redis.stop()
    step("lines")
