"""Provide the HTTP client of Twilio's SDK: pooled, with timeouts, keeping the headers that the SDK drops."""

from __future__ import annotations

import time
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from django.conf import settings
from requests.adapters import HTTPAdapter
from twilio.http.http_client import TwilioHttpClient
from twilio.http.response import Response

from dispatch.core import clock

# A connection that was idle for longer is not reused: the server may be closing it, and the outcome of a create
# request on a closing connection is unknown.
FRESH_S = 10.0


class PooledHttp(TwilioHttpClient):
    """An HTTP client for one thread. It never retries: a repeated create request would be a second call."""

    def __init__(self, *, trust_env: bool) -> None:
        super().__init__()
        assert self.session is not None
        self.session.trust_env = trust_env
        for scheme in ("https://", "http://"):
            self.session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=4, max_retries=0))
        self._headers: dict[str, str] = {}
        self._used_at = 0.0
        # In development: the host for which requests to the simulator are meant, with the account's region.
        self.host = ""
        self.connect_s = settings.PROVIDER_TIMEOUT_S

    def request(self, *args: Any, **kwargs: Any) -> Response:
        kwargs["timeout"] = None
        self.timeout = (self.connect_s, settings.PROVIDER_TIMEOUT_S)
        self._headers = {}
        if self.host:
            kwargs["headers"] = {**(kwargs.get("headers") or {}), "Host": self.host}
        now = time.monotonic()
        if self.session is not None and now - self._used_at > FRESH_S:
            self.session.close()  # drops the connections; the session stays usable
        self._used_at = now
        response = super().request(*args, **kwargs)
        self._headers = {name.lower(): value for name, value in (response.headers or {}).items()}
        return response

    def retry_after_s(self) -> float | None:
        """Return the seconds to wait that the last response asked for, as a number or as an HTTP date."""
        value = self._headers.get("retry-after", "")
        try:
            return float(value)
        except ValueError:
            pass
        try:
            return max((parsedate_to_datetime(value) + self.server_behind() - clock.now()).total_seconds(), 0.0)
        except (ValueError, TypeError):
            return None

    def server_behind(self) -> timedelta:
        """Return how far the server's clock is behind ours, from the Date header of its last response."""
        try:
            theirs = parsedate_to_datetime(self._headers["date"])
        except (KeyError, ValueError):
            return timedelta()
        return clock.now() - theirs
