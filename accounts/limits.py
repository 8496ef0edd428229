"""Limit what one organization may hold and request, so that it cannot take an installation's capacity from others.

The limits are a row of the organization (`OrganizationLimits`), which only superusers edit; empty fields use the
installation's LIMIT_… settings, and 0 means no limit. Hot paths cost no query: limits are cached for CACHE_S, and
the number of open rows is counted again only after a time that is at least a hundred times as long as the last
count took. Between counts a process adds what it accepts itself, so several processes together may exceed a limit
by what they accept within that time. API keys are counted exactly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from accounts.models import ApiKey, OrganizationLimits
from dispatch.core import clock
from dispatch.core.api.problems import LimitReached
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.redis import client

CACHE_S = 10.0
# A count is used for at least this many times its duration; a refusal counts again after RECOUNT_SHARE times it.
COUNT_SHARE, RECOUNT_SHARE = 100, 20
RECOUNT_S = 1.0
# A socket that was not renewed for this many intervals of its check is gone.
MISSED_CHECKS = 4

LABELS = {
    "schedules": mark("active schedules"),
    "leads": mark("leads that are waiting to be called"),
    "messages": mark("messages that are not delivered yet"),
    "api_keys": mark("active API keys"),
    "sockets": mark("open pages with live updates"),
    "requests_per_minute": mark("API requests per minute"),
}
REMEDIES = {
    "schedules": mark("Delete schedules that are no longer needed"),
    "leads": mark("Wait until leads have been called, or cancel some"),
    "messages": mark("Wait until messages are delivered, or cancel some"),
    "api_keys": mark("Revoke keys that are no longer needed"),
    "sockets": mark("Close some pages"),
    "requests_per_minute": mark("Send fewer requests"),
}


@dataclass(frozen=True)
class Limits:
    """The limits in effect for one organization; 0: none."""

    schedules: int
    leads: int
    messages: int
    api_keys: int
    sockets: int
    requests_per_minute: int


@dataclass
class _Count:
    """The number of open rows: as counted, plus what this process has accepted since."""

    value: int
    counted_at: float
    duration_s: float

    def is_fresh(self, now: float, *, share: int, least_s: float) -> bool:
        return now - self.counted_at < max(least_s, share * self.duration_s)


_lock = threading.Lock()
_limits: dict[int, tuple[float, Limits]] = {}
_counts: dict[tuple[int, str], _Count] = {}


def reset() -> None:
    """Reset the caches (tests, and after a change in this process)."""
    with _lock:
        _limits.clear()
        _counts.clear()


def limits_of(organization_id: int) -> Limits:
    """Return the organization's limits. Reads them at most once per CACHE_S."""
    now = time.monotonic()
    known = _limits.get(organization_id)
    if known is not None and now < known[0]:
        return known[1]
    row = OrganizationLimits.objects.filter(organization_id=organization_id).values(*LABELS).first() or {}
    found = Limits(**{name: default_limit(name) if row.get(name) is None else row[name] for name in LABELS})
    _limits[organization_id] = (now + CACHE_S, found)
    return found


def default_limit(name: str) -> int:
    """Return the installation's limit for organizations without their own."""
    return int(getattr(settings, f"LIMIT_{name.upper()}"))


def limit_reached(name: str, limit: int, used: int | None = None) -> LimitReached:
    """Return the error that names the limit that was reached, and says what to do."""
    return LimitReached(
        _(
            "Your organization may have at most {limit} {things}. {remedy}, or ask the operator of this "
            "installation for a higher limit."
        ).format(limit=f"{limit:,}", things=_(LABELS[name]), remedy=_(REMEDIES[name])),
        limit={"name": name, "limit": limit, "used": used},
    )


def check_headroom(organization_id: int, name: str, adding: int, count: Callable[[int], int]) -> None:
    """Raise LimitReached if `adding` more rows would exceed the limit `name`. Call it before they are written.

    `count(limit)` counts the organization's open rows; it may stop at `limit`.
    """
    limit = getattr(limits_of(organization_id), name)
    if not limit or not adding:
        return
    place = (organization_id, name)
    with _lock:
        known = _counts.get(place)
        if known is not None and known.is_fresh(time.monotonic(), share=COUNT_SHARE, least_s=CACHE_S):
            if known.value + adding <= limit:
                known.value += adding
                return
            if known.is_fresh(time.monotonic(), share=RECOUNT_SHARE, least_s=RECOUNT_S):
                raise limit_reached(name, limit, known.value)
    began = time.monotonic()
    value = count(limit + 1)
    now = time.monotonic()
    is_over = value + adding > limit
    with _lock:
        _counts[place] = _Count(value if is_over else value + adding, now, now - began)
    if is_over:
        raise limit_reached(name, limit, value)


def check_key_limit(organization_id: int) -> None:
    """Raise LimitReached if the organization has as many active API keys as it may have.

    Call it while the organization's row is locked.
    """
    limit = limits_of(organization_id).api_keys
    active = ApiKey.objects.of(organization_id).filter(revoked_at=None).exclude(expires_at__lte=clock.now())
    if limit and (used := active.count()) >= limit:
        raise limit_reached("api_keys", limit, used)


# --- sockets ----------------------------------------------------------------------------------------------------

# KEYS: the organization's sockets. ARGV: name, limit (0: none), lifetime in ms, clock offset. Returns 1 if it was
# admitted.
_ADMIT = client.Script(
    "admit_socket",
    """
    local now = now_ms(ARGV[4])
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
    local limit = tonumber(ARGV[2])
    if limit > 0 and not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= limit then
      return 0
    end
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return 1
    """,
)


def admit_socket(organization_id: int, name: str) -> bool:
    """Register or renew an open socket. Return False if the organization has too many. Without Redis, admit it."""
    lifetime_ms = round(settings.SOCKET_RECHECK_S * MISSED_CHECKS * 1000)
    arguments: list[Any] = [name, limits_of(organization_id).sockets, lifetime_ms, clock.offset_ms()]
    try:
        return bool(_ADMIT(keys=[_sockets_key(organization_id)], args=arguments))
    except client.REDIS_ERRORS:
        return True


def release_socket(organization_id: int, name: str) -> None:
    """Remove a closed socket. Without Redis, it expires."""
    try:
        client.client().zrem(_sockets_key(organization_id), name)
    except client.REDIS_ERRORS:
        return


def _sockets_key(organization_id: int) -> str:
    return client.key("sockets", organization_id)
