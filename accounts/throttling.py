"""How many requests a caller may make: one bucket per caller for reading and one for writing.

A bucket is the one moment at which it will be full again (the generic cell rate algorithm), kept in Redis and
moved by one atomic script. When Redis is gone each process keeps its own buckets until it is back: looser, never
closed."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from dispatch.core import clock, redis
from dispatch.core.sparing import Spared

if TYPE_CHECKING:  # the framework imports this module while it defines these
    from rest_framework.request import Request
    from rest_framework.views import APIView

_PERIODS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LOCAL_BUCKETS = 10_000
# How long a process does without Redis before it asks it again.
_spared = Spared(2.0)

# KEYS: the bucket. ARGV: interval of one request, burst (both ms), clock offset.
# Answers {wait in ms (0 = go), ms until the bucket is full}.
_TAKE = redis.Script(
    "throttle_take",
    """
    local now = now_ms(ARGV[3])
    local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
    local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
    local wait = full_at + interval - burst - now
    if wait > 0 then
      return {math.ceil(wait), math.ceil(full_at - now)}
    end
    full_at = full_at + interval
    redis.call('SET', KEYS[1], string.format('%.3f', full_at), 'PX', math.ceil(full_at - now) + 1000)
    return {0, math.ceil(full_at - now)}
    """,
)


@dataclass(frozen=True)
class Rate:
    """`limit` requests in any `period_s`, all at once if they like."""

    limit: int
    period_s: int

    @property
    def interval_ms(self) -> float:
        return self.period_s * 1000 / self.limit


@dataclass(frozen=True)
class Taken:
    """`wait_ms` is 0 when the request may go; `full_in_ms` is when the bucket has all its room again."""

    wait_ms: int
    full_in_ms: int


def parse(rate: str) -> Rate:
    """ "600/min" as a Rate."""
    limit, _, period = rate.partition("/")
    return Rate(int(limit), _PERIODS_S[period[0]])


class LocalBuckets:
    """The same buckets in this process; the least recently used are dropped."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str, rate: Rate) -> Taken:
        now = clock.now().timestamp() * 1000
        with self._lock:
            full_at = max(self._full_at.pop(name, 0.0), now)
            wait = full_at + rate.interval_ms - rate.period_s * 1000 - now
            if wait <= 0:
                full_at += rate.interval_ms
            self._full_at[name] = full_at
            if len(self._full_at) > LOCAL_BUCKETS:
                self._full_at.popitem(last=False)
        return Taken(max(0, math.ceil(wait)), math.ceil(full_at - now))

    def forget(self) -> None:
        """All are full again (tests)."""
        with self._lock:
            self._full_at.clear()


local = LocalBuckets()


def take(name: str, rate: Rate) -> Taken:
    """Takes one request from the bucket `name`, in Redis if it is there. Never raises for a missing Redis."""
    if not _spared:
        try:
            arguments = [f"{rate.interval_ms:.3f}", rate.period_s * 1000, clock.offset_ms()]
            wait, full_in = _TAKE(keys=[redis.key("throttle", name)], args=arguments)
            return Taken(int(wait), int(full_in))
        except redis.REDIS_ERRORS:
            _spared.failed()
    return local.take(name, rate)


class OrganizationThrottle(BaseThrottle):
    """One bucket per API key or person, in its organization; a refusal is a 429 with Retry-After.

    Every answer says RateLimit-Limit, -Remaining and -Reset (seconds); the middleware puts them on. A view may
    name its own bucket and rate: `throttle_scope = "leads"` with a rate of that name in the settings."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        organization = getattr(request, "organization", None)
        if organization is None:
            return True  # nobody was let in
        scope = getattr(view, "throttle_scope", "") or ("read" if request.method in SAFE_METHODS else "write")
        rate = parse(str(api_settings.DEFAULT_THROTTLE_RATES[scope]))
        caller = f"key:{request.auth.pk}" if request.auth else f"user:{request.user.pk}"
        taken = take(f"{organization.pk}:{caller}:{scope}", rate)
        self._wait_s = math.ceil(taken.wait_ms / 1000)
        room = (rate.period_s * 1000 - taken.full_in_ms) / rate.interval_ms
        request._request.rate_headers = {
            "RateLimit-Limit": str(rate.limit),
            "RateLimit-Remaining": str(max(0, math.floor(room + 1e-6))),
            "RateLimit-Reset": str(math.ceil(taken.full_in_ms / 1000)),
        }
        return taken.wait_ms == 0

    def wait(self) -> float:
        return self._wait_s
