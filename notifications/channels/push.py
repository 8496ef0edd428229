"""Encrypt messages for browsers (RFC 8291) and send them to push services (RFC 8030, signed as in RFC 8292).

`http_ece` encrypts, and the request goes through the guarded HTTP client: the user's browser names the endpoint.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import http_ece
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from django.conf import settings

from dispatch.core import clock
from dispatch.core.http.client import (
    ForbiddenTarget,
    HttpClient,
    LookupDelayed,
    Response,
    TargetError,
    TargetTimeout,
)
from dispatch.outbox.rules.responses import retry_after_s
from notifications.channels import failure_reasons
from notifications.channels.failure_reasons import MAX_RETRY_AFTER_S, Failure, describe_status

# Push services take 4,096 bytes of ciphertext; header, padding and tag need 103 of them.
MAX_PAYLOAD_BYTES = 3900
# Apple accepts tokens of at most 24 h.
TOKEN_S = 12 * 3600
KEPT_BYTES = 1024
# The browser has unsubscribed, or the user has withdrawn the permission.
GONE = frozenset({404, 410})
KIND = "push"


@dataclass(frozen=True)
class Envelope:
    """What a push service learns about a message. `topic`: a newer message replaces an undelivered one.

    `ttl_s`: how long the service keeps it for a browser that is not connected. `urgency`: very-low, low, normal or
    high.
    """

    ttl_s: int
    urgency: str
    topic: str = ""


@dataclass(frozen=True)
class Browser:
    """Where a message goes, and the keys by which only this browser can read it."""

    endpoint: str
    p256dh: bytes
    auth: bytes
    organization_id: int


class NotTaken(Exception):
    """Raised if the push service did not take the message. `is_gone`: the subscription has ended."""

    def __init__(self, failure: Failure, *, is_gone: bool = False) -> None:
        super().__init__(failure.reason)
        self.failure, self.is_gone = failure, is_gone


def send(
    browser: Browser, payload: dict[str, Any], envelope: Envelope, private_key: ec.EllipticCurvePrivateKey,
    public_key: str,
) -> None:  # fmt: skip
    """Send the message once, within PUSH_TIMEOUT_S. Raises NotTaken."""
    label = urlsplit(browser.endpoint).hostname or "The push service"
    headers = {
        "Content-Encoding": "aes128gcm",
        "Content-Type": "application/octet-stream",
        "TTL": str(envelope.ttl_s),
        "Urgency": envelope.urgency,
        "Authorization": sign_request(browser.endpoint, private_key, public_key),
    }
    if envelope.topic:
        headers["Topic"] = topic_of(envelope.topic)
    body = encrypt(payload, browser)
    try:
        response = asyncio.run(_post(browser, body, headers))
    except TargetTimeout:
        raise NotTaken(Failure(failure_reasons.LATE.format(service=label), is_permanent=False)) from None
    except LookupDelayed:
        raise NotTaken(Failure(failure_reasons.NOT_LOOKED_UP.format(service=label), is_permanent=False)) from None
    except TargetError:
        raise NotTaken(Failure(failure_reasons.UNREACHABLE.format(service=label), is_permanent=False)) from None
    except ForbiddenTarget as error:
        raise NotTaken(
            Failure(failure_reasons.FORBIDDEN.format(service=label, why=error), is_permanent=True)
        ) from None
    if not 200 <= response.status < 300:
        failure = describe_status(KIND, label, response.status, response.headers)
        if wait_s := retry_after_s(response.headers, clock.now()):  # a number or a date
            failure = replace(failure, wait_s=int(min(wait_s, MAX_RETRY_AFTER_S)))
        raise NotTaken(failure, is_gone=response.status in GONE)


async def _post(browser: Browser, body: bytes, headers: dict[str, str]) -> Response:
    async with HttpClient() as client:
        return await client.post(
            browser.endpoint, body, headers, settings.PUSH_TIMEOUT_S, organization=browser.organization_id,
            kept_bytes=KEPT_BYTES,
        )  # fmt: skip


def encrypt(payload: dict[str, Any], browser: Browser) -> bytes:
    """Return the body of the request (aes128gcm). Raises ValueError if the payload is too long."""
    plain = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
    if len(plain) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"The payload has {len(plain)} bytes.")
    body: bytes = http_ece.encrypt(
        plain,
        salt=os.urandom(16),
        private_key=ec.generate_private_key(ec.SECP256R1()),
        dh=browser.p256dh,
        auth_secret=browser.auth,
        version="aes128gcm",
    )
    return body


def sign_request(endpoint: str, private_key: ec.EllipticCurvePrivateKey, public_key: str) -> str:
    """Return the Authorization header by which the push service recognizes this installation (VAPID)."""
    parts = urlsplit(endpoint)
    claims = {
        "aud": f"{parts.scheme}://{parts.netloc}",
        "exp": int(clock.machine_now().timestamp()) + TOKEN_S,
        "sub": settings.VAPID_CONTACT,
    }
    return f"vapid t={jwt.encode(claims, private_key, algorithm='ES256')}, k={public_key}"


def topic_of(text: str) -> str:
    """Return a topic header's value: 32 characters of base64url that do not reveal the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
