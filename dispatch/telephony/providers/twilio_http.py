"""The HTTP client under Twilio's SDK: pooled, with time-outs, keeping the headers that the SDK drops."""

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

# A connection that was idle for longer is not used again: the server may be closing it at this moment, and a
# create request that meets the closing has an unknown outcome.
FRESH_S = 10.0


class PooledHttp(TwilioHttpClient):
    """Of one thread. Never repeats a request by itself: a repeated create would be a second call."""

    def __init__(self, *, trust_env: bool) -> None:
        super().__init__()
        assert self.session is not None
        self.session.trust_env = trust_env
        for scheme in ("https://", "http://"):
            self.session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=4, max_retries=0))
        self._headers: dict[str, str] = {}
        self._used_at = 0.0
        self.connect_s = settings.PROVIDER_TIMEOUT_S

    def request(self, *args: Any, **kwargs: Any) -> Response:
        kwargs["timeout"] = None
        self.timeout = (self.connect_s, settings.PROVIDER_TIMEOUT_S)
        self._headers = {}
        now = time.monotonic()
        if self.session is not None and now - self._used_at > FRESH_S:
            self.session.close()  # drops its connections; it can be used again
        self._used_at = now
        response = super().request(*args, **kwargs)
        self._headers = {name.lower(): value for name, value in (response.headers or {}).items()}
        return response

    def retry_after_s(self) -> float | None:
        """Seconds that the last answer asked us to wait."""
        try:
            return float(self._headers["retry-after"])
        except (KeyError, ValueError):
            return None

    def server_behind(self) -> timedelta:
        """What to add to the server's moments to have them on our clock, by the Date of its last answer."""
        try:
            theirs = parsedate_to_datetime(self._headers["date"])
        except (KeyError, ValueError):
            return timedelta()
        return clock.now() - theirs
