"""A Redis stream read by one consumer group: the default queue, in the Redis that runs anyway.

What a dead consumer held is claimed by another once it has been idle for OUTBOX_VISIBILITY_S. A pointer that was
released with a delay waits in a sorted set. A Redis that was emptied loses the pointers; stale recovery publishes
them anew. Raises nothing of Redis's, only QueueUnavailable."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from dispatch.core import clock
from dispatch.core.redis import Script, client, key
from dispatch.outbox.queues.base import Consumer, Delivery, Publication, Publisher, QueueUnavailable

GROUP = "routers"
BODY = b"pointer"
# A consumer that asked for nothing for this long and holds nothing is struck off the group's list.
FORGET_CONSUMER_AFTER_MS = 3_600_000
# A router that is asked to stop does so within this.
LONGEST_BLOCK_MS = 1000

# KEYS: stream, one per deduplication id. ARGV: how long to remember (ms), then the pointers. All or nothing.
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
# KEYS: stream, delayed. ARGV: clock offset, how many. Puts what is due back on the stream; answers in how many
# milliseconds the next is due, or -1.
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
# KEYS: stream, delayed. ARGV: group, id, pointer, clock offset, delay (ms). Nothing when it was settled already.
_RELEASE = Script(
    "outbox_release",
    """
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], now_ms(ARGV[4]) + tonumber(ARGV[5]), ARGV[2] .. '|' .. ARGV[3])
return 1
""",
)
# KEYS: stream. ARGV: group, idle (ms). Deleting a consumer drops what it holds, so only those that hold nothing.
_FORGET = Script(
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
    return RedisPublisher(_server(url))


def consumer(url: str, name: str) -> Consumer:
    return RedisConsumer(_server(url), name)


def _server(url: str) -> Callable[[], redis.Redis]:
    """How to come by a client of `url`; empty: the Redis of the application. Raises ImproperlyConfigured."""
    if not url:
        return client
    try:
        redis.connection.parse_url(url)
    except ValueError as error:
        raise ImproperlyConfigured(f"OUTBOX_QUEUE_URL is not usable: {error}.") from None
    return functools.partial(_client_of, url)


@functools.cache
def _client_of(url: str) -> redis.Redis:
    timeout = settings.REDIS_TIMEOUT_S
    return redis.Redis.from_url(
        url, socket_timeout=timeout, socket_connect_timeout=timeout, health_check_interval=30
    )


def stream_key() -> str:
    return key("outbox", "pointers")


def delayed_key() -> str:
    return key("outbox", "delayed")


@contextmanager
def _speaking() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable(f"Redis: {error}") from error


class RedisPublisher(Publisher):
    def __init__(self, server: Callable[[], redis.Redis]) -> None:
        self._server = server

    def publish_many(self, publications: Sequence[Publication]) -> list[Exception | None]:
        if not publications:
            return []
        keys = [stream_key(), *(key("outbox", "seen", dedup_id) for _, dedup_id in publications)]
        bodies = [pointer.to_json() for pointer, _ in publications]
        try:
            with _speaking():
                _PUBLISH(keys, [int(settings.OUTBOX_DEDUP_S * 1000), *bodies], self._server())
        except QueueUnavailable as error:
            return [error] * len(publications)
        return [None] * len(publications)

    def ping(self) -> None:
        with _speaking():
            self._server().ping()


class RedisConsumer(Consumer):
    def __init__(self, server: Callable[[], redis.Redis], name: str) -> None:
        super().__init__(name)
        self._server = server
        self._claim_at = 0.0

    def receive(self, max_n: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        with _speaking():
            while True:
                next_due_ms = _RESUME([stream_key(), delayed_key()], [clock.offset_ms(), max_n], self._server())
                found = self._claim(max_n) or self._read(max_n, None)
                left_ms = int((deadline - time.monotonic()) * 1000)
                if found or left_ms <= 0:
                    return found
                # Not longer than the socket may be silent, nor than until the next delayed one is due.
                longest_ms = min(LONGEST_BLOCK_MS, int(settings.REDIS_TIMEOUT_S * 500))
                block_ms = min(left_ms, longest_ms, *([next_due_ms] * (next_due_ms >= 0)))
                if found := self._read(max_n, max(1, block_ms)):
                    return found

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
        """What others took and never settled; looked for now and then, not at each turn."""
        now = time.monotonic()
        if now < self._claim_at:
            return []
        idle_ms = int(settings.OUTBOX_VISIBILITY_S * 1000)
        server, stream = self._server(), stream_key()
        try:
            answer = server.xautoclaim(stream, GROUP, self.name, idle_ms, "0-0", count)
            _FORGET([stream], [GROUP, FORGET_CONSUMER_AFTER_MS], server)
        except redis.ResponseError as error:
            if "NOGROUP" not in str(error) and "no such key" not in str(error):
                raise
            self._make_group()
            return []
        found = self._deliveries(answer[1])
        if len(found) < count:
            self._claim_at = now + min(5.0, settings.OUTBOX_VISIBILITY_S / 4)
        return found

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
            if fields is not None  # deleted since it was handed out
        ]

    def _ack(self, deliveries: Sequence[Delivery]) -> None:
        names = [delivery.receipt for delivery in deliveries]
        with _speaking(), self._server().pipeline(transaction=True) as pipeline:
            pipeline.xack(stream_key(), GROUP, *names)
            pipeline.xdel(stream_key(), *names)
            pipeline.execute()

    def _release(self, delivery: Delivery, delay_s: float) -> None:
        told = [GROUP, delivery.receipt, delivery.pointer_json, clock.offset_ms(), int(delay_s * 1000)]
        with _speaking():
            _RELEASE([stream_key(), delayed_key()], told, self._server())


def _pairs(answer: Any) -> Sequence[tuple[bytes, Sequence[Any]]]:
    """XREADGROUP's answer as (stream, entries), in either version of the protocol."""
    if not answer:
        return []
    return list(answer.items()) if isinstance(answer, dict) else answer
