"""Limit requests per caller: one token bucket for reads and one for writes.

A bucket is stored as the time at which it will be full again (generic cell rate algorithm), in Redis, and updated
by one atomic script. Without Redis, each process keeps its own buckets: the limit becomes looser, and never blocks
everyone.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rest_framework.permissions import SAFE_METHODS
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from dispatch.core import clock
from dispatch.core.redis import client

if TYPE_CHECKING:  # the framework imports this module while it defines these
    from django.http import HttpRequest
    from rest_framework.request import Request
    from rest_framework.views import APIView


import time

from django.conf import settings
from rest_framework.exceptions import Throttled

_PERIODS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_LOCAL_BUCKETS = 10_000

# KEYS: buckets. ARGV: clock offset, then of each bucket the interval of one request and the burst (both ms). Takes
# a token from all of them or from none. Returns of each: wait in ms (0 = allowed), ms until it is full.
_TAKE = client.Script(
    "throttle_take_all",
    """
    local now = now_ms(ARGV[1])
    local answer, full, refused = {}, {}, false
    for i = 1, #KEYS do
      local interval, burst = tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1])
      local full_at = math.max(tonumber(redis.call('GET', KEYS[i]) or 0), now)
      local wait = full_at + interval - burst - now
      refused = refused or wait > 0
      answer[2 * i - 1] = math.max(0, math.ceil(wait))
      full[i] = full_at
    end
    for i = 1, #KEYS do
      if not refused then
        full[i] = full[i] + tonumber(ARGV[2 * i])
        redis.call('SET', KEYS[i], string.format('%.3f', full[i]), 'PX', math.ceil(full[i] - now) + 1000)
      end
      answer[2 * i] = math.ceil(full[i] - now)
    end
    return answer
    """,
)


@dataclass(frozen=True)
class Rate:
    """Allow `limit` requests in any `period_s`, in bursts up to `limit`."""

    limit: int
    period_s: int

    @property
    def interval_ms(self) -> float:
        return self.period_s * 1000 / self.limit


@dataclass(frozen=True)
class TokenResult:
    """Report whether a token was taken.

    `wait_ms` is 0 if the request is allowed. `full_in_ms` is the time until the bucket is full again.
    """

    wait_ms: int
    full_in_ms: int


def parse_rate(rate: str) -> Rate:
    """Parse a rate such as "600/min"."""
    limit, _, period = rate.partition("/")
    return Rate(int(limit), _PERIODS_S[period[0]])


class LocalBuckets:
    """Keep the same buckets in this process. The least recently used are dropped."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str, rate: Rate) -> TokenResult:
        return self.take_all((name, rate))[0]

    def take_all(self, *buckets: tuple[str, Rate]) -> list[TokenResult]:
        """Take a token from all of the buckets, or from none."""
        now = clock.now().timestamp() * 1000
        with self._lock:
            full = {name: max(self._full_at.pop(name, 0.0), now) for name, _ in buckets}
            waits = {name: full[name] + rate.interval_ms - rate.period_s * 1000 - now for name, rate in buckets}
            is_refused = any(wait > 0 for wait in waits.values())
            for name, rate in buckets:
                self._full_at[name] = full[name] if is_refused else full[name] + rate.interval_ms
            while len(self._full_at) > MAX_LOCAL_BUCKETS:
                self._full_at.popitem(last=False)
            return [
                TokenResult(max(0, math.ceil(waits[name])), math.ceil(self._full_at.get(name, now) - now))
                for name, _ in buckets
            ]

    def reset(self) -> None:
        """Reset all buckets to full (tests)."""
        with self._lock:
            self._full_at.clear()


local = LocalBuckets()


def take_token(name: str, rate: Rate) -> TokenResult:
    """Take one token from the bucket `name`, in Redis if available. Never raises if Redis is unavailable."""
    return take_tokens((name, rate))[0]


def take_tokens(*buckets: tuple[str, Rate]) -> list[TokenResult]:
    """Take one token from each bucket if all of them have one, else from none, in one round trip.

    Return the result of each. One whose `wait_ms` is 0 did not refuse.
    """
    try:
        arguments: list[Any] = [clock.offset_ms()]
        for _, rate in buckets:
            arguments += [f"{rate.interval_ms:.3f}", rate.period_s * 1000]
        answer = _TAKE(keys=[client.key("throttle", name) for name, _ in buckets], args=arguments)
    except client.REDIS_ERRORS:
        return local.take_all(*buckets)
    figures = [int(figure) for figure in answer]
    return [TokenResult(*figures[place : place + 2]) for place in range(0, len(figures), 2)]


