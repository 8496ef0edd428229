"""Let Apprise send its requests through the guarded HTTP client.

Apprise's plugins use the module `requests` by its name. `install` puts a GuardedRequests in its place, in the
module of one plugin. Its requests check every address, follow no redirect, use no proxy or cookie of this process,
and share one time limit. Without an `Exchange` around them, they are refused.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Self

import requests

from dispatch.core.http.client import ForbiddenTarget, HttpClient, Response, TargetError

MAX_REQUESTS = 2
KEPT_BYTES = 16_384


@dataclass
class Exchange:
    """The requests of one message: use it as a context manager around the plugin.

    Afterwards, `response` or `error` is the result of the last request.
    """

    organization_id: int
    timeout_s: float
    headers: dict[str, str] | None = None
    response: Response | None = None
    error: Exception | None = None
    count: int = 0

    def __enter__(self) -> Self:
        self._deadline = time.monotonic() + self.timeout_s
        self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._token)

    def send(self, method: str, url: str, body: bytes, headers: dict[str, str]) -> Response:
        """Send one request within the time that is left. Raises TargetError, ForbiddenTarget, ValueError."""
        self.count += 1
        self.response, self.error = None, None
        try:
            if self.count > MAX_REQUESTS:
                raise ValueError("the message takes too many requests")
            left_s = max(0.01, self._deadline - time.monotonic())
            sent = {**headers, **(self.headers or {})}
            self.response = asyncio.run(_send(method, url, body, sent, left_s, self.organization_id))
        except Exception as error:
            self.error = error
            raise
        return self.response


_current: ContextVar[Exchange] = ContextVar("exchange")


async def _send(
    method: str, url: str, body: bytes, headers: dict[str, str], timeout_s: float, organization_id: int
) -> Response:
    async with HttpClient() as client:
        if method == "PUT":
            return await client.put(
                url, body, headers, timeout_s, organization=organization_id, kept_bytes=KEPT_BYTES
            )
        return await client.post(
            url, body, headers, timeout_s, organization=organization_id, kept_bytes=KEPT_BYTES
        )


class GuardedRequests:
    """The part of the module `requests` that the plugins use."""

    RequestException = requests.RequestException
    codes = requests.codes

    def post(self, url: str, **options: Any) -> requests.Response:
        """Send a POST."""
        return self.request("POST", url, **options)

    def request(
        self,
        method: str,
        url: str,
        *,
        params: Any = None,
        data: Any = None,
        headers: Any = None,
        auth: Any = None,
        files: Any = None,
        **ignored: Any,
    ) -> requests.Response:
        """Send a POST with these options of `requests`. Raises `requests.RequestException`.

        Other options, such as `verify`, `timeout` and `allow_redirects`, have no effect.
        """
        if method.upper() != "POST" or files:
            raise requests.RequestException("Only a POST without files is allowed.")
        exchange = _current.get()  # LookupError: nobody has limited this request
        prepared = requests.Request("POST", url, params=params, data=data, headers=headers, auth=auth).prepare()
        own = {name: str(value) for name, value in prepared.headers.items() if name.lower() != "content-length"}
        body = prepared.body or b""
        try:
            answer = exchange.send(
                "POST", str(prepared.url), body if isinstance(body, bytes) else str(body).encode(), own
            )
        except (TargetError, ForbiddenTarget, ValueError) as error:
            raise requests.RequestException(str(error)) from None
        response = requests.Response()
        response.status_code, response.encoding = answer.status, "utf-8"
        response.headers.update(answer.headers)
        response._content = answer.body_start
        return response


_guarded = GuardedRequests()


def install(plugin: ModuleType) -> None:
    """Replace `requests` in a plugin's module. Raises RuntimeError if the module does not use it by its name."""
    if plugin.__dict__.get("requests") not in (requests, _guarded):
        raise RuntimeError(f"{plugin.__name__} does not use requests as expected.")
    plugin.__dict__["requests"] = _guarded
