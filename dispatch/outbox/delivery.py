"""The call itself: what is sent, and what the answer means."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings

from dispatch.core import clock, http_client
from dispatch.core import webhook_signing as signing
from dispatch.outbox.models import Message
from dispatch.outbox.rules import calls as rules
from dispatch.outbox.rules.calls import Verdict
from dispatch.outbox.services.finishing import Result
from dispatch.outbox.services.starting import Call

ANSWER_BYTES = 4096
DEFAULT_TIMEOUT_S = 15.0


async def deliver(call: Call) -> Result:
    """Makes one call. Never raises for what the target does; whatever goes wrong here is a verdict too."""
    started_at = clock.now()
    answer: http_client.Response | None = None
    try:
        body = call.payload.encode()
        headers = headers_of(call, body)
        answer = await http_client.post(call.url, body, headers, timeout_s(call))
        verdict = _judge(call, answer)
    except http_client.TargetRefused as error:
        verdict = Verdict(rules.PERMANENT, error_class="refused", error=str(error))
    except http_client.TargetTimeout as error:
        verdict = Verdict(rules.FAILED, error_class="timeout", error=str(error))
    except http_client.TargetUnreachable as error:
        verdict = Verdict(rules.FAILED, error_class="unreachable", error=str(error))
    except ValueError as error:  # a header or a secret that cannot be sent: nobody was called
        verdict = Verdict(rules.PERMANENT, error_class="configuration", error=str(error))
    ended_at = clock.now()
    return Result(
        call=call,
        verdict=verdict,
        started_at=started_at,
        ended_at=ended_at,
        elapsed_s=answer.elapsed_s if answer else max(0.0, (ended_at - started_at).total_seconds()),
        status_code=answer.status if answer else None,
        answer=_text(answer.body_start) if answer else "",
    )


def headers_of(call: Call, body: bytes) -> dict[str, str]:
    """The endpoint's own headers, ours, and the signature over exactly this body, made now."""
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
    if endpoint is None:
        return headers | {"webhook-id": f"msg_{call.id}", "webhook-timestamp": str(int(now.timestamp()))}
    secrets = [endpoint.secret]
    until = endpoint.previous_secret_until
    if endpoint.previous_secret and (until is None or until > now):
        secrets.append(endpoint.previous_secret)
    return headers | signing.headers(secrets, f"msg_{call.id}", now, body)


def headers_shown(message: Message, number: int, at: datetime | None) -> dict[str, str]:
    """The headers of the call `number` of a message, as far as they may be shown: what an endpoint adds of its own
    stays hidden, and signatures are not kept."""
    own: Mapping[str, Any] = (message.endpoint.headers or {}) if message.endpoint else {}  # type: ignore[assignment]
    shown = {} if any(name.lower() == "content-type" for name in own) else {"Content-Type": "application/json"}
    shown |= {
        "Dispatch-Type": message.type,
        "Dispatch-Sequence": str(message.sequence),
        "Dispatch-Call": str(number),
    }
    if _sendable(message.group.name):
        shown["Dispatch-Group"] = message.group.name
    shown["webhook-id"] = f"msg_{message.pk}"
    if at:
        shown["webhook-timestamp"] = str(int(at.timestamp()))
    if message.endpoint:
        shown["webhook-signature"] = "v1,…"
        shown |= dict.fromkeys(own, "(not shown)")
    return shown


def _sendable(group: str) -> bool:
    return group.isascii() and group.isprintable()


def timeout_s(call: Call) -> float:
    """The total time of this call."""
    return min(call.endpoint.timeout_s if call.endpoint else DEFAULT_TIMEOUT_S, settings.OUTBOX_MAX_TIMEOUT_S)


def _judge(call: Call, answer: http_client.Response) -> Verdict:
    permanent = call.endpoint.permanent_codes if call.endpoint else settings.OUTBOX_PERMANENT_CODES
    return rules.judge(
        answer.status,
        answer.headers,
        answer.body_start,
        permanent=permanent,
        default_delay_s=settings.OUTBOX_DEFER_S,
        longest_delay_s=settings.OUTBOX_LONGEST_DEFERRAL_S,
        now=clock.now(),
    )


def _text(start: bytes) -> str:
    """Readable, and storable: PostgreSQL's text has no NUL."""
    return start[:ANSWER_BYTES].decode("utf-8", "replace").replace("\x00", "\ufffd")
