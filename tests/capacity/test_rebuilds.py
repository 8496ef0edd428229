"""A rebuild of Redis runs outside of every transaction and delays none."""

from __future__ import annotations

import threading
from datetime import datetime

import pytest
from django.db import connection, transaction

from dispatch.capacity import bulk, rate_limits, redis_scripts
from dispatch.capacity.redis_recovery import RedisRecovery
from dispatch.core import clock
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.redis import generation
from dispatch.telephony.models import Call
from dispatch.telephony.services.call_requests import claim_for_placing
from tests.capacity.conftest import Lines, OwnRedis
from tests.capacity.test_redis_outages import believed, really
from tests.conftest import forget_redis
from tests.core.threads import Elsewhere
from tests.harness.slow_rebuild import SlowRebuild, slow_rebuild
from tests.support.waiting import PATIENCE, wait_until

__all__ = ["slow_rebuild"]


def test_transactions_that_need_lines_never_rebuild_redis(lines: Lines, monkeypatch) -> None:
    lines.number(3)
    rebuilt: list[bool] = []
    monkeypatch.setattr(generation, "_rebuilders", [lambda: rebuilt.append(connection.in_atomic_block)])
    forget_redis()
    call = lines.call("offer")
    lines.call("alert")
    with transaction.atomic():
        assert rate_limits.take_request_token(lines.account, lines.pool, clock.now()) == 0
        assert bulk.take_rate_tokens(lines.account.pk, 10.0, lines.pool.pk, 0, 5) == []
    lines.end(call)
    assert rebuilt == []
    lines.until_redis_is_valid()
    assert rebuilt == [False]


def test_lines_are_decided_while_a_rebuild_is_held(lines: Lines, slow_rebuild: SlowRebuild) -> None:
    lines.number(3)
    before = lines.call()
    slow_rebuild.begin()
    assert slow_rebuild.open_transactions() == 0

    assert [lines.slot("offer"), lines.slot("alert")] == [2, 3]
    assert lines.slot() == "lines_busy"
    lines.end(before)
    assert lines.slot() == 1
    assert slow_rebuild.is_held
    assert slow_rebuild.open_transactions() == 0

    slow_rebuild.finish()
    assert believed() == really()
    assert lines.slot() == "lines_busy"
    assert (slow_rebuild.runs, slow_rebuild.in_transactions) == (1, [False])


def test_requests_during_a_rebuild_count_toward_the_rate_after_it(lines: Lines, slow_rebuild: SlowRebuild) -> None:
    number = lines.number(5)
    lines.pool.rate_per_minute = 2
    lines.pool.save()
    slow_rebuild.begin()
    for _ in range(2):
        call = lines.call()
        with transaction.atomic():
            now = clock.now()
            assert rate_limits.take_request_token(lines.account, lines.pool, now) == 0
            Call.objects.filter(pk=call.pk).update(requested_at=now)
    slow_rebuild.finish()
    with transaction.atomic():
        assert rate_limits.take_request_token(number.account, lines.pool, clock.now()) > 30


def test_request_that_noticed_an_outage_counts_toward_the_rate(lines: Lines, own_redis: OwnRedis) -> None:
    first, second = limited_calls(lines)
    own_redis.stop()
    CircuitBreaker.reset_all()
    assert claim_for_placing(first.pk)[0].status == "requesting"
    own_redis.start()
    CircuitBreaker.reset_all()
    lines.until_redis_is_valid()
    assert claim_for_placing(second.pk)[0].status == "created"


def test_request_committed_after_the_recovery_counts_toward_the_rate(lines: Lines, own_redis: OwnRedis) -> None:
    first, second = limited_calls(lines)
    decided, recovered = threading.Event(), threading.Event()

    def claim_and_commit_late() -> None:
        with transaction.atomic():
            assert claim_for_placing(first.pk)[0].status == "requesting"
            decided.set()
            assert recovered.wait(PATIENCE)

    own_redis.flush()
    other = Elsewhere(claim_and_commit_late)
    assert decided.wait(PATIENCE)
    lines.until_redis_is_valid()
    recovered.set()
    other.finish()
    wait_until(lambda: redis_scripts._recovery is not None and redis_scripts._recovery.is_idle)
    assert claim_for_placing(second.pk)[0].status == "created"


def limited_calls(lines: Lines) -> list[Call]:
    """Return two calls of a pool that may request one a minute."""
    lines.number(5)
    lines.pool.rate_per_minute = 1
    lines.pool.save()
    return [lines.call(), lines.call()]


def test_outage_is_caught_up_on_by_a_thread_in_no_transaction(
    lines: Lines, own_redis: OwnRedis, monkeypatch
) -> None:
    lines.number(3)
    own_redis.stop()
    lines.call()
    own_redis.start()
    CircuitBreaker.reset_all()
    recovery = redis_scripts._recovery
    assert recovery is not None
    in_transaction: list[bool] = []
    catch_up = recovery._catch_up

    def record(since) -> None:
        in_transaction.append(connection.in_atomic_block)
        catch_up(since)

    monkeypatch.setattr(recovery, "_catch_up", record)
    with transaction.atomic():
        assert lines.slot() == 2
    lines.until_redis_is_valid()
    assert set(in_transaction) == {False}
    assert believed() == really()


@pytest.mark.parametrize("fault", [ConnectionError("gone"), RuntimeError("unexpected")])
def test_recovery_goes_on_if_its_second_pass_fails(monkeypatch, fault) -> None:
    monkeypatch.setattr(generation, "current_generation", lambda: 1)
    passes: list[datetime] = []

    def catch_up(since: datetime) -> None:
        passes.append(since)
        if len(passes) == 2:
            raise fault

    recovery = RedisRecovery(catch_up)
    away_since = recovery._since = clock.now()
    with pytest.raises(type(fault)):
        recovery._recover(threading.Event())
    assert recovery.is_pending
    assert recovery._recover(threading.Event())
    assert not recovery.is_pending
    assert (passes[0], passes[1]) == (away_since, passes[2])
