"""Carry pointers in a Redis stream with one consumer group: the default queue, in the application's Redis.

Pointers that a dead consumer held are claimed by another one after OUTBOX_VISIBILITY_S without activity. A
pointer released with a delay waits in a sorted set. Flushing Redis loses the pointers; stale recovery publishes
them again. The only exception raised is QueueUnavailable; Redis's exceptions are converted to it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from django.conf import settings

from dispatch.core import clock
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.redis.client import Script, breaker, client, connect_guarded, key
from dispatch.core.server_addresses import redis_address
from dispatch.outbox.queues.base import Consumer, Delivery, Publication, Publisher, QueueUnavailable

GROUP = "routers"
BODY = b"pointer"
# A consumer that has been idle for this long and holds nothing is removed from the group.
DELETE_CONSUMER_AFTER_MS = 3_600_000
# Bounds how long a router that has been asked to stop still waits for pointers.
MAX_BLOCK_MS = 1000

# KEYS: stream, one per deduplication id. ARGV: deduplication time (ms), then the pointers. All or nothing.
_PUBLISH = Script(
    "outbox_publish",
    """
local added = 0
for i = 2, #KEYS do
  if redis.call('SET', KEYS[i], 1, 'NX', 'PX', ARGV[1]) then
    redis.call('XADD', KEYS[1], '*', 'pointer', ARGV[i])
    added = added + 1
  end
end
return added
""",
)
# KEYS: stream, delayed. ARGV: clock offset, count. Moves due pointers back to the stream; returns the
# milliseconds until the next is due, or -1.
_RESUME = Script(
    "outbox_resume",
    """
local now = now_ms(ARGV[1])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[2])) do
  redis.call('ZREM', KEYS[2], member)
  redis.call('XADD', KEYS[1], '*', 'pointer', string.sub(member, string.find(member, '|', 1, true) + 1))
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if #first == 0 then return -1 end
return math.max(0, tonumber(first[2]) - now)
""",
)
# KEYS: stream, delayed. ARGV: group, id, pointer, clock offset, delay (ms). No effect if already acknowledged or
# released.
_RELEASE = Script(
    "outbox_release",
    """
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], now_ms(ARGV[4]) + tonumber(ARGV[5]), ARGV[2] .. '|' .. ARGV[3])
return 1
""",
)
# KEYS: stream. ARGV: group, idle (ms). Deleting a consumer drops its pending entries, so only idle consumers
# without such entries are deleted.
_DELETE_IDLE_CONSUMERS = Script(
    "outbox_forget_consumers",
    """
