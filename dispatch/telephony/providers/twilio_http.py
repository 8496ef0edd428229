"""Provide the HTTP client of Twilio's SDK: pooled, with timeouts, keeping the headers that the SDK drops."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import requests
from django.conf import settings
from requests.adapters import HTTPAdapter
from twilio.http.http_client import TwilioHttpClient
from twilio.http.response import Response
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ProxyError, SSLError

from dispatch.core.http.service_client import abandoning_options
from dispatch.core.runtime import reachability
from dispatch.telephony.providers.connections import FAIR_CONNECT_S
from dispatch.telephony.providers.response_headers import retry_after_s, server_behind

# A connection that was idle for longer is not reused: the server may be closing it, and the outcome of a create
# request on a closing connection is unknown.
FRESH_S = 10.0
# How long a probe may take to connect: three attempts of TCP (seconds).
PROBE_CONNECT_S = 4.0
# Idle connections of a client.
MAX_IDLE = 32


class _RequestState(threading.local):
    """State of a thread's latest request: the headers of its response, and how long connecting may take."""

    headers: dict[str, str] = {}
    connect_s: float | None = None


class _FreshConnections:
    """A pool of urllib3 that does not reuse a connection after FRESH_S."""

    def _get_conn(self, timeout: float | None = None) -> Any:
        connection = super()._get_conn(timeout)  # type: ignore[misc]
        if time.monotonic() - getattr(connection, "used_at", 0.0) > FRESH_S:
            connection.close()  # the request opens it again
        return connection

    def _put_conn(self, connection: Any) -> None:
        if connection is not None:
            connection.used_at = time.monotonic()
        super()._put_conn(connection)  # type: ignore[misc]


class _HttpPool(_FreshConnections, HTTPConnectionPool):
    pass


class _HttpsPool(_FreshConnections, HTTPSConnectionPool):
    pass


def _socket_options() -> list[tuple[int, int, int | bytes]]:
    return [*HTTPConnection.default_socket_options, *abandoning_options(settings.PROVIDER_TIMEOUT_S)]


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, socket_options=_socket_options(), **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, socket_options=_socket_options(), **kwargs)
        manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
        return manager


@contextmanager
def record_reachability(url: str, connect_s: float) -> Iterator[None]:
    """Record whether the request inside found the server, which may be one that only this host does not reach."""
    address = urlsplit(url)
    server = f"{address.scheme}://{address.netloc}"
    try:
        yield
    except requests.RequestException as error:
        if not was_never_sent(error):
            reachability.process.record_silence(server)
        elif connect_s >= FAIR_CONNECT_S:
            reachability.process.record_failure(server, type(error).__name__)
        raise
    reachability.process.record_success(server)


def was_never_sent(error: requests.RequestException) -> bool:
    """Return whether no connection was made, in which case the request can't have been processed.

    A proxy that makes no connection, and a certificate that is not trusted, are found out before the request.
    """
    if isinstance(error, requests.ConnectTimeout):
        return True
    cause = error.args[0] if error.args else None
    reason = getattr(cause, "reason", cause)
    if isinstance(reason, SSLError):
        return any(isinstance(arg, ssl.SSLCertVerificationError) for arg in reason.args)
    return isinstance(reason, NewConnectionError | ConnectTimeoutError | ProxyError)


def probe_server(server: str) -> None:
    """Connect to a server of the provider, without any account. Raises an exception if that fails."""
    with requests.Session() as session:
        session.trust_env = not (settings.DEVELOPMENT and settings.SIMULATOR_URL)
        try:
            limits = min(PROBE_CONNECT_S, settings.PROVIDER_TIMEOUT_S), settings.PROVIDER_TIMEOUT_S
            session.head(server, timeout=limits, allow_redirects=False).close()
        except requests.RequestException as error:
            if was_never_sent(error):
                raise


class PooledHttp(TwilioHttpClient):
    """An HTTP client that threads share. It never retries: a repeated create request would be a second call."""

    def __init__(self, *, trust_env: bool) -> None:
        super().__init__()
        assert self.session is not None
        self.session.trust_env = trust_env
        self.session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # threads would share them
        for scheme in ("https://", "http://"):
            self.session.mount(scheme, _Adapter(pool_connections=1, pool_maxsize=MAX_IDLE, max_retries=0))
        self._state = _RequestState()
        # In development: the host for which requests to the simulator are meant, with the account's region.
        self.host = ""

    def limit_connect_time(self, seconds: float) -> None:
        """Limit how long the thread's next request may take to connect."""
        self._state.connect_s = seconds

    def request(
        self,
        method: str,
        url: str,
        params: Any = None,
        data: Any = None,
        headers: Any = None,
        auth: Any = None,
        timeout: Any = None,
        allow_redirects: bool = False,
    ) -> Response:
        assert self.session is not None
        state = self._state
        connect_s, state.connect_s = state.connect_s or settings.PROVIDER_TIMEOUT_S, None
        state.headers = {}
        headers = {**(headers or {}), **({"Host": self.host} if self.host else {})}
        # not by the SDK's method, which keeps the request and its timeout in attributes
        with record_reachability(url, connect_s):
            response = self.session.request(
                method.upper(),
                url,
                params=params,
                data=data,
                headers=headers,
                auth=auth,
                timeout=(connect_s, settings.PROVIDER_TIMEOUT_S),
                allow_redirects=allow_redirects,
            )
        state.headers = {name.lower(): value for name, value in response.headers.items()}
        return Response(int(response.status_code), response.text, response.headers)

    def retry_after_s(self) -> float | None:
        """Return the seconds to wait that the last response asked for, as a number or as an HTTP date."""
        return retry_after_s(self._state.headers)

    def server_behind(self) -> timedelta:
        """Return how far the server's clock is behind ours, from the Date header of its last response."""
        return server_behind(self._state.headers)
