"""Get access tokens for endpoints with OAuth 2.0 client credentials (RFC 6749, section 4.4).

    token = await access_tokens.shared().get(endpoint, wait_s=2)

A process stores one token per endpoint until it expires. Tokens are fetched in tasks apart from the attempts, with
the guarded HTTP client: an attempt waits briefly for one, then leaves the group and its slot to others. A token is
fetched again before it expires, while the old one is in use.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import re
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode

import structlog

from dispatch.core.http import client
from dispatch.core.runtime.fair_shares import AsyncShares, SharesClosed
from dispatch.outbox.models import Endpoint
from dispatch.outbox.services.attempts import ticks

log = structlog.get_logger(__name__)

FETCH_TIMEOUT_S = 10.0
# Fetches in progress at once, divided among organizations, and at most this many of one.
FETCHES, FETCHES_PER_ORGANIZATION = 64, 8
# How long a failure is the answer for further attempts.
FAILURE_KEPT_S = 10.0
# A receiver that answers 401 to every token causes at most one fetch per endpoint in this time.
REJECTION_INTERVAL_S = 10.0
DEFAULT_LIFETIME_S, MAX_LIFETIME_S = 300.0, 86_400.0
# A token is not used in this last part of its lifetime, and fetched again in the background before.
UNUSED_SHARE, MAX_UNUSED_S, REFRESH_SHARE = 0.1, 30.0, 0.8
MAX_ENDPOINTS = 10_000
MAX_RESPONSE_BYTES = 65_536
_TOKEN = re.compile(r"[\x21-\x7e]{1,6000}")
_ERROR_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")


class TokenUnavailable(Exception):
    """The token server gave no token. The message is for users."""


class TokenPending(Exception):
    """The token is still being fetched."""


@dataclass(eq=False)
class _Entry:
    """What is known for one endpoint and its settings. Times are in `ticks()`."""

    settings: bytes
    token: str = ""
    usable_until: float = 0.0
    refresh_at: float = 0.0
    failure: str = ""
    failed_until: float = 0.0
    rejected_at: float = -math.inf
    fetch: asyncio.Task[str] | None = None


class AccessTokens:
    """Fetch and store the access tokens of one event loop."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._shares = AsyncShares(FETCHES, FETCHES_PER_ORGANIZATION)
        self._fetches: set[asyncio.Task[str]] = set()

    async def get(self, endpoint: Endpoint, wait_s: float) -> str:
        """Return a token; wait at most `wait_s` for one. Raises TokenUnavailable and TokenPending."""
        entry, now = self._entry(endpoint), ticks()
        if entry.token and now < entry.usable_until:
            if now >= entry.refresh_at:
                self._start(entry, endpoint)
            return entry.token
        if entry.fetch is None and now < entry.failed_until:
            raise TokenUnavailable(entry.failure)
        fetch = self._start(entry, endpoint)
        await asyncio.wait({fetch}, timeout=wait_s)
        if not fetch.done() or fetch.cancelled():
            raise TokenPending
        if token := fetch.result():  # even if it is so short-lived that it has just expired
            return token
        raise TokenUnavailable(entry.failure) if entry.failure else TokenPending

    def reject(self, endpoint: Endpoint, token: str) -> bool:
        """Drop a token that the receiver answered with 401; return whether to repeat the request with another."""
        entry, now = self._entry(endpoint), ticks()
        if entry.token != token:
            return True
        if now - entry.rejected_at < REJECTION_INTERVAL_S:
            return False
        entry.rejected_at, entry.token, entry.usable_until = now, "", 0.0
        entry.failure, entry.failed_until = "", 0.0
        return True

    async def close(self) -> None:
        """Cancel all fetches."""
        self._shares.close()
        fetches = list(self._fetches)
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    def _entry(self, endpoint: Endpoint) -> _Entry:
        settings = _fingerprint(endpoint)
        entry = self._entries.get(endpoint.pk)
        if entry is None or entry.settings != settings:
            entry = self._entries[endpoint.pk] = _Entry(settings)
        self._entries.move_to_end(endpoint.pk)
        while len(self._entries) > MAX_ENDPOINTS:
            self._entries.popitem(last=False)
        return entry

    def _start(self, entry: _Entry, endpoint: Endpoint) -> asyncio.Task[str]:
        if entry.fetch is None:
            entry.fetch = asyncio.create_task(self._fetch(entry, endpoint))
            self._fetches.add(entry.fetch)
            entry.fetch.add_done_callback(self._fetches.discard)
        return entry.fetch

    async def _fetch(self, entry: _Entry, endpoint: Endpoint) -> str:
        """Fetch a token, store it and return it; "" if there is none."""
        try:
            await self._shares.take(endpoint.organization_id)
        except SharesClosed:
            entry.fetch = None
            return ""
        asked = ticks()
        try:
            token, lifetime_s = await _request_token(endpoint)
            entry.token = token
            entry.usable_until = asked + lifetime_s - min(lifetime_s * UNUSED_SHARE, MAX_UNUSED_S)
            entry.refresh_at = asked + lifetime_s * REFRESH_SHARE
            entry.failure, entry.failed_until = "", 0.0
            return token
        except TokenPending:  # the token server is not at fault
            entry.failure = ""
        except TokenUnavailable as error:
            log.warning("access_token_unavailable", endpoint=endpoint.pk, error=str(error))
            self._fail(entry, str(error))
        except Exception as error:
            log.exception("access_token_failed", endpoint=endpoint.pk)
            self._fail(entry, f"{type(error).__name__}: {error}")
        finally:
            self._shares.release(endpoint.organization_id)
            entry.fetch = None
        return ""

    def _fail(self, entry: _Entry, failure: str) -> None:
        entry.failure, entry.failed_until = failure, ticks() + FAILURE_KEPT_S
        entry.refresh_at = entry.failed_until