local gone = 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local fields = {}
  for i = 1, #info, 2 do fields[info[i]] = info[i + 1] end
  if fields['pending'] == 0 and fields['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], fields['name'])
    gone = gone + 1
  end
end
return gone
""",
)


def publisher(url: str) -> Publisher:
    """Return a publisher to the stream on the server `url`; empty: the application's Redis."""
    return RedisPublisher(_server(url), breaker(url))


def consumer(url: str, name: str) -> Consumer:
    """Return a consumer of the stream on the server `url`; empty: the application's Redis."""
    return RedisConsumer(_server(url), name)


def _server(url: str) -> Callable[[], redis.Redis]:
    """Return a function that returns a client of `url`; empty: the application's Redis.

    Raises ImproperlyConfigured.
    """
    if not url:
        return client
    redis_address(url, "OUTBOX_QUEUE_URL")
    return functools.partial(_client_of, url)


_client_of = functools.cache(connect_guarded)


def stream_key() -> str:
    """Return the key of the stream that carries pointers."""
    return key("outbox", "pointers")


def delayed_key() -> str:
    """Return the key of the sorted set of delayed pointers, scored by due time in milliseconds."""
    return key("outbox", "delayed")


@contextmanager
def _redis_errors_converted() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable(f"Redis: {error}") from error


class RedisPublisher(Publisher):
    """Publish each batch atomically in one script."""

    def __init__(self, server: Callable[[], redis.Redis], breaker: CircuitBreaker) -> None:
        self._server = server
        self.breaker = breaker

    def publish_many(self, publications: Sequence[Publication]) -> list[Exception | None]:
        if not publications:
            return []
        keys = [stream_key(), *(key("outbox", "seen", dedup_id) for _, dedup_id in publications)]
        bodies = [pointer.to_json() for pointer, _ in publications]
        try:
            with _redis_errors_converted():
                _PUBLISH(keys, [int(settings.OUTBOX_DEDUP_S * 1000), *bodies], self._server())
        except QueueUnavailable as error:
            return [error] * len(publications)
        return [None] * len(publications)

    def ping(self) -> None:
        with _redis_errors_converted():
            self._server().ping()


class RedisConsumer(Consumer):
    """Read as a member of the consumer group; from time to time, claim the entries of dead consumers."""

    def __init__(self, server: Callable[[], redis.Redis], name: str) -> None:
        super().__init__(name)
        self._server = server
        self._claim_at = 0.0

    def receive(self, max_n: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        with _redis_errors_converted():
            while True:
                next_due_ms = _RESUME([stream_key(), delayed_key()], [clock.offset_ms(), max_n], self._server())
                if deliveries := self._claim(max_n):
                    return deliveries
                # No longer than the socket timeout, and no longer than until the next delayed pointer is due.
                longest_ms = min(MAX_BLOCK_MS, int(settings.REDIS_TIMEOUT_S * 500))
                left_ms = int((deadline - time.monotonic()) * 1000)
                block_ms = min(left_ms, longest_ms, *([next_due_ms] * (next_due_ms >= 0)))
                deliveries = self._read(max_n, max(1, block_ms) if left_ms > 0 else None)
                if deliveries or time.monotonic() >= deadline - 0.001:
                    return deliveries

    def _read(self, count: int, block_ms: int | None) -> list[Delivery]:
        try:
            answer = self._server().xreadgroup(GROUP, self.name, {stream_key(): ">"}, count, block_ms)
        except redis.ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            self._make_group()
            return []
        return self._deliveries([entry for _, entries in _pairs(answer) for entry in entries])

    def _claim(self, count: int) -> list[Delivery]:
        """Claim entries that other consumers have held for too long.

        Done from time to time, not on each receive.
        """
        now = time.monotonic()
        if now < self._claim_at:
            return []
        idle_ms = int(settings.OUTBOX_VISIBILITY_S * 1000)
        server, stream = self._server(), stream_key()
        try:
            answer = server.xautoclaim(stream, GROUP, self.name, idle_ms, "0-0", count)
            _DELETE_IDLE_CONSUMERS([stream], [GROUP, DELETE_CONSUMER_AFTER_MS], server)
        except redis.ResponseError as error:
            if "NOGROUP" not in str(error) and "no such key" not in str(error):
                raise
            self._make_group()
            return []
        deliveries = self._deliveries(answer[1])
        if len(deliveries) < count:
            self._claim_at = now + min(5.0, settings.OUTBOX_VISIBILITY_S / 4)
        return deliveries

    def _make_group(self) -> None:
        try:
            self._server().xgroup_create(stream_key(), GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    def _deliveries(self, entries: Sequence[Any]) -> list[Delivery]:
        return [
            Delivery(fields.get(BODY, b"").decode("utf-8", "replace"), name.decode(), self._ack, self._release)
            for name, fields in entries
            if fields is not None  # deleted since it was delivered
        ]

    def _ack(self, deliveries: Sequence[Delivery]) -> None:
        names = [delivery.receipt for delivery in deliveries]
        with _redis_errors_converted(), self._server().pipeline(transaction=True) as pipeline:
            pipeline.xack(stream_key(), GROUP, *names)
            pipeline.xdel(stream_key(), *names)
            pipeline.execute()

    def _release(self, delivery: Delivery, delay_s: float) -> None:
        args = [GROUP, delivery.receipt, delivery.pointer_json, clock.offset_ms(), int(delay_s * 1000)]
        with _redis_errors_converted():
            _RELEASE([stream_key(), delayed_key()], args, self._server())


def _pairs(answer: Any) -> Sequence[tuple[bytes, Sequence[Any]]]:
    """Return XREADGROUP's reply as (stream, entries), for either version of the protocol."""
    if not answer:
        return []
    return list(answer.items()) if isinstance(answer, dict) else answer
