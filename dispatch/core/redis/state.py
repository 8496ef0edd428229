"""Find out what is wrong with Redis: it does not respond, rejects writes, or evicts keys."""

from __future__ import annotations

from typing import Any, NamedTuple

from redis.exceptions import OutOfMemoryError, ReadOnlyError

from dispatch.core.redis.client import REDIS_ERRORS, CircuitOpen, all_clients, key

NOEVICTION = "noeviction"
AWAY = "Redis does not respond."
_PROBE_S = 60


class RedisFault(NamedTuple):
    """What is wrong with one server, in words that name no address, and the reason for the log.

    `is_unusable`: work goes on without it, more slowly.
    """

    server: str
    words: str
    reason: str
    is_unusable: bool


def find_faults() -> list[RedisFault]:
    """Return the fault of each configured server that has one, unusable servers first."""
    faults = [_fault_of(server, client) for server, client in all_clients().items()]
    return sorted((fault for fault in faults if fault), key=lambda fault: not fault.is_unusable)


def eviction_policy(memory: dict[str, Any]) -> str:
    """Return the policy by which the server evicts keys, from its INFO; empty if it evicts none."""
    policy = str(memory.get("maxmemory_policy", NOEVICTION))
    return "" if policy == NOEVICTION else policy


def _fault_of(server: str, client: Any) -> RedisFault | None:
    """Return the server's fault, found by a write: a full server and a replica still answer reads."""
    try:
        with client.pipeline(transaction=False) as pipe:
            pipe.set(key("probe"), 1, ex=_PROBE_S)
            pipe.info("memory")
            _, memory = pipe.execute()
    except REDIS_ERRORS as error:
        kind, text = type(error), str(error)
        if isinstance(error, CircuitOpen) and client.breaker.last_failure:
            kind, text = client.breaker.last_failure
        reason = (text.strip() or kind.__name__).splitlines()[0]
        return RedisFault(server, _words_for(kind), reason, is_unusable=True)
    policy = eviction_policy(memory)
    if not policy:
        return None
    words = f"Redis evicts keys when memory runs low (maxmemory-policy {policy})."
    return RedisFault(server, words, words, is_unusable=False)


def _words_for(error: type[BaseException]) -> str:
    if issubclass(error, OutOfMemoryError):
        return "Redis is full and rejects writes."
    if issubclass(error, ReadOnlyError):
        return "Redis is a replica and rejects writes."
    return AWAY
