"""Django's cache lies in Redis, and in the process during an outage."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from redis.exceptions import ConnectionError as RedisConnectionError

from dispatch.core.redis import cache as redis_cache
from dispatch.core.redis import client


class Gone:
    """A Redis that cannot be reached."""

    def __getattr__(self, name: str) -> Any:
        raise RedisConnectionError("gone")


def check() -> None:
    assert cache.get("a") is None
    assert cache.get("a", []) == []
    cache.set("a", [1.5, 2], 60)
    assert cache.get("a") == [1.5, 2]
    assert not cache.add("a", 3, 60)
    assert cache.touch("a", 60)
    assert cache.delete("a")
    assert not cache.delete("a")
    assert not cache.touch("a", 60)
    assert cache.add("a", True, 60)
    cache.set("a", 1, 0)
    assert cache.get("a") is None


def test_values_are_kept_in_redis_under_our_prefix_until_they_expire() -> None:
    check()
    cache.set("counted", [1], 60)
    (name,) = client.client().keys(f"{client.key('cache')}*")
    assert 0 < client.client().pttl(name) <= 60_000


def test_without_redis_each_process_keeps_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_cache.client, "client", Gone)
    check()
    cache.clear()
