"""Let django-allauth send its requests to a provider through the guarded HTTP client."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import requests

from dispatch.core.http.client import ForbiddenTarget, HttpClient, Response, TargetError

TIMEOUT_S = 5.0
MAX_BODY_BYTES = 131_072


class GuardedSession:
    """Replace `requests.Session`: check every address, and follow no redirect.

    Raises `requests.RequestException`, whose text may be shown to an Admin.
    """

    def __init__(self, organization_id: int = 0) -> None:
        self._organization_id = organization_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing: each request has its own client."""

    def get(self, url: str, **options: Any) -> requests.Response:
        """Send a GET."""
        return self.request("GET", url, **options)

    def request(self, method: str, url: str, **options: Any) -> requests.Response:
        """Send a GET or POST with `params`, `data`, `headers` and `auth` of `requests`. Reject other statuses."""
        try:
            prepared = requests.Request(method, url, **options).prepare()
            answer = asyncio.run(self._send(prepared))
        except (TargetError, ForbiddenTarget, ValueError) as error:
            raise requests.RequestException(f"{url}: {error}") from None
        if answer.truncated:
            raise requests.RequestException(f"{url}: the response is larger than {MAX_BODY_BYTES} bytes")
        if 300 <= answer.status < 400:
            raise requests.RequestException(f"{url}: the response is a redirect, which is not followed")
        response = requests.Response()
        response.status_code, response.url, response.encoding = answer.status, url, "utf-8"
        response.headers.update(answer.headers)
        response.headers.setdefault("content-type", "")
        response._content = answer.body_start
        return response

    async def _send(self, prepared: requests.PreparedRequest) -> Response:
        own = prepared.headers.items()
        headers = {name: str(value) for name, value in own if name.lower() != "content-length"}
        options: dict[str, Any] = {"organization": self._organization_id, "kept_bytes": MAX_BODY_BYTES}
        async with HttpClient() as client:
            assert prepared.url is not None
            if prepared.method == "GET":
                return await client.get(prepared.url, headers, TIMEOUT_S, **options)
            body = prepared.body or b""
            given = body if isinstance(body, bytes) else str(body).encode()
            return await client.post(prepared.url, given, headers, TIMEOUT_S, **options)
