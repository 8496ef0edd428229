"""The channel layer of the sockets, with time limits and the circuit breaker of its Redis server.

channels_redis waits without a limit, one operation after another. Here, a server that hangs costs the sockets of
a process one timeout together; then joining a group fails at once, the page reconnects, and it reads the database
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from channels_redis.pubsub import RedisPubSubChannelLayer, RedisSingleShardConnection
from django.conf import settings
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError  # noqa: A004  (its name in the library)
from redis.exceptions import TimeoutError as RedisTimeout

from dispatch.core.redis.client import REDIS_ERRORS, CircuitOpen, breaker, keepalive
from dispatch.core.server_addresses import sentinels

log = structlog.get_logger(__name__)

_FAILURES: tuple[type[Exception], ...] = (*REDIS_ERRORS, OSError)


def _limits(url: str) -> dict[str, Any]:
    limits: dict[str, Any] = {"socket_timeout": settings.REDIS_TIMEOUT_S, "health_check_interval": 15}
    limits["socket_connect_timeout"] = settings.REDIS_TIMEOUT_S
    limits["retry"] = Retry(NoBackoff(), 1, supported_errors=(ConnectionError,))  # a timeout is not retried
    return limits | keepalive(url)


def _host(url: str) -> dict[str, Any]:
    """Return channels_redis' description of the server."""
    found = sentinels(url)
    if found is None:
        return {"address": url}
    tls = {"ssl": True} if found.tls else {}
    to_sentinels = {
        "socket_timeout": settings.REDIS_TIMEOUT_S,
        "socket_connect_timeout": settings.REDIS_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
    }
    return {
        "sentinels": list(found.nodes),
        "master_name": found.service,
        "sentinel_kwargs": {**to_sentinels, **found.own_login, **tls},
        "db": found.db,
        **found.login,
        **tls,
    }


class GuardedConnection(RedisSingleShardConnection):
    """A connection whose operations have a time limit and pass the circuit breaker."""

    def __init__(self, host: dict[str, Any], channel_layer: Any) -> None:
        self.url: str = host["address"]
        super().__init__({**_limits(self.url), **_host(self.url)}, channel_layer)

    async def publish(self, channel: str, message: bytes) -> None:
        await self._guard(super().publish, channel, message)

    async def subscribe(self, channel: str) -> None:
        await self._guard(super().subscribe, channel)

    async def unsubscribe(self, channel: str) -> None:
        """Unsubscribe if the server responds. Otherwise what arrives for the channel is dropped here."""
        try:
            await self._guard(super().unsubscribe, channel)
        except REDIS_ERRORS as error:
            log.debug("channel_not_unsubscribed", error=str(error))

    async def _guard(self, operation: Callable[..., Awaitable[None]], *args: Any) -> None:
        circuit = breaker(self.url)
        async with self._turn:
            if not circuit.admit():
                raise CircuitOpen(f"Redis at {circuit.name} failed a moment ago; sockets do not use it yet.")
            try:
                # The connection's own limit is shorter, and leaves it in a known state.
                async with asyncio.timeout(2 * settings.REDIS_TIMEOUT_S):
                    await operation(*args)
            except TimeoutError as error:
                circuit.record_failure(error)
                self._redis = self._pubsub = None
                raise RedisTimeout(f"Redis at {circuit.name} does not respond.") from error
            except _FAILURES as error:
                circuit.record_failure(error)
                raise
            except BaseException:
                circuit.release_probe()
                raise
            # A subscription that was written to a socket proves nothing about the server: another operation
            # closes the circuit.
            circuit.release_probe()

    @property
    def _turn(self) -> asyncio.Lock:
        """Let one operation at a time decide about the server, so that those that wait fail with the first."""
        if not hasattr(self, "_guard_lock"):
            self._guard_lock = asyncio.Lock()
        return self._guard_lock


class GuardedChannelLayer(RedisPubSubChannelLayer):
    """channels_redis' layer over guarded connections."""

    def _get_layer(self) -> Any:
        layer = super()._get_layer()
        if not isinstance(layer._shards[0], GuardedConnection):
            layer._shards = [GuardedConnection(shard.host, layer) for shard in layer._shards]
        return layer
