"""Requests to the provider never exceed pace and rate, in any window."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch.capacity import rate_limits
from dispatch.capacity.models import DispatchPool, ProviderAccount
from dispatch.core import clock
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.telephony.models import Call
from tests.capacity.conftest import Lines, OwnRedis

TICK = timedelta(milliseconds=2)  # Redis counts by its own clock, in whole milliseconds, rounded up


class Asked(NamedTuple):
    """A token was taken between these two times, however slow the machine."""

    after: datetime
    before: datetime


class Asker:
    """Send requests as often as allowed; each is a Call's, as Postgres counts them."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        lines.number(1000)
        DispatchPool.objects.filter(pk=lines.pool.pk).update(concurrency=1000)
        self.moments: list[Asked] = []

    def limits(self, calls_per_second: float = 1000.0, rate_per_minute: int | None = None) -> None:
        ProviderAccount.objects.update(calls_per_second=calls_per_second)
        DispatchPool.objects.filter(pk=self.lines.pool.pk).update(rate_per_minute=rate_per_minute)

    def ask(self) -> float:
        call = self.lines.call()
        with transaction.atomic():
            account = ProviderAccount.objects.get(pk=call.account_id)
            pool = DispatchPool.objects.get(pk=call.pool_id)
            begun = clock.now()
            wait_s = rate_limits.take_request_token(account, pool, begun)
            if not wait_s:
                Call.objects.filter(pk=call.pk).update(requested_at=begun)
                self.moments.append(Asked(begun, clock.now()))
        return wait_s


def surely_apart(one: Asked, other: Asked) -> timedelta:
    """Return the longest possible time between two tokens, which is at least the actual one."""
    return other.before - one.after + TICK


@pytest.fixture
def asker(lines: Lines, decided_by: str) -> Asker:
    return Asker(lines)


def test_account_requests_keep_their_rate(asker: Asker) -> None:
    asker.limits(calls_per_second=0.01)

    assert asker.ask() == 0
    wait = asker.ask()
    assert 50 < wait <= 100
    clock.travel(wait + 0.01)
    assert asker.ask() == 0


def test_pool_rate_holds_in_any_minute(asker: Asker) -> None:
    asker.limits(rate_per_minute=3)

    assert asker.ask() == 0
    clock.travel(20)
    assert [asker.ask(), asker.ask()] == [0, 0]
    wait = asker.ask()
    assert 20 < wait <= 40
    clock.travel(wait + 0.01)
    assert asker.ask() == 0
    first, second, *_ = asker.moments
    assert 0 < asker.ask() <= surely_apart(first, second).total_seconds()


def test_changed_rate_applies_immediately(asker: Asker) -> None:
    assert [asker.ask() for _ in range(4)] == [0, 0, 0, 0]

    asker.limits(rate_per_minute=4)
    assert asker.ask() > 50
    asker.limits(rate_per_minute=5)
    assert asker.ask() == 0


@pytest.mark.parametrize("loss", ["flush", "outage"])
def test_past_requests_count_after_redis_lost_its_data(lines: Lines, own_redis: OwnRedis, loss: str) -> None:
    asker = Asker(lines)
    asker.limits(calls_per_second=0.1, rate_per_minute=2)
    assert asker.ask() == 0
    clock.travel(10.01)
    if loss == "flush":
        assert asker.ask() == 0
        own_redis.flush()
    else:
        own_redis.stop()
        assert asker.ask() == 0
        own_redis.start()
        CircuitBreaker.reset_all()

    assert asker.ask() > 0
    clock.travel(10)
    assert 20 < asker.ask() <= 40


steps = st.lists(st.tuples(st.floats(0, 25), st.integers(1, 4)), min_size=1, max_size=12)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=steps, cps=st.sampled_from([0.2, 1.0, 5.0]), rate=st.sampled_from([None, 1, 3, 7]))
def test_no_window_exceeds_the_rate(asker: Asker, steps: Any, cps: float, rate: int | None) -> None:
    clock.travel(120)  # requests of the example before have expired
    asker.limits(cps, rate)
    asker.moments.clear()
    for pause, times in steps:
        clock.travel(pause)
        for _ in range(times):
            asker.ask()

    moments = asker.moments
    assert moments
    for earlier, later in itertools.pairwise(moments):
        assert surely_apart(earlier, later) >= timedelta(seconds=1 / cps)
    if rate:
        for first, beyond in zip(moments, moments[rate:], strict=False):
            assert surely_apart(first, beyond) >= timedelta(minutes=1)
