"""Redis as the fast path: one pooled client, prefixed keys, scripts that survive a restart of the server.

Whoever calls here must be able to go on without it: catch `REDIS_ERRORS`."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,  # noqa: A004  (its name in the library)
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    TimeoutError,  # noqa: A004
)
from redis.retry import Retry

# What is raised when Redis is away, starting, full or a replica: not our mistake, and not a reason to fail work.
REDIS_ERRORS: tuple[type[Exception], ...] = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    OutOfMemoryError,
    ReadOnlyError,
)

# Put before every script: the present in Unix milliseconds on Redis's own clock plus `clock.offset_ms()`.
_PRELUDE = """
local function now_ms(offset_ms)
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000) + tonumber(offset_ms)
end
"""


def connect(*, socket_timeout: float | None = None) -> redis.Redis:
    """A client of its own pool; `socket_timeout` in seconds (default REDIS_TIMEOUT_S). Most code wants `client()`.

    A lost connection is tried once more at once; a timeout never is, for the command may have run."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=socket_timeout or settings.REDIS_TIMEOUT_S,
        socket_connect_timeout=settings.REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
        health_check_interval=30,
    )


@functools.cache
def client() -> redis.Redis:
    """The shared, thread-safe client; answers are bytes."""
    return connect()


def key(*parts: object) -> str:
    """One of our keys: the prefix and the parts, joined by colons."""
    return settings.REDIS_PREFIX + ":".join(map(str, parts))


class Script:
    """A Lua script, run by its digest and loaded again whenever the server has forgotten it.

    In the source `now_ms(offset_ms)` is at hand; pass `clock.offset_ms()` as one of the arguments."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = _PRELUDE + source
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def __call__(
        self, keys: Sequence[str] = (), args: Sequence[Any] = (), client: redis.Redis | None = None
    ) -> Any:
        """Runs it. Raises one of REDIS_ERRORS when Redis is gone, ResponseError when the script is wrong."""
        server = client or _shared()
        try:
            return server.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return server.eval(self.source, len(keys), *keys, *args)

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


def _shared() -> redis.Redis:
    return client()


_DELETE_IF_MINE = Script(
    "delete_if_mine",
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
)


def delete_if_mine(name: str, token: str) -> bool:
    """Deletes the lock `name` when it still holds `token`."""
    return bool(_DELETE_IF_MINE(keys=[name], args=[token]))
