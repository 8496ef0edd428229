"""Make one HTTP request: build it, send it and judge the response. Messages and direct requests both pass here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings

from dispatch.core import clock
from dispatch.core.http import client
from dispatch.core.http import webhook_signing as signing
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.rules import responses as rules
from dispatch.outbox.rules.responses import Verdict
from dispatch.outbox.services.attempt_results import AttemptResult
from dispatch.outbox.services.attempts import DeliveryAttempt
from dispatch.outbox.services.direct_requests import DirectRequest

log = structlog.get_logger(__name__)

ANSWER_BYTES = 4096
DEFAULT_TIMEOUT_S = 15.0
# The number of the replay; absent unless the message was replayed.
REPLAY_HEADER = "Dispatch-Replay"
# The delay of a message whose target's name could not be looked up yet.
LOOKUP_DELAY_S = 5.0


@dataclass(frozen=True)
class HttpRequest:
    """One request. `headers` is called when the request is sent, so that signatures are fresh."""

    organization_id: int
    endpoint: Endpoint | None
    method: str
    url: str
    body: bytes
    timeout_s: float
    headers: Callable[[], Mapping[str, str]]


@dataclass(frozen=True)
class Exchange:
    """What happened to one request. `answer` is the beginning of the response body."""

    verdict: Verdict
    started_at: datetime
    ended_at: datetime
    elapsed_s: float
    status_code: int | None = None
    answer: str = ""


async def deliver_message(call: DeliveryAttempt) -> AttemptResult:
    """Make one delivery attempt. Every failure, including a local one, becomes a verdict, not an exception."""
    body = call.payload.encode()

    def headers() -> Mapping[str, str]:
        if call.problem:
            raise ValueError(call.problem)
        return headers_of(call, body)

    request = HttpRequest(call.organization_id, call.endpoint, "POST", call.url, body, timeout_s(call), headers)
    made = await exchange(request, lambda answer: _judge(call, answer), message=call.id)
    return AttemptResult(
        call=call,
        verdict=made.verdict,
        started_at=made.started_at,
        ended_at=made.ended_at,
        elapsed_s=made.elapsed_s,
        status_code=made.status_code,
        answer=made.answer,
    )


async def exchange(
    request: HttpRequest, judge: Callable[[client.Response], Verdict], **log_fields: Any
) -> Exchange:
    """Send one request and judge its response. Every failure becomes a verdict, not an exception."""
    started_at = clock.now()
    answer: client.Response | None = None
    try:
        answer = await _send(request)
        verdict = judge(answer)
    except client.ForbiddenTarget as error:
        verdict = Verdict(rules.PERMANENT, error_class="refused", error=str(error))
    except client.LookupDelayed as error:
        verdict = Verdict(rules.DEFERRED, LOOKUP_DELAY_S, error_class=rules.LOOKUP, error=str(error))
    except client.TargetTimeout as error:
        verdict = Verdict(rules.FAILED, error_class="timeout", error=str(error))
    except client.TargetUnreachable as error:
        verdict = Verdict(rules.FAILED, error_class="unreachable", error=str(error))
    except ValueError as error:  # an unusable header or secret: no request was made
        verdict = Verdict(rules.PERMANENT, error_class="configuration", error=str(error))
    except (RecursionError, OverflowError) as error:
        verdict = Verdict(rules.FAILED, error_class="answer", error=f"The response cannot be read: {error}.")
    except Exception as error:
        log.exception("delivery_failed", **log_fields)
        verdict = Verdict(rules.FAILED, error_class="internal", error=f"{type(error).__name__}: {error}")
    ended_at = clock.now()
    return Exchange(
        verdict=verdict,
        started_at=started_at,
        ended_at=ended_at,
        elapsed_s=answer.elapsed_s if answer else max(0.0, (ended_at - started_at).total_seconds()),
        status_code=answer.status if answer else None,
        answer=_text(answer.body_start) if answer else "",
    )


async def _send(request: HttpRequest) -> client.Response:
    headers, organization = request.headers(), request.organization_id
    if request.method == "GET":
        return await client.get(request.url, headers, request.timeout_s, organization=organization)
    return await client.post(request.url, request.body, headers, request.timeout_s, organization=organization)


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
    configured: dict[str, str] = dict((endpoint.headers or {}) if endpoint else {}) | dict(request.headers)  # type: ignore[arg-type]
    own = dict(request.own_headers)
    if endpoint:
        own |= signing.headers(endpoint.signing_secrets(now), request.webhook_id, now, request.body)
    taken = {name.lower() for name in own}
    headers = {str(name): str(value) for name, value in configured.items() if name.lower() not in taken} | own
    if request.body and not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = "application/json"
    return headers


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
    return shown


def _sendable(group: str) -> bool:
    return group.isascii() and group.isprintable()


def timeout_s(call: DeliveryAttempt) -> float:
    """Return the total timeout of this attempt, in seconds."""
    return min(call.endpoint.timeout_s if call.endpoint else DEFAULT_TIMEOUT_S, settings.OUTBOX_MAX_TIMEOUT_S)


def _judge(call: DeliveryAttempt, answer: client.Response) -> Verdict:
    verdict = _judge_response(call.endpoint, answer)
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


def _text(start: bytes) -> str:
    """Decode the start of a body as text without NUL, which PostgreSQL cannot store in text columns."""
    return start[:ANSWER_BYTES].decode("utf-8", "replace").replace("\x00", "\ufffd")
