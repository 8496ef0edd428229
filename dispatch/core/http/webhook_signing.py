"""Sign requests as in the Standard Webhooks specification: receivers can verify their origin and age.

    webhook-id: msg_019ab3f2…              the same in every attempt
    webhook-timestamp: 1767225600          when this attempt was signed, in Unix seconds
    webhook-signature: v1,<base64> v1,…    HMAC-SHA256 over `id.timestamp.body`, one for each valid secret

A secret is `whsec_` and 24 to 64 random bytes in base64. During a rotation, both secrets sign.
"""

from __future__ import annotations

import binascii
import functools
import hmac
import secrets as random
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import datetime

PREFIX = "whsec_"
SECRET_BYTES = 32
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64


class BadSecret(ValueError):
    """The secret does not have the specified form. The message does not repeat it."""


def new_secret() -> str:
    """Return a new secret, `whsec_…`."""
    return PREFIX + b64encode(random.token_bytes(SECRET_BYTES)).decode()


@functools.lru_cache(maxsize=1024)  # endpoints, which hold the secrets as text, are cached as well
def check_secret(secret: str) -> bytes:
    """Return the key that `secret` encodes. Raises BadSecret."""
    try:
        key = b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise BadSecret("not base64") from None
    if not secret.startswith(PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise BadSecret(f"a secret is {PREFIX} and {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes in base64")
    return key


def headers(secrets: Sequence[str], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the three headers for one attempt at `at` (aware), signed with each of `secrets` (at least one).

    Raises BadSecret, or ValueError if there is no secret or the id contains a dot, which would make the signed
    text ambiguous.
    """
    if not secrets:
        raise ValueError("no secret to sign with")
    if not message_id or "." in message_id:
        raise ValueError(f"{message_id!r} cannot be signed: an id is not empty and has no dot")
    timestamp = str(int(at.timestamp()))
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    signatures = (hmac.digest(check_secret(secret), signed, "sha256") for secret in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{b64encode(signature).decode()}" for signature in signatures),
    }
