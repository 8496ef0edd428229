"""Define MessagePointer, which travels on a queue, and its token.

    {"id", "poolCode", "authToken", "mediationType": "HTTP", "mediationTarget", "messageGroupId"}

The token is `<epoch>.<expiry>.<signature>`: an HMAC-SHA256 over message, epoch and expiry with the first of
OUTBOX_TOKEN_KEYS. Every key in the list is accepted, so that a key can be replaced while processes run.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import math
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from dispatch.core import clock

HTTP = "HTTP"
KEYS = ("id", "poolCode", "authToken", "mediationType", "mediationTarget", "messageGroupId")
# Longer than any valid pointer; longer input is not parsed.
MAX_LENGTH = 16_384
_encode = json.JSONEncoder(separators=(",", ":")).encode


class BadPointer(ValueError):
    """A queue entry that is not a pointer; the exception's text says why."""


class BadToken(ValueError):
    """A token that is forged, altered, expired or for another message."""


@dataclass(frozen=True)
class MessagePointer:
    """A pointer to one message.

    `id` is the message's id as text; `mediationTarget` is the URL to which a router posts the pointer.
    """

    id: str
    poolCode: str  # noqa: N815  (the names are those of the JSON)
    authToken: str  # noqa: N815
    mediationType: str  # noqa: N815
    mediationTarget: str  # noqa: N815
    messageGroupId: str  # noqa: N815

    def to_json(self) -> str:
        """Return one line of JSON with exactly the six keys."""
        return _encode(self.__dict__)

    @classmethod
    def from_json(cls, text: str | bytes) -> MessagePointer:
        """Parse a pointer.

        Raises BadPointer unless `text` is an object with exactly the six keys, each a non-empty string.
        """
        if len(text) > MAX_LENGTH:
            raise BadPointer(f"longer than {MAX_LENGTH} characters")
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadPointer(f"not JSON: {error}") from None
        return cls.from_dict(parsed)

    @classmethod
    def from_dict(cls, fields: Any) -> MessagePointer:
        """Build a pointer from parsed JSON; like `from_json`."""
        if not isinstance(fields, dict):
            raise BadPointer("not an object")
        missing = [name for name in KEYS if name not in fields]
        unknown = sorted(str(name) for name in fields if name not in KEYS)
        if missing or unknown:
            raise BadPointer(f"missing keys {missing}, unknown keys {unknown[:10]}")
        for name in KEYS:
            if not isinstance(fields[name], str) or not fields[name]:
                raise BadPointer(f"{name} is not a non-empty string")
        if fields["mediationType"] != HTTP:
            raise BadPointer(f"mediationType is not {HTTP}")
        return cls(**fields)


def group_hash(*parts: object) -> str:
    """Return a messageGroupId (64 hex digits) for the full group key.

    Parts are delimited, so that ("1", "23") and ("12", "3") differ. For IMMEDIATE messages, pass the message's
    own id.
    """
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()


def make_token(message_id: object, epoch: int, expires_at: datetime) -> str:
    """Make a token for one epoch of one message, valid until `expires_at` (aware; rounded up to the second)."""
    expires = math.ceil(expires_at.timestamp())
    return f"{epoch}.{expires}.{_sign(_keys()[0], message_id, epoch, expires)}"


def check_token(token: str, message_id: object) -> int:
    """Return the epoch of a valid token. Raises BadToken with a reason for the log, not for the response."""
    parts = token.split(".") if isinstance(token, str) and len(token) <= 200 else []
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts[:2]):
        raise BadToken("malformed token")
    epoch, expires = int(parts[0]), int(parts[1])
    given = parts[2].encode("utf-8", "surrogatepass")
    # All keys are always tried, so that the timing doesn't reveal which one matches.
    fits = [hmac.compare_digest(_sign(key, message_id, epoch, expires).encode(), given) for key in _keys()]
    if not any(fits):
        raise BadToken("the signature does not match")
    if clock.now().timestamp() >= expires:
        raise BadToken("expired")
    return epoch


def _keys() -> list[bytes]:
    """Return OUTBOX_TOKEN_KEYS as HMAC keys. The first one signs, and each of them verifies.

    If there are none, derive them from SECRET_KEY and SECRET_KEY_FALLBACKS.
    """
    return _keys_of(tuple(settings.OUTBOX_TOKEN_KEYS), (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


# Deriving a key for each message would also release the interpreter lock for each.
@functools.lru_cache(maxsize=4)
def _keys_of(configured: tuple[str, ...], secrets: tuple[str, ...]) -> list[bytes]:
    keys = [key.encode() for key in configured if key]
    return keys or [hmac.digest(secret.encode(), b"dispatch.outbox.token", "sha256") for secret in secrets]


def _sign(key: bytes, message_id: object, epoch: int, expires: int) -> str:
    # JSON delimits the parts, so that no message id can imitate another token's content.
    content = json.dumps([str(message_id), epoch, expires]).encode()
    return urlsafe_b64encode(hmac.digest(key, content, "sha256")).decode().rstrip("=")
