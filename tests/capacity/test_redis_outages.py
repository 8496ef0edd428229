"""Whatever happens to Redis, no number carries more calls than lines, and lines are free again soon."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from dispatch.capacity import line_leases as capacity
from dispatch.capacity import redis_scripts
from dispatch.core import clock
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.redis import generation
from dispatch.core.redis.client import REDIS_ERRORS, client
from dispatch.telephony import services
from dispatch.telephony.models import Call
from tests.capacity.conftest import Lines, OwnRedis


def believed() -> dict[str, str]:
    """Return holder → lease, as stored in Redis."""
    stored = client().hgetall(f"{redis_scripts.base_key()}:leases")
    return {holder.decode(): lease.decode().rpartition(":")[0] for holder, lease in stored.items()}  # type: ignore[union-attr]


def really() -> dict[str, str]:
    return {
        call.holder: f"{call.number_id}:{call.line_slot}:{call.pool_id}:{call.pool_slot}"
        for call in Call.objects.filter(ended_at=None)
    }


def test_flushed_during_calls_postgres_decides_until_it_is_rebuilt(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(3)
    first, _ = lines.call(), lines.call()

    own_redis.flush()

    assert [lines.slot(), lines.slot()] == [3, "lines_busy"]
    lines.until_redis_is_valid()
    assert believed() == really()
    assert generation.current_generation()
    lines.end(first)
    assert lines.slot() == first.line_slot


def test_postgres_continues_without_redis_which_is_rebuilt_later(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(3)
    before = lines.call()

    own_redis.stop()
    during = lines.call()
    lines.end(before)
    assert (during.line_slot, lines.slot(), lines.slot()) == (2, 1, 3)
    assert lines.slot() == "lines_busy"

    own_redis.start()
    CircuitBreaker.reset_all()  # the circuit of the lost server is closed again
    lines.end(during)
    assert [lines.slot(), lines.slot()] == [2, "lines_busy"]
    lines.until_redis_is_valid()
    assert believed() == really()


def test_a_line_that_ended_during_the_outage_is_free_at_its_end(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(2)
    calls = [lines.call(), lines.call()]
    own_redis.stop()
    lines.end(calls[0])
    own_redis.start()
    redis_scripts.reset()  # another process, which did not notice the outage

    assert lines.slot() == "lines_busy"
    assert capacity.reconcile_pool() == (0, 1)

    assert lines.slot() == calls[0].line_slot


@pytest.mark.parametrize("loss", ["flush", "restart_empty", "wrong_beliefs"])
def test_concurrent_reservations_while_redis_keeps_failing(lines: Lines, own_redis: OwnRedis, loss: str) -> None:
    lines.number(4)
    chance = random.Random(4)
    hits = {
        "flush": own_redis.flush,
        "restart_empty": lambda: (own_redis.flush(), own_redis.stop(), own_redis.start()),
        # the generation stays, so that scripts answer, but wrongly
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
    redis_scripts.reset()
    assert generation.ensure_generation()
    clock.travel(capacity.ORPHAN_GRACE_S + 1)
    capacity.reconcile_pool()
    assert believed() == really()


def _forget_leases() -> None:
    try:
        for name in client().scan_iter(f"{redis_scripts.base_key()}:*"):
            client().delete(name)
    except REDIS_ERRORS:
        pass


def test_the_reconciler_adopts_what_redis_does_not_know(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(3)
    calls = [lines.call() for _ in range(3)]
    _forget_leases()
    assert believed() == {}

    assert capacity.reconcile_pool() == (3, 0)

    assert believed() == really()
    assert lines.slot() == "lines_busy"
    for call in calls:
        lines.end(call)
    assert believed() == {}


def test_open_call_overrides_a_wrong_redis_state(lines: Lines, own_redis: OwnRedis) -> None:
    lines.number(2)
    call = lines.call()
    _forget_leases()
    ghost = capacity.propose_line(lines.pool, "lead", "lead:404:1")
    assert isinstance(ghost, capacity.LineProposal)
    assert ghost.line_slot == call.line_slot

    assert capacity.reconcile_pool() == (1, 0)

    assert believed() == really()


def test_loop_does_nothing_while_redis_is_unavailable(own_redis: OwnRedis, step: Callable[[str], None]) -> None:
    own_redis.stop()
    step("lines")
