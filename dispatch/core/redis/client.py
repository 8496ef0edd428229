"""Provide Redis as the fast path: one pooled client, prefixed keys, and scripts that survive a server restart.

Callers must be able to continue without Redis: catch `REDIS_ERRORS`. Every command on a shared client passes the
circuit breaker of its server: after a timeout, a refused connection or a refused write, the commands of this
process fail immediately for a second; then one of them probes. redis-py repeats a command whose connection was
reset, although it may have run: a script that changes state must be idempotent.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.connection import parse_url
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,  # noqa: A004  (its name in the library)
    MaxConnectionsError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    TimeoutError,  # noqa: A004
)
from redis.retry import Retry

from dispatch.core.circuit_breaker import CircuitBreaker

T = TypeVar("T")

# Raised if Redis is unavailable, starting, full or a replica: not a bug, and not a reason to fail work.
REDIS_ERRORS: tuple[type[Exception], ...] = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    OutOfMemoryError,
    ReadOnlyError,
)

# Errors that open the circuit.
_FAILURES: tuple[type[Exception], ...] = (*REDIS_ERRORS, OSError)

# Prepended to every script: the current time in Unix milliseconds on Redis's clock plus `clock.offset_ms()`.
_PRELUDE = """
local function now_ms(offset_ms)
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000) + tonumber(offset_ms)
end
"""


class CircuitOpen(ConnectionError):
    """The server failed a moment ago; the command was not sent."""


@functools.cache
def _breaker_at(address: str) -> CircuitBreaker:
    return CircuitBreaker(address)


def breaker(url: str = "") -> CircuitBreaker:
    """Return this process's circuit breaker for the server at `url` (default REDIS_URL).

    All databases of a server share it. Raises ValueError if `url` cannot be parsed.
    """
    return _breaker_at(_address_of(url or settings.REDIS_URL))


@functools.lru_cache(maxsize=16)
def _address_of(url: str) -> str:
    """Return the server's address, without its password."""
    parts = parse_url(url)
    return str(parts.get("path") or f"{parts.get('host', 'localhost')}:{parts.get('port', 6379)}")


class _GuardedClient(redis.Redis):
    """Send commands through a circuit breaker."""

    breaker: CircuitBreaker

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return _guard(self.breaker, lambda: super(_GuardedClient, self).execute_command(*args, **options))

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> _GuardedPipeline:
        pipeline = _GuardedPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipeline.breaker = self.breaker
        return pipeline


class _GuardedPipeline(Pipeline):
    breaker: CircuitBreaker

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        if not self.command_stack and not self.watching:
            return []
        return _guard(self.breaker, lambda: super(_GuardedPipeline, self).execute(raise_on_error))

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        return _guard(
            self.breaker, lambda: super(_GuardedPipeline, self).immediate_execute_command(*args, **options)
        )


def _guard(breaker: CircuitBreaker, command: Callable[[], T]) -> T:
    if not breaker.admit():
        raise CircuitOpen(f"Redis at {breaker.name} failed a moment ago; commands are not sent yet.")
    try:
        answer = command()
    except MaxConnectionsError:  # a limit of this process, not a failure of the server
        breaker.release_probe()
        raise
    except _FAILURES as error:
        breaker.record_failure(error)
        raise
    except redis.RedisError:  # a response, although an error
        breaker.record_success()
        raise
    except BaseException:
        breaker.release_probe()
        raise
    breaker.record_success()
    return answer


def connect(*, socket_timeout: float | None = None) -> redis.Redis:
    """Return a client with a separate pool and no circuit breaker, for blocking commands.

    `socket_timeout` is in seconds (default REDIS_TIMEOUT_S). Most code should use `client()`. A lost connection is
    retried once immediately, a timeout never. In both cases the command may have run, so every script must be
    idempotent.
    """
    return redis.Redis.from_url(settings.REDIS_URL, **_options(socket_timeout))


def connect_guarded(url: str) -> redis.Redis:
    """Return a thread-safe client of the server at `url`, behind that server's circuit breaker."""
    made: Any = _GuardedClient.from_url(url, **_options(None))
    made.breaker = breaker(url)
    guarded: redis.Redis = made
    return guarded


def _options(socket_timeout: float | None) -> dict[str, Any]:
    return {
        "socket_timeout": socket_timeout or settings.REDIS_TIMEOUT_S,
        "socket_connect_timeout": settings.REDIS_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
        "health_check_interval": 30,
    }


@functools.cache
def client() -> redis.Redis:
    """Return the shared, thread-safe client behind the circuit breaker. Responses are bytes."""
    return connect_guarded(settings.REDIS_URL)


def key(*parts: object) -> str:
    """Return a key: the prefix and the parts, joined by colons."""
    return settings.REDIS_PREFIX + ":".join(map(str, parts))


class Script:
    """A Lua script, run by its digest and reloaded if the server has lost it.

    The source can call `now_ms(offset_ms)`; pass `clock.offset_ms()` as one of the arguments.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = _PRELUDE + source
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def __call__(
        self, keys: Sequence[str] = (), args: Sequence[Any] = (), client: redis.Redis | None = None
    ) -> Any:
        """Run the script.

        Raises one of REDIS_ERRORS if Redis is unavailable, ResponseError if the script is wrong.
        """
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
    """Delete the lock `name` if it still holds `token`."""
    return bool(_DELETE_IF_MINE(keys=[name], args=[token]))
