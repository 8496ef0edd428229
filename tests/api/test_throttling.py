"""Requests are throttled per caller, with Redis and without."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rest_framework.settings import api_settings

from accounts.auth import throttling
from accounts.auth.throttling import LocalBuckets, Rate, parse_rate
from dispatch.core import clock
from dispatch.core.redis import client
from tests.api.client import Api
from tests.harness.redis_proxy import RedisProxy, redis_proxy
from tests.support import factories as make

__all__ = ["redis_proxy"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def three_a_minute(monkeypatch):
    monkeypatch.setitem(api_settings.DEFAULT_THROTTLE_RATES, "read", "3/min")


@pytest.fixture(params=["redis", "no redis"])
def both(request, monkeypatch):
    if request.param == "no redis":

        def gone(*args, **kwargs):
            raise client.REDIS_ERRORS[0]("gone")

        monkeypatch.setattr(throttling, "_TAKE", gone)
    return request.param


@pytest.mark.usefixtures("both", "three_a_minute")
def test_fourth_request_gets_retry_after():
    api = Api(key=make.api_key(make.organization()))
    answers = [api.get("me/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert answers[0]["RateLimit-Limit"] == "3"
    refused = answers[3]
    assert refused["Content-Type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:dispatch:problem:throttled"
    wait = int(refused["Retry-After"])
    assert 0 < wait <= 20
    clock.travel(wait)
    assert api.get("me/").status_code == 200
    assert api.get("me/").status_code == 429


@pytest.mark.usefixtures("both", "three_a_minute")
def test_each_key_and_person_has_a_separate_bucket():
    organization = make.organization()
    busy = Api(key=make.api_key(organization))
    for _ in range(4):
        refused = busy.get("me/")
    assert refused.status_code == 429
    assert Api(key=make.api_key(organization)).get("me/").status_code == 200
    assert Api(user=make.admin(organization)).get("me/").status_code == 200
    assert Api(user=make.admin(make.organization())).get("me/").status_code == 200


@pytest.mark.usefixtures("three_a_minute")
def test_reading_does_not_use_up_writing():
    api = Api(user=make.dispatcher(make.organization()))
    for _ in range(4):
        refused = api.get("me/")
    assert refused.status_code == 429
    assert api.post("duty/", {"on_duty": True}).status_code == 200


def test_a_redis_that_hangs_costs_one_timeout(redis_proxy: RedisProxy) -> None:
    redis_proxy.hold_circuit_open()
    redis_proxy.hang()
    taken = [throttling.take_token("x", Rate(3, 3600)).wait_ms == 0 for _ in range(5)]
    assert taken == [True, True, True, False, False]
    assert redis_proxy.unanswered == 1


def test_the_redis_bucket_is_exact_under_concurrency():
    start = threading.Barrier(10)

    def run(n: int) -> int:
        start.wait(timeout=60)
        return sum(throttling.take_token("crowd", Rate(25, 3600)).wait_ms == 0 for _ in range(10))

    with ThreadPoolExecutor(10) as threads:
        assert sum(threads.map(run, range(10))) == 25


def test_bucket_expires_in_redis():
    throttling.take_token("gone-soon", Rate(10, 6000))
    left = client.client().pttl(client.key("throttle", "gone-soon"))
    assert 0 < left <= 602_000


def test_local_buckets_are_bounded(monkeypatch):
    monkeypatch.setattr(throttling, "MAX_LOCAL_BUCKETS", 3)
    buckets = LocalBuckets()
    for n in range(10):
        buckets.take(str(n), Rate(1, 60))
    assert len(buckets._full_at) == 3


@pytest.mark.parametrize(
    ("text", "limit", "period"), [("5/s", 5, 1), ("600/min", 600, 60), ("9/hour", 9, 3600), ("1/day", 1, 86400)]
)
def test_rates_are_parsed(text, limit, period):
    assert parse_rate(text) == Rate(limit, period)
