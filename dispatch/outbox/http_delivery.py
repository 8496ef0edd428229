"""Make one HTTP delivery: build the request and judge the response."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings

from dispatch.core import clock
from dispatch.core.http import client, client_certificates
from dispatch.core.http import webhook_signing as signing
from dispatch.outbox import access_tokens
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.rules import responses as rules
from dispatch.outbox.rules.responses import Verdict
from dispatch.outbox.services.attempt_results import AttemptResult
from dispatch.outbox.services.attempts import DeliveryAttempt

log = structlog.get_logger(__name__)

ANSWER_BYTES = 4096
DEFAULT_TIMEOUT_S = 15.0
# The number of the replay; absent unless the message was replayed.
REPLAY_HEADER = "Dispatch-Replay"
# The delay of a message whose target's name could not be looked up yet.
LOOKUP_DELAY_S = 5.0
# How long an attempt waits for an access token, and the delay of its message if there is none by then.
TOKEN_WAIT_S, TOKEN_DELAY_S = 2.0, 5.0
# A request that was answered 401 is repeated with a new token if at least this much of the timeout is left.
MIN_REPEAT_S = 1.0


class CertificateProblem(Exception):
    """The endpoint's client certificate cannot be used. The message is for users."""


async def deliver_message(call: DeliveryAttempt) -> AttemptResult:
    """Make one delivery attempt. Every failure, including a local one, becomes a verdict, not an exception."""
    started_at = clock.now()
    answer: client.Response | None = None
    try:
        if call.problem:
            raise ValueError(call.problem)
        body = call.payload.encode()
        headers = headers_of(call, body)
        answer = await _post(call, body, headers)
        verdict = _judge(call, answer)
    except access_tokens.TokenUnavailable as error:
        verdict = Verdict(rules.FAILED, error_class=rules.TOKEN, error=f"No access token: {error}")
    except access_tokens.TokenPending:
        verdict = _limited(
            call, Verdict(rules.DEFERRED, TOKEN_DELAY_S, rules.TOKEN_PENDING, "Waiting for an access token.")
        )
    except CertificateProblem as error:
        verdict = Verdict(rules.FAILED, error_class=rules.CERTIFICATE, error=str(error))
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
        log.exception("delivery_failed", message=call.id)
        verdict = Verdict(rules.FAILED, error_class="internal", error=f"{type(error).__name__}: {error}")
    ended_at = clock.now()
    return AttemptResult(
        call=call,
        verdict=verdict,
        started_at=started_at,
        ended_at=ended_at,
        elapsed_s=answer.elapsed_s if answer else max(0.0, (ended_at - started_at).total_seconds()),
        status_code=answer.status if answer else None,
        answer=_text(answer.body_start) if answer else "",
    )


async def _post(call: DeliveryAttempt, body: bytes, headers: dict[str, str]) -> client.Response:
    """Send the request, with the endpoint's client certificate and access token if it has them.

    A response of 401 is followed by one more request with a new token. All of it takes at most the timeout.
    """
    endpoint, deadline = call.endpoint, time.monotonic() + timeout_s(call)
    tls = await _tls(endpoint) if endpoint and endpoint.client_certificate else None

    async def send(extra: Mapping[str, str]) -> client.Response:
        remaining_s = max(0.001, deadline - time.monotonic())
        return await client.post(
            call.url, body, {**headers, **extra}, remaining_s, organization=call.organization_id, tls=tls
        )

    if endpoint is None or not endpoint.oauth_token_url:
        return await send({})
    for name in [name for name in headers if name.lower() == "authorization"]:
        del headers[name]
    tokens, wait_s = access_tokens.shared(), min(TOKEN_WAIT_S, timeout_s(call) / 2)
    token = await tokens.get(endpoint, wait_s)
    answer = await send({"Authorization": f"Bearer {token}"})
    if answer.status != 401 or not tokens.reject(endpoint, token):
        return answer
    try:
        token = await tokens.get(endpoint, min(TOKEN_WAIT_S, max(0.0, deadline - time.monotonic() - MIN_REPEAT_S)))
    except (access_tokens.TokenUnavailable, access_tokens.TokenPending):
        return answer
    if deadline - time.monotonic() < MIN_REPEAT_S:
        return answer
    return await send({"Authorization": f"Bearer {token}"})


async def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    """Return the context that presents the endpoint's certificate. Raises CertificateProblem."""
    until = endpoint.client_certificate_until
    if until and until <= clock.now():
        raise CertificateProblem(f"The client certificate expired on {until:%Y-%m-%d %H:%M} UTC.")
    try:
        # In a thread: building a context takes some milliseconds.
        return await asyncio.to_thread(
            client_certificates.tls_context, endpoint.client_certificate, str(endpoint.client_key)
        )
    except (OSError, ValueError) as error:
        raise CertificateProblem(f"The client certificate or its key can't be used: {error}.") from None


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
    permanent = call.endpoint.permanent_codes if call.endpoint else settings.OUTBOX_PERMANENT_CODES
    verdict = rules.judge_response(
        answer.status,
        answer.headers,
        answer.body_start,
        permanent=permanent,
        default_delay_s=settings.OUTBOX_DEFER_S,
        longest_delay_s=settings.OUTBOX_LONGEST_DEFERRAL_S,
        now=clock.now(),
    )
    return _limited(call, verdict)


def _limited(call: DeliveryAttempt, verdict: Verdict) -> Verdict:
    return rules.limit_deferral(verdict, call.deferred_since, clock.now(), settings.OUTBOX_DEFERRAL_LIMIT_S)


def _text(start: bytes) -> str:
    """Decode the start of a body as text without NUL, which PostgreSQL cannot store in text columns."""
    return start[:ANSWER_BYTES].decode("utf-8", "replace").replace("\x00", "\ufffd")
