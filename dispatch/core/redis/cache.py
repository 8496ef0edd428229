"""Serve Django's cache from Redis. During an outage each process keeps the values itself.

Sign-in limits use it. Without Redis they become looser, but nobody is kept from signing in. Values are JSON.
"""

from __future__ import annotations

import json
import math
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.core.cache.backends.locmem import LocMemCache

from dispatch.core.redis import client


class RedisCache(BaseCache):
    """Store JSON values under our Redis prefix."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self._local = LocMemCache("redis-outage", params)

    def add(
        self, key: str, value: Any, timeout: float | None = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        name = self.make_and_validate_key(key, version=version)
        try:
            return bool(self._write(name, value, timeout, only_new=True))
        except client.REDIS_ERRORS:
            return self._local.add(name, value, timeout)

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        name = self.make_and_validate_key(key, version=version)
        try:
            text = client.client().get(client.key("cache", name))
        except client.REDIS_ERRORS:
            return self._local.get(name, default)
        return default if text is None else json.loads(text)

    def set(
        self, key: str, value: Any, timeout: float | None = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        name = self.make_and_validate_key(key, version=version)
        try:
            self._write(name, value, timeout)
        except client.REDIS_ERRORS:
            self._local.set(name, value, timeout)

    def touch(self, key: str, timeout: float | None = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        missing = object()
        value = self.get(key, missing, version)
        if value is missing:
            return False
        self.set(key, value, timeout, version)
        return True

    def delete(self, key: str, version: int | None = None) -> bool:
        name = self.make_and_validate_key(key, version=version)
        local = self._local.delete(name)
        try:
            return bool(client.client().delete(client.key("cache", name)))
        except client.REDIS_ERRORS:
            return local

    def clear(self) -> None:
        """Delete the values of this process only: the server is shared."""
        self._local.clear()

    def _write(self, name: str, value: Any, timeout: float | None, *, only_new: bool = False) -> Any:
        seconds = self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
        if seconds is not None and seconds <= 0:
            return client.client().delete(client.key("cache", name))
        lasts_ms = None if seconds is None else math.ceil(seconds * 1000)
        return client.client().set(client.key("cache", name), json.dumps(value), px=lasts_ms, nx=only_new)