class OrganizationThrottle(BaseThrottle):
    """Throttle each API key or person per organization. A refusal is a 429 with Retry-After.

    Every response has RateLimit-Limit, -Remaining and -Reset (seconds), which the middleware sets. A view may name
    a separate bucket and rate: `throttle_scope = "leads"` with a rate of that name in the settings. All callers of
    an organization share a further bucket (`limits.requests_per_minute`).
    """

    def allow_request(self, request: Request, view: APIView) -> bool:
        organization = getattr(request, "organization", None)
        if organization is None:
            return True  # the caller was not authenticated
        scope = getattr(view, "throttle_scope", "") or ("read" if request.method in SAFE_METHODS else "write")
        caller = f"key:{request.auth.pk}" if request.auth else f"user:{request.user.pk}"
        self._wait_s = take_request_token(request._request, organization.pk, caller, scope)
        return self._wait_s == 0

    def wait(self) -> float:
        return self._wait_s


def take_request_token(request: HttpRequest, organization_id: int, caller: str, scope: str) -> int:
    """Take the token of a request, once; return the seconds that the caller must wait, 0 if it is allowed.

    Sets `request.rate_headers`. Raises Throttled if all callers of the organization together are too many.
    """
    from accounts import limits  # the framework imports this module while the models are loading

    if getattr(request, "has_token", False):
        return 0
    rate = parse_rate(str(api_settings.DEFAULT_THROTTLE_RATES[scope]))
    buckets = [(f"{organization_id}:{caller}:{scope}", rate)]
    if shared := limits.limits_of(organization_id).requests_per_minute:
        buckets.append((f"{organization_id}:all", Rate(shared, 60)))
    taken, *of_all = take_tokens(*buckets)
    headroom = (rate.period_s * 1000 - taken.full_in_ms) / rate.interval_ms
    request.rate_headers = {
        "RateLimit-Limit": str(rate.limit),
        "RateLimit-Remaining": str(max(0, math.floor(headroom + 1e-6))),
        "RateLimit-Reset": str(math.ceil(taken.full_in_ms / 1000)),
    }
    if of_all and of_all[0].wait_ms and not taken.wait_ms:
        raise Throttled(
            math.ceil(of_all[0].wait_ms / 1000),
            f"Your organization may send at most {shared:,} {limits.LABELS['requests_per_minute']}. Send "
            "fewer, or ask the operator of this installation for a higher limit.",
        )
    request.has_token = taken.wait_ms == 0
    return math.ceil(taken.wait_ms / 1000)


MAX_BLOCKED_SENDERS = 10_000


class BlockedSenders:
    """Remember in this process which senders must wait, and until when. The oldest entries are dropped first."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, sender: str) -> float:
        """Return the seconds that this sender must still wait; 0 if none."""
        return max(0.0, self._until.get(sender, 0.0) - time.monotonic())

    def block(self, sender: str, wait_s: float) -> None:
        """Make this sender wait `wait_s` seconds."""
        with self._lock:
            self._until[sender] = time.monotonic() + wait_s
            self._until.move_to_end(sender)
            if len(self._until) > MAX_BLOCKED_SENDERS:
                self._until.popitem(last=False)

    def reset(self) -> None:
        """Clear all waits (tests)."""
        with self._lock:
            self._until.clear()


blocked_senders = BlockedSenders()


def check_sender(sender: str) -> None:
    """Raise Throttled while the sender (address and prefix) must wait. Does not contact Redis."""
    if wait := blocked_senders.wait_s(sender):
        raise Throttled(math.ceil(wait), "Too many requests with unknown API keys.")


def record_bad_key(sender: str) -> None:
    """Count an unknown key. Raises Throttled if there were too many."""
    taken = take_token(f"bad-key:{sender}", parse_rate(settings.API_BAD_KEY_RATE))
    if taken.wait_ms:
        blocked_senders.block(sender, taken.wait_ms / 1000)
        check_sender(sender)
