"""Track with a generation key whether the data in Redis is valid.

The key is stored in Redis beside the data and vanishes with it (a flush, a new server). Every script begins with
`GUARD` and has `key_name()` as KEYS[1]. Without the key it returns NOT_READY, and its caller falls back to
PostgreSQL. The loop `redis_generation` of each dispatcher calls `ensure_generation()` every second; transactions
and web requests never do, because a rebuild may take long. It happens under a lock in the same Redis: if the lock
is lost during the rebuild, so is the rebuilt data, and the key is not set.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import structlog

from dispatch.core.observability import metrics
from dispatch.core.redis.client import LEADS, REDIS_ERRORS, Script, client, delete_if_mine, key

log = structlog.get_logger(__name__)

NOT_READY = b"NOT_READY"
# The first line of a script whose KEYS[1] is `key_name()`.
GUARD = "if redis.call('EXISTS', KEYS[1]) == 0 then return 'NOT_READY' end\n"

LOCK_MS = 30_000  # the rebuild lock's lifetime; renewed before each rebuilder

_rebuilders: list[Callable[[], None]] = []

_RENEW = Script(
    "generation_renew",
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0",
)
_ESTABLISH = Script(
    "generation_establish",
    """
if redis.call('GET', KEYS[2]) == ARGV[1] then return 1 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[1])
return 1
""",
)


def key_name() -> str:
    """Return the generation's key: KEYS[1] of every guarded script."""
    return key("generation")


def on_lost(rebuild: Callable[[], None]) -> Callable[[], None]:
    """Register a function that rebuilds a slice's keys from PostgreSQL. Usable as a decorator.

    The function must be idempotent and assume that its keys are missing or stale.
    """
    if rebuild not in _rebuilders:
        _rebuilders.append(rebuild)
    return rebuild


def current_generation() -> str | None:
    """Return the current generation, or None if it is lost. Raises one of REDIS_ERRORS if Redis is unavailable."""
    value = client(LEADS).get(key_name())
    return value.decode() if isinstance(value, bytes) else None


def rebuild_all() -> str | None:
    """Call every rebuilder and set a new generation, which is returned.

    Return None if another process is rebuilding, or Redis was lost during the rebuild. An exception of a rebuilder
    is raised, and the generation stays unset.
    """
    lock, token = key("generation", "lock"), uuid.uuid4().hex
    if not client(LEADS).set(lock, token, nx=True, px=LOCK_MS):
        return None
    try:
        for rebuild in _rebuilders:
            if not _RENEW(keys=[lock], args=[token, LOCK_MS], client=client(LEADS)):
                return None
            rebuild()
        if not _ESTABLISH(keys=[lock, key_name()], args=[token], client=client(LEADS)):
            return None
    except BaseException:
        _unlock(lock, token)
        raise
    metrics.redis_rebuilds.inc()
    log.info("redis_rebuilt", generation=token)
    return token


def ensure_generation() -> bool:
    """Return whether Redis is valid now. Rebuilds it if it is empty; returns False if it is unavailable."""
    try:
        return (current_generation() or rebuild_all()) is not None
    except REDIS_ERRORS:
        return False


def _unlock(lock: str, token: str) -> None:
    try:
        delete_if_mine(lock, token, client(LEADS))
    except REDIS_ERRORS:
        log.debug("rebuild_lock_release_failed")
