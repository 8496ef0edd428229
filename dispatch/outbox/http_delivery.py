"""Build the HTTP requests of messages and of direct requests, and judge their responses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings

from dispatch.core import clock
from dispatch.core.http import client
from dispatch.core.http import webhook_signing as signing
from dispatch.outbox.http_exchange import Exchange, HttpRequest, exchange
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.rules import responses as rules
from dispatch.outbox.rules.responses import Verdict
from dispatch.outbox.services.attempt_results import AttemptResult
from dispatch.outbox.services.attempts import DeliveryAttempt
from dispatch.outbox.services.direct_requests import DirectRequest

DEFAULT_TIMEOUT_S = 15.0
# The number of the replay; absent unless the message was replayed.
REPLAY_HEADER = "Dispatch-Replay"


async def deliver_message(call: DeliveryAttempt) -> AttemptResult:
    """Make one delivery attempt. Every failure, including a local one, becomes a verdict, not an exception."""
    body = call.payload.encode()

    def headers() -> Mapping[str, str]:
        if call.problem:
            raise ValueError(call.problem)
        return headers_of(call, body)

    request = HttpRequest(call.organization_id, call.endpoint, "POST", call.url, body, timeout_s(call), headers)
    made = await exchange(request, lambda answer: _judge(call, answer), message=call.id)
    waits = made.verdict.error_class == rules.TOKEN_PENDING
    return AttemptResult(
        call=call,
        verdict=_limit_deferral(call, made.verdict) if waits else made.verdict,
        started_at=made.started_at,
        ended_at=made.ended_at,
        elapsed_s=made.elapsed_s,
        status_code=made.status_code,
        answer=made.answer,
    )


async def send_direct(request: DirectRequest) -> Exchange:
    """Send a request that belongs to no message. Every failure becomes a verdict, not an exception."""
    sent = HttpRequest(
        request.organization_id, request.endpoint, request.method, request.url, request.body, request.timeout_s,
        lambda: direct_headers(request),
    )  # fmt: skip
    return await exchange(sent, lambda answer: _judge_response(request.endpoint, answer), holder=request.holder)


def direct_headers(request: DirectRequest) -> dict[str, str]:
    """Return the endpoint's headers, the request's and Dispatch's, and a fresh signature over exactly this body.

    Later ones replace earlier ones, whatever their case.
    """
    now, endpoint = clock.now(), request.endpoint
    own = dict(request.own_headers)
    if endpoint:
        own |= signing.headers(endpoint.signing_secrets(now), request.webhook_id, now, request.body)
    configured: Mapping[str, Any] = (endpoint.headers or {}) if endpoint else {}  # type: ignore[assignment]
    headers = _replace_headers(_replace_headers(configured, request.headers), own)
    if request.body and not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = "application/json"
    return headers


def _replace_headers(headers: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, str]:
    taken = {name.lower() for name in later}
    kept = {name: value for name, value in headers.items() if name.lower() not in taken}
    return {str(name): str(value) for name, value in (kept | dict(later)).items()}


def headers_of(call: DeliveryAttempt, body: bytes) -> dict[str, str]:
    """Return the endpoint's headers, Dispatch's headers, and a fresh signature over exactly this body."""
    now, endpoint = clock.now(), call.endpoint
    given: Mapping[str, Any] = (endpoint.headers or {}) if endpoint else {}  # type: ignore[assignment]
    headers = {str(n): str(value) for n, value in given.items() if not n.lower().startswith("webhook-")}
    if not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = "application/json"
    headers |= {
        "Dispatch-Type": call.type,
        "Dispatch-Sequence": str(call.sequence),
        "Dispatch-Call": str(call.number),
    }
    if _sendable(call.group):
        headers["Dispatch-Group"] = call.group
    if call.replays:
        headers[REPLAY_HEADER] = str(call.replays)
    if endpoint is None:
        return headers | {"webhook-id": call.public_id, "webhook-timestamp": str(int(now.timestamp()))}
    return headers | signing.headers(endpoint.signing_secrets(now), call.public_id, now, body)


def headers_shown(message: Message, number: int, at: datetime | None) -> dict[str, str]:
    """Return the headers of attempt `number` as users may see them.

    The values of the endpoint's own headers are hidden, and signatures are not stored.
    """
    own: Mapping[str, Any] = (message.endpoint.headers or {}) if message.endpoint else {}  # type: ignore[assignment]
    shown = {} if any(name.lower() == "content-type" for name in own) else {"Content-Type": "application/json"}
    shown |= {
        "Dispatch-Type": message.type,
        "Dispatch-Sequence": str(message.sequence),
        "Dispatch-Call": str(number),
    }
    if _sendable(message.group.name):
        shown["Dispatch-Group"] = message.group.name
    if message.replayed_at and at and at >= message.replayed_at:
        shown[REPLAY_HEADER] = str(message.replays)
    shown["webhook-id"] = message.public_id
    if at:
        shown["webhook-timestamp"] = str(int(at.timestamp()))
    if message.endpoint:
        shown["webhook-signature"] = "v1,…"
        shown |= dict.fromkeys(own, "(not shown)")
        if message.endpoint.oauth_token_url:
            shown["Authorization"] = "Bearer (not shown)"
    return shown


def _sendable(group: str) -> bool:
    return group.isascii() and group.isprintable()


def timeout_s(call: DeliveryAttempt) -> float:
    """Return the total timeout of this attempt, in seconds."""
    return min(call.endpoint.timeout_s if call.endpoint else DEFAULT_TIMEOUT_S, settings.OUTBOX_MAX_TIMEOUT_S)


def _judge(call: DeliveryAttempt, answer: client.Response) -> Verdict:
    return _limit_deferral(call, _judge_response(call.endpoint, answer))


def _limit_deferral(call: DeliveryAttempt, verdict: Verdict) -> Verdict:
    return rules.limit_deferral(verdict, call.deferred_since, clock.now(), settings.OUTBOX_DEFERRAL_LIMIT_S)


def _judge_response(endpoint: Endpoint | None, answer: client.Response) -> Verdict:
    return rules.judge_response(
        answer.status,
        answer.headers,
        answer.body_start,
        permanent=endpoint.permanent_codes if endpoint else settings.OUTBOX_PERMANENT_CODES,
        default_delay_s=settings.OUTBOX_DEFER_S,
        longest_delay_s=settings.OUTBOX_LONGEST_DEFERRAL_S,
        now=clock.now(),
    )
