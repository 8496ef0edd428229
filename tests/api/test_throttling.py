"""How many requests a caller may make, with Redis and without."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rest_framework.settings import api_settings

from accounts import throttling
from accounts.throttling import LocalBuckets, Rate, parse
from dispatch.core import clock, redis
from tests import factories as make
from tests.api.client import Api

pytestmark = pytest.mark.django_db


@pytest.fixture
def three_a_minute(monkeypatch):
    monkeypatch.setitem(api_settings.DEFAULT_THROTTLE_RATES, "read", "3/min")


@pytest.fixture(params=["redis", "no redis"])
def both(request, monkeypatch):
    if request.param == "no redis":

        def gone(*args, **kwargs):
            raise redis.REDIS_ERRORS[0]("gone")

        monkeypatch.setattr(throttling, "_TAKE", gone)
    return request.param


@pytest.mark.usefixtures("both", "three_a_minute")
def test_the_fourth_request_waits_and_is_told_how_long():
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
def test_each_key_and_each_person_has_a_bucket_of_their_own():
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


def test_without_redis_it_is_asked_again_only_after_a_pause(monkeypatch):
    asked = []

    def gone(*args, **kwargs):
        asked.append(1)
        raise redis.REDIS_ERRORS[0]("gone")

    monkeypatch.setattr(throttling, "_TAKE", gone)
    for _ in range(5):
        throttling.take("x", Rate(10, 60))
    assert len(asked) == 1


def test_the_redis_bucket_is_exact_under_concurrency():
    start = threading.Barrier(10)

    def run(n: int) -> int:
        start.wait(timeout=60)
        return sum(throttling.take("crowd", Rate(25, 3600)).wait_ms == 0 for _ in range(10))

    with ThreadPoolExecutor(10) as threads:
        assert sum(threads.map(run, range(10))) == 25


def test_a_bucket_leaves_redis_by_itself():
    throttling.take("gone-soon", Rate(10, 6000))
    left = redis.client().pttl(redis.key("throttle", "gone-soon"))
    assert 0 < left <= 602_000


def test_local_buckets_are_bounded(monkeypatch):
    monkeypatch.setattr(throttling, "LOCAL_BUCKETS", 3)
    buckets = LocalBuckets()
    for n in range(10):
        buckets.take(str(n), Rate(1, 60))
    assert len(buckets._full_at) == 3


@pytest.mark.parametrize(
    ("text", "limit", "period"), [("5/s", 5, 1), ("600/min", 600, 60), ("9/hour", 9, 3600), ("1/day", 1, 86400)]
)
def test_rates_as_they_are_written(text, limit, period):
    assert parse(text) == Rate(limit, period)
