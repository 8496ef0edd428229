"""Serve the busiest webhooks ahead of Django: plain, signed reports on calls, applied in groups.

A status report, the first request for a prompt or a pressed key is parsed in the event loop and applied with those
that arrived at the same time, in one transaction (`services.report_groups`). The response is sent only after the
commit. All other requests, and all that a group refers, go on to Django, which answers as if this route did not
exist (`webhooks`). So no refusal is written here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError

from dispatch.core import clock
from dispatch.core.db.batcher import BatchAborted, Batcher, DatabaseThread
from dispatch.core.observability.logging import choose_request_id
from dispatch.core.web.bare_handler import BareHandler
from dispatch.telephony import providers, webhook_urls
from dispatch.telephony.services import report_groups, report_signers
from dispatch.telephony.services.report_groups import GATHER, Applied, Report
from dispatch.telephony.services.report_signers import Signed

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_PATH = re.compile(rf"/telephony/({'|'.join(providers.NAMES)})/calls/([1-9][0-9]{{0,17}})/(status|voice|gather)")
# As `webhook_urls.webhook_of` writes them, without characters that a provider might escape in another way.
_STEP = re.compile(r"step=([1-9][0-9]?)&keys=([0-9s]*)")
_FORMS = frozenset({b"application/x-www-form-urlencoded", b"application/x-www-form-urlencoded; charset=utf-8"})
# A report has about 1 kB and 30 fields.
MAX_BYTES, MAX_FIELDS = 16 * 1024, 200
MAX_GROUP = 100
# Absorb a burst of a few seconds; beyond, Django's limit of waiting requests decides.
MAX_WAITING = 4000
# As long as the provider waits for a response.
MAX_WAIT_S = 15.0


class _Disconnected(Exception):
    """The client closed the connection before its whole body arrived."""


class _Request(NamedTuple):
    provider: str
    call_id: int
    kind: str
    headers: dict[bytes, bytes]
    query: str = ""
    step: int = 0
    keys: str = ""


class WebhookRoute:
    """Apply plain reports on calls in groups, and pass all other requests on to `application`.

    `bare`: the handler of webhooks in `application`, whose middlewares add headers to every response.
    """

    def __init__(self, application: Application, bare: BareHandler) -> None:
        self._application, self._bare = application, bare
        self._thread = DatabaseThread("webhook-groups")
        self._groups: Batcher[Report, Applied | None] = Batcher(
            self._thread,
            report_groups.apply_group,
            MAX_GROUP,
            whole=(OperationalError, InterfaceError),
            party_of=lambda report: report.event.account_sid,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        request = read_plain(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        if request is None or self._groups.waiting >= MAX_WAITING:
            await self._application(scope, receive, send)
            return
        try:
            body = await _read_body(receive)
        except _Disconnected:
            return
        report = parse_report(scope, request, body)
        headers = None if report is None else self._bare.headers_around(scope)
        applied = None if report is None or headers is None else await self._apply(report)
        if applied is None or headers is None:
            await self._application(scope, _replay(body, receive), send)
            return
        given = request.headers.get(b"x-request-id", b"").decode("latin1")
        await _respond(send, applied, headers, choose_request_id(given))

    async def _apply(self, report: Report) -> Applied | None:
        """Return the response to a report that is committed, or None if Django has to handle it.

        Its error is Django's then as well: the same report fails there again, or was only in bad company.
        """
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                return await self._groups.submit(report)
        except BatchAborted:
            raise
        except Exception as error:
            log.warning("report_referred", call=report.call_id, error=str(error).strip() or type(error).__name__)
            return None

    def close(self) -> None:
        """Wait for the running group, and close its connection."""
        self._thread.close()


def read_plain(scope: Scope) -> _Request | None:
    """Return what the head of a plain report says, or None for any other request."""
    path = _PATH.fullmatch(scope["path"])
    query = scope["query_string"].decode("latin1")
    step = _STEP.fullmatch(query)
    if path is None or bool(query) != (path[3] == GATHER) or (query and step is None) or scope.get("root_path"):
        return None
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers:
            return None
        headers[name] = value
    length = headers.get(b"content-length", b"")
    if (
        headers.get(b"content-type", b"").lower() not in _FORMS
        or not (length.isdigit() and len(length) < 9 and int(length) <= MAX_BYTES)
        or b"transfer-encoding" in headers
        or b"content-encoding" in headers
    ):
        return None
    request = _Request(path[1], int(path[2]), path[3], headers)
    if step is None:
        return request
    return request._replace(query=f"?{query}", step=int(step[1]), keys=webhook_urls.decode_keys(step[2]))


def parse_report(scope: Scope, request: _Request, body: bytes) -> Report | None:
    """Return the report, or None if Django has to look at it: signed by nobody we know, or oddly encoded."""
    if b"%00" in body or not body.isascii():
        return None
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        return None
    form = dict(pairs)
    if len(form) != len(pairs):
        return None
    reader = providers.without_account(request.provider)
    event = reader.parse(request.kind, request.step, form)
    url = f"{settings.PUBLIC_BASE_URL}{scope['path']}{request.query}"
    signed = Signed(reader, url, form, _texts(request.headers))
    signer = None
    if not reader.is_signed(signed.headers):
        return None
    if (signers := report_signers.cached_signers(event.account_sid)) is not None:
        has_signed = (one for one in signers if report_signers.has_signed(one, request.provider, event, signed))
        signer = next(has_signed, None)
        if signer is None and report_signers.cached_signers(event.account_sid, report_signers.REREAD_S):
            return None
    step, keys = request.step, request.keys
    return Report(request.provider, request.call_id, event, signed, signer, clock.now(), step, keys)


class _Headers(dict[str, str]):
    """The headers of a request by their names in any case, as Django's."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def _texts(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    return _Headers((name.decode("latin1"), value.decode("latin1")) for name, value in headers.items())


async def _read_body(receive: Receive) -> bytes:
    """Return the whole body. Its length is limited by `read_plain`, the server, and `BodyLimitMiddleware`."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that delivers the body once more, and then what follows it."""
    is_delivered = False

    async def deliver() -> dict[str, Any]:
        nonlocal is_delivered
        if is_delivered:
            return await receive()
        is_delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return deliver


async def _respond(send: Send, applied: Applied, headers: list[tuple[bytes, bytes]], request_id: str) -> None:
    content_type = applied.content_type or "text/html; charset=utf-8"  # Django's default, also without a body
    own = [
        (b"Content-Type", content_type.encode("latin1")),
        (b"Content-Length", str(len(applied.body)).encode()),
        (b"X-Request-ID", request_id.encode("latin1")),
    ]
    status = 200 if applied.content_type else 204
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *own]})
    await send({"type": "http.response.body", "body": applied.body})
