"""The channel layer of the sockets, with time limits and the circuit breaker of its Redis server.

channels_redis waits without a limit, one operation after another. Here, a server that hangs costs the sockets of
a process one timeout together; then joining a group fails at once, the page reconnects, and it reads the database
meanwhile.

redis-py connects a lost subscription again in each task that uses it, and two tasks then read one connection.
Here, a lost subscription is closed, and a new one takes over its channels.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import structlog
from channels_redis.pubsub import RedisPubSubChannelLayer, RedisSingleShardConnection
from channels_redis.utils import create_pool
from django.conf import settings
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError  # noqa: A004  (its name in the library)
from redis.exceptions import TimeoutError as RedisTimeout

from dispatch.core.redis.client import REDIS_ERRORS, CircuitOpen, breaker, keepalive
from dispatch.core.server_addresses import sentinels

log = structlog.get_logger(__name__)

_FAILURES: tuple[type[Exception], ...] = (*REDIS_ERRORS, OSError)
# How long one read of a subscription waits, until the next check whether the connection must be tested (seconds).
_READ_S = 1.0
# How long the server of a subscription may be silent before it is asked for an answer, and how long it then has
# (seconds). The kernel of a host that hangs acknowledges what is sent, so the connection itself raises nothing.
_CHECK_S, _ANSWER_S = 15.0, 5.0
# How long to wait after a new subscription failed, also at its first read (seconds).
_PAUSE_S = 1.0


def _limits(url: str) -> dict[str, Any]:
    limits: dict[str, Any] = {"socket_timeout": settings.REDIS_TIMEOUT_S, "health_check_interval": _CHECK_S}
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

    _redis: Any
    _pubsub: Any
    _receive_task: Any

    def __init__(self, host: dict[str, Any], channel_layer: Any) -> None:
        self.url: str = host["address"]
        super().__init__({**_limits(self.url), **_host(self.url)}, channel_layer)
        self._subscriber: Redis | None = None
        self._opened_at = 0.0  # when the subscription was opened, in the loop's time

    async def publish(self, channel: str, message: bytes) -> None:
        await self._guard(super().publish, channel, message)

    async def subscribe(self, channel: str) -> None:
        await self._guard(self._subscribe, channel)

    async def unsubscribe(self, channel: str) -> None:
        """Unsubscribe if the server responds. Otherwise what arrives for the channel is dropped here."""
        if channel not in self._subscribed_to:
            return
        self._subscribed_to.remove(channel)
        try:
            await self._guard(self._unsubscribe, channel)
        except REDIS_ERRORS as error:
            log.debug("channel_not_unsubscribed", error=str(error))

    async def flush(self) -> None:
        pubsub, subscriber = self._pubsub, self._subscriber
        self._subscriber = None
        await super().flush()  # ends the receiver
        self._pubsub = None
        if pubsub is not None:
            await pubsub.aclose()
        if subscriber is not None:
            await subscriber.aclose(close_connection_pool=True)

    def _ensure_redis(self) -> None:
        """Make the client that publishes; subscriptions have another."""
        if self._redis is None:
            self._redis = Redis(connection_pool=create_pool(self.host))

    async def _subscribe(self, channel: str) -> None:
        async with self._lock:
            if channel in self._subscribed_to:
                return
            if self._pubsub is None:
                await self._open({*self._subscribed_to, channel})
            else:
                try:
                    await self._pubsub.subscribe(channel)
                except ConnectionError:
                    await self._drop(self._pubsub)
                    await self._open({*self._subscribed_to, channel})
            self._subscribed_to.add(channel)

    async def _unsubscribe(self, channel: str) -> None:
        async with self._lock:
            if self._pubsub is not None:
                await self._pubsub.unsubscribe(channel)

    async def _open(self, channels: Collection[str]) -> None:
        """Subscribe to the channels on a new connection."""
        if self._subscriber is None:
            # An error ends the subscription: it is not connected again.
            never = Retry(NoBackoff(), 0, supported_errors=())
            self._subscriber = Redis(connection_pool=create_pool({**self.host, "retry": never}))
        pubsub = self._subscriber.pubsub()
        try:
            await pubsub.subscribe(*channels)
        except BaseException:
            with contextlib.suppress(*_FAILURES):
                await pubsub.aclose()
            raise
        self._pubsub, self._opened_at = pubsub, asyncio.get_running_loop().time()
        self._ensure_receiver()

    async def _drop(self, pubsub: PubSub | None) -> None:
        """Close a subscription that failed."""
        if self._pubsub is pubsub:
            self._pubsub = None
        if pubsub is not None:
            with contextlib.suppress(*_FAILURES):
                await pubsub.aclose()

    async def _take_over(self) -> None:
        """Subscribe again to all channels of a subscription that was lost."""
        async with self._lock:
            if self._pubsub is None and self._subscribed_to:
                await self._open(tuple(self._subscribed_to))

    async def _do_receiving(self) -> None:
        while True:
            pubsub = self._pubsub
            try:
                if pubsub is not None:
                    self._receive_message(
                        await pubsub.get_message(ignore_subscribe_messages=True, timeout=_READ_S)
                    )
                    self._check_answers(pubsub)
                elif self._subscribed_to:
                    await self._guard(self._take_over)
                else:  # the next subscription starts another receiver
                    self._receive_task = None
                    return
            except Exception as error:
                if pubsub is None:  # the server is still unavailable
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if self._pubsub is pubsub:
                    log.warning("subscription_lost", error=str(error), channels=len(self._subscribed_to))
                async with self._lock:  # not while a socket subscribes with it
                    await self._drop(pubsub)
                if asyncio.get_running_loop().time() - self._opened_at < _PAUSE_S:  # the server refuses it
                    await asyncio.sleep(_PAUSE_S)

    def _check_answers(self, pubsub: PubSub) -> None:
        """Raise ConnectionError if the server has not answered the library's PING in time."""
        if pubsub.connection is None:  # closed meanwhile
            return
        # The library pings from this time on, which each answer delays.
        asked_at = max(pubsub.connection.next_health_check, self._opened_at)
        if asyncio.get_running_loop().time() > asked_at + _ANSWER_S:
            raise ConnectionError("Redis does not answer.")

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
                self._redis = None
                async with self._lock:
                    await self._drop(self._pubsub)
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
