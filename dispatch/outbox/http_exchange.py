"""Send one HTTP request with its endpoint's client certificate and access token, and judge the response."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from dispatch.core import clock
from dispatch.core.http import client, client_certificates
from dispatch.outbox import access_tokens
from dispatch.outbox.models import Endpoint
from dispatch.outbox.rules import responses as rules
from dispatch.outbox.rules.responses import Verdict

log = structlog.get_logger(__name__)

ANSWER_BYTES = 4096
# The delay of a request whose target's name could not be looked up yet.
LOOKUP_DELAY_S = 5.0
# How long an attempt waits for an access token, and its delay if there is none by then.
TOKEN_WAIT_S, TOKEN_DELAY_S = 2.0, 5.0
# A request that was answered 401 is repeated with a new token if at least this much of the timeout is left.
MIN_REPEAT_S = 1.0


class CertificateProblem(Exception):
    """The endpoint's client certificate cannot be used. The message is for users."""


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


async def exchange(
    request: HttpRequest, judge: Callable[[client.Response], Verdict], **log_fields: Any
) -> Exchange:
    """Send one request and judge its response. Every failure becomes a verdict, not an exception."""
    started_at = clock.now()
    answer: client.Response | None = None
    try:
        answer = await _send(request)
        verdict = judge(answer)
    except access_tokens.TokenUnavailable as error:
        verdict = Verdict(rules.FAILED, error_class=rules.TOKEN, error=f"No access token: {error}")
    except access_tokens.TokenPending:
        verdict = Verdict(rules.DEFERRED, TOKEN_DELAY_S, rules.TOKEN_PENDING, "Waiting for an access token.")
    except CertificateProblem as error:
        verdict = Verdict(rules.FAILED, error_class=rules.CERTIFICATE, error=str(error))
    except client.ForbiddenTarget as error:
        verdict = Verdict(rules.PERMANENT, error_class="refused", error=str(error))
    except client.LookupDelayed as error:
        verdict = Verdict(rules.DEFERRED, LOOKUP_DELAY_S, error_class=rules.LOOKUP, error=str(error))
    except client.TargetTimeout:  # the last request had what was left of the timeout
        error_text = f"no response within {request.timeout_s:g} s"
        verdict = Verdict(rules.FAILED, error_class="timeout", error=error_text)
    except client.TargetUnreachable as error:
        verdict = Verdict(rules.FAILED, error_class="unreachable", error=str(error))
    except ValueError as error:  # an unusable header or secret: no request was made
        verdict = Verdict(rules.PERMANENT, error_class="configuration", error=str(error))
    except (RecursionError, OverflowError) as error:
        verdict = Verdict(rules.FAILED, error_class="answer", error=f"The response cannot be read: {error}.")
    except Exception as error:
        log.exception("delivery_failed", **log_fields)
        verdict = Verdict(rules.FAILED, error_class=rules.INTERNAL, error=f"{type(error).__name__}: {error}")
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
    """Send the request, with the endpoint's client certificate and access token if it has them.

    A response of 401 is followed by one more request with a new token. All of it takes at most the timeout.
    """
    endpoint, deadline, headers = request.endpoint, time.monotonic() + request.timeout_s, dict(request.headers())
    tls = await _tls(endpoint) if endpoint and endpoint.client_certificate else None

    async def send(extra: Mapping[str, str]) -> client.Response:
        remaining_s, sent = max(0.001, deadline - time.monotonic()), {**headers, **extra}
        organization = request.organization_id
        if request.method == "GET":
            return await client.get(request.url, sent, remaining_s, organization=organization, tls=tls)
        return await client.post(request.url, request.body, sent, remaining_s, organization=organization, tls=tls)

    if endpoint is None or not endpoint.oauth_token_url:
        return await send({})
    for name in [name for name in headers if name.lower() == "authorization"]:
        del headers[name]
    tokens, wait_s = access_tokens.shared(), min(TOKEN_WAIT_S, request.timeout_s / 2)
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


def _text(start: bytes) -> str:
    """Decode the start of a body as text without NUL, which PostgreSQL cannot store in text columns."""
    return start[:ANSWER_BYTES].decode("utf-8", "replace").replace("\x00", "\ufffd")