async def _request_token(endpoint: Endpoint) -> tuple[str, float]:
    """Return a new token and its lifetime in seconds. Raises TokenUnavailable and TokenPending."""
    form = {"grant_type": "client_credentials"}
    form |= {"scope": endpoint.oauth_scope} if endpoint.oauth_scope else {}
    form |= {"audience": endpoint.oauth_audience} if endpoint.oauth_audience else {}
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    name, secret = endpoint.oauth_client_id, str(endpoint.oauth_client_secret)
    if endpoint.oauth_client_auth == Endpoint.ClientAuth.BODY:
        form |= {"client_id": name, "client_secret": secret}
    else:
        credentials = f"{quote_plus(name)}:{quote_plus(secret)}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
    try:
        answer = await client.shared().post(
            endpoint.oauth_token_url, urlencode(form).encode(), headers, FETCH_TIMEOUT_S,
            organization=endpoint.organization_id, kept_bytes=MAX_RESPONSE_BYTES,
        )  # fmt: skip
    except client.ForbiddenTarget as error:
        raise TokenUnavailable(f"The token URL can't be called: {error}.") from None
    except client.LookupDelayed:
        raise TokenPending from None
    except client.TargetTimeout:
        raise TokenUnavailable(f"The token server didn't answer within {FETCH_TIMEOUT_S:g} s.") from None
    except client.TargetError as error:
        raise TokenUnavailable(f"The token server can't be reached: {error}.") from None
    if answer.status != 200:
        code = _error_code(answer.body_start)
        raise TokenUnavailable(f"The token server answered {answer.status}{f' ({code})' if code else ''}.")
    return _read_token(answer.body_start)


def _read_token(body: bytes) -> tuple[str, float]:
    given = _parse(body)
    token = given.get("access_token")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise TokenUnavailable("The token server's response contains no usable access_token.")
    kind = given.get("token_type", "bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise TokenUnavailable("The token server's token isn't a bearer token.")
    return token, _lifetime_s(given.get("expires_in"))


def _lifetime_s(expires_in: Any) -> float:
    """Return the lifetime that the response names, as a number or as text, within bounds."""
    if isinstance(expires_in, bool):
        return DEFAULT_LIFETIME_S
    try:
        seconds = float(expires_in)
    except (TypeError, ValueError, OverflowError):
        return DEFAULT_LIFETIME_S
    if not seconds > 0:  # also NaN
        return DEFAULT_LIFETIME_S
    return min(seconds, MAX_LIFETIME_S)


def _error_code(body: bytes) -> str:
    """Return the error code of an OAuth error response, such as invalid_client."""
    code = _parse(body).get("error")
    return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""


def _parse(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _fingerprint(endpoint: Endpoint) -> bytes:
    """Return a digest of all settings that decide about the token."""
    parts = [
        endpoint.oauth_token_url, endpoint.oauth_client_id, str(endpoint.oauth_client_secret),
        endpoint.oauth_scope, endpoint.oauth_audience, endpoint.oauth_client_auth,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).digest()


_tokens: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AccessTokens] = weakref.WeakKeyDictionary()


def shared() -> AccessTokens:
    """Return the tokens of the running event loop. Call `close()` before the loop ends."""
    loop = asyncio.get_running_loop()
    if loop not in _tokens:
        _tokens[loop] = AccessTokens()
    return _tokens[loop]


async def close() -> None:
    """Close the running loop's tokens, if it has any."""
    if tokens := _tokens.pop(asyncio.get_running_loop(), None):
        await tokens.close()
