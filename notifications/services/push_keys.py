"""Load the key pair (VAPID) that signs requests to push services, or generate it once."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cache

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.conf import settings

from notifications.models import PushKey

KEY_BYTES = 32


class InvalidPushKey(Exception):
    """Raised if VAPID_PRIVATE_KEY is not a private key of the curve P-256."""


@dataclass(frozen=True)
class KeyPair:
    """`public`: as browsers take it (base64url of the point, without padding)."""

    private: ec.EllipticCurvePrivateKey
    public: str


def load_keys() -> KeyPair:
    """Return the key pair of VAPID_PRIVATE_KEY, else the stored one, which the first caller generates.

    Raises InvalidPushKey, and ImproperlyConfigured if the stored key cannot be decrypted.
    """
    if settings.VAPID_PRIVATE_KEY:
        return read_key(settings.VAPID_PRIVATE_KEY)
    row = PushKey.objects.first()
    if row is None:
        text = generate_key()
        PushKey.objects.bulk_create(
            [PushKey(private_key=text, public_key=read_key(text).public)],
            ignore_conflicts=True,  # another process may have generated it at the same moment
        )
        row = PushKey.objects.get()
    return read_key(row.private_key)


def generate_key() -> str:
    """Return a new private key: 32 bytes in base64url without padding."""
    number = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
    return to_base64url(number.to_bytes(KEY_BYTES, "big"))


@cache
def read_key(text: str) -> KeyPair:
    """Return the key pair of a private key in base64url. Raises InvalidPushKey."""
    try:
        raw = from_base64url(text)
        if len(raw) != KEY_BYTES:
            raise ValueError("wrong length")
        private = ec.derive_private_key(int.from_bytes(raw, "big"), ec.SECP256R1())
    except ValueError:
        raise InvalidPushKey("It must be 32 bytes in base64url.") from None
    point = private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return KeyPair(private, to_base64url(point))


def to_base64url(raw: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Return the bytes of base64url, with or without padding. Raises ValueError for other characters."""
    return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), altchars=b"-_", validate=True)
