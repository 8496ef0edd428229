"""The generation key: whether what Redis holds can be believed.

It stands in Redis beside the data and vanishes with it (a flush, a new server). Every script begins with `GUARD`
and has `key_name()` as KEYS[1]; without the key it answers NOT_READY, and its caller falls back to Postgres and
calls `ensure()`. Rebuilding happens under a lock that lives in the same Redis: if that is lost on the way, so is
what was rebuilt, and the key is not set.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import structlog

from dispatch.core import metrics
from dispatch.core.redis import REDIS_ERRORS, Script, client, delete_if_mine, key

log = structlog.get_logger(__name__)

NOT_READY = b"NOT_READY"
# The first line of a script whose KEYS[1] is `key_name()`.
GUARD = "if redis.call('EXISTS', KEYS[1]) == 0 then return 'NOT_READY' end\n"

LOCK_MS = 30_000  # for one rebuilder; renewed before each

_rebuilders: list[Callable[[], None]] = []

_RENEW = Script(
    "generation_renew",
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0",
)
_ESTABLISH = Script(
    "generation_establish",
    """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[1])
return 1
""",
)


def key_name() -> str:
    """The generation's key: KEYS[1] of every guarded script."""
    return key("generation")


def on_lost(rebuild: Callable[[], None]) -> Callable[[], None]:
    """Registers what writes a slice's keys anew from Postgres. It must be repeatable, and take its own keys for
    empty or stale. Usable as a decorator."""
    if rebuild not in _rebuilders:
        _rebuilders.append(rebuild)
    return rebuild


def current() -> str | None:
    """The present generation, or None when it is lost. Raises one of REDIS_ERRORS when Redis is gone."""
    value = client().get(key_name())
    return value.decode() if isinstance(value, bytes) else None


def establish() -> str | None:
    """Rebuilds everything and sets a new generation; None when somebody else is at it, or Redis was lost
    on the way.

    Raises what a rebuilder raises; the generation then stays unset."""
    lock, token = key("generation", "lock"), uuid.uuid4().hex
    if not client().set(lock, token, nx=True, px=LOCK_MS):
        return None
    try:
        for rebuild in _rebuilders:
            if not _RENEW(keys=[lock], args=[token, LOCK_MS]):
                return None
            rebuild()
        if not _ESTABLISH(keys=[lock, key_name()], args=[token]):
            return None
    except BaseException:
        _unlock(lock, token)
        raise
    metrics.redis_rebuilds.inc()
    log.info("Redis was empty and is rebuilt", generation=token)
    return token


def ensure() -> bool:
    """Whether Redis can be believed now; rebuilds when it is there but empty. A Redis that is gone: False."""
    try:
        return (current() or establish()) is not None
    except REDIS_ERRORS:
        return False


def _unlock(lock: str, token: str) -> None:
    try:
        delete_if_mine(lock, token)
    except REDIS_ERRORS:
        log.debug("the rebuild lock could not be released; it lapses by itself")
