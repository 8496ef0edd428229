"""Provide Redis as the fast path: pooled clients, prefixed keys, and scripts that survive a server restart.

One server serves every purpose, unless a URL is configured for one of PURPOSES. A URL may name sentinels; each new
connection then asks them for the primary, so that processes follow a failover.

Callers must be able to continue without Redis: catch `REDIS_ERRORS`. Every command on a shared client passes the
circuit breaker of its server: after a timeout, a refused connection or a refused write, the commands of this
process fail immediately for a second; then one of them probes. redis-py repeats a command whose connection was
reset, although it may have run: a script that changes state must be idempotent.
"""

from __future__ import annotations

import functools
import hashlib
import socket
import threading
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
from redis.sentinel import Sentinel, SentinelConnectionPool

from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.server_addresses import Sentinels, sentinels

T = TypeVar("T")

# Purposes that may have a separate server: RQ's jobs; leads, lines and notifications of loops, which scripts use
# together; live updates; message pointers. Everything else uses REDIS_URL.
QUEUES, LEADS, CHANNELS, OUTBOX = "queues", "leads", "channels", "outbox"
PURPOSES = (QUEUES, LEADS, CHANNELS, OUTBOX)
# The host of a server that vanished is noticed after this many milliseconds without an acknowledgement.
USER_TIMEOUT_MS = 15_000
# A connection is checked before a command if there was no answer for this long (seconds).
HEALTH_CHECK_S = 30

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


def server_url(purpose: str = "") -> str:
    """Return the URL of the server for `purpose`, one of PURPOSES, or REDIS_URL if none is configured for it."""
    if purpose == OUTBOX:
        url = settings.OUTBOX_QUEUE_URL if settings.OUTBOX_QUEUE_TYPE == "redis" else ""
    else:
        url = getattr(settings, f"REDIS_{purpose.upper()}_URL") if purpose else ""
    return str(url or settings.REDIS_URL)


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
    if found := sentinels(url):
        return found.name
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


def connect(
    purpose: str = "", *, socket_timeout: float | None = None, health_check_s: int = HEALTH_CHECK_S
) -> redis.Redis:
    """Return a client with a separate pool and no circuit breaker, for blocking commands.

    `socket_timeout` is in seconds (default REDIS_TIMEOUT_S). A connection that has had no answer for
    `health_check_s` is checked before its next command.

    Most code should use `client()`. A lost connection is retried once immediately, a timeout never. In both cases
    the command may have run, so every script must be idempotent.
    """
    return _client_of(redis.Redis, server_url(purpose), socket_timeout, health_check_s)


def connect_guarded(url: str) -> redis.Redis:
    """Return a thread-safe client of the server at `url`, behind that server's circuit breaker."""
    made: Any = _client_of(_GuardedClient, url, None)
    made.breaker = breaker(url)
    guarded: redis.Redis = made
    return guarded


def _client_of(
    kind: type[redis.Redis], url: str, socket_timeout: float | None, health_check_s: int = HEALTH_CHECK_S
) -> redis.Redis:
    options = {
        "socket_timeout": socket_timeout or settings.REDIS_TIMEOUT_S,
        "socket_connect_timeout": settings.REDIS_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
        "health_check_interval": health_check_s,
        **keepalive(url),
    }
    if found := sentinels(url):
        return kind(connection_pool=_sentinel_pool(found, options))
    return kind.from_url(url, **options)


def _sentinel_pool(found: Sentinels, options: dict[str, Any]) -> SentinelConnectionPool:
    tls = {"ssl": True} if found.tls else {}
    to_sentinels = {
        "socket_timeout": settings.REDIS_TIMEOUT_S,
        "socket_connect_timeout": settings.REDIS_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        **found.own_login,
        **tls,
    }
    manager = Sentinel(list(found.nodes), sentinel_kwargs=to_sentinels)
    return SentinelConnectionPool(found.service, manager, db=found.db, **found.login, **tls, **options)


def keepalive(url: str) -> dict[str, Any]:
    """Return socket options with which a vanished host is noticed; none on a Unix socket."""
    user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)
    if url.startswith("unix") or user_timeout is None:
        return {}
    return {"socket_keepalive": True, "socket_keepalive_options": {user_timeout: USER_TIMEOUT_MS}}


class _SharedClients:
    """One client per server, shared by all purposes and threads."""

    def __init__(self) -> None:
        self._by_url: dict[str, redis.Redis] = {}
        self._lock = threading.Lock()

    def __call__(self, purpose: str = "") -> redis.Redis:
        """Return the thread-safe client for `purpose` behind its circuit breaker. Responses are bytes."""
        url = server_url(purpose)
        found = self._by_url.get(url)
        if found is None:
            with self._lock:
                found = self._by_url.get(url) or self._by_url.setdefault(url, connect_guarded(url))
        return found

    def cache_clear(self) -> None:
        """Make new clients from now on (tests that change the settings)."""
        with self._lock:
            self._by_url.clear()


client = _SharedClients()


def all_clients() -> dict[str, redis.Redis]:
    """Return a client of every configured server, by the server's name."""
    return {breaker(server_url(purpose)).name: client(purpose) for purpose in (*PURPOSES, "")}


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


def delete_if_mine(name: str, token: str, client: redis.Redis) -> bool:
    """Delete the lock `name` if it still holds `token`."""
    return bool(_DELETE_IF_MINE([name], [token], client))
