"""API keys as they travel: `dk_<prefix>_<secret>`."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from datetime import timedelta
from hmac import compare_digest

from django.db.models import Q

from accounts.models import ApiKey
from dispatch.core import clock, rows

PREFIX_LENGTH = 8
# How exact `last_used_at` is: one write a minute is enough, one a request is not.
USED_EVERY = timedelta(minutes=1)
_SHAPE = re.compile(r"dk_([a-z0-9]{8})_[A-Za-z0-9_-]{43}")


class Unrecognised(Exception):
    """The key does not count; its text may be shown to the caller."""


def fresh() -> tuple[str, str, str]:
    """A new key: (prefix, the whole as shown once, its hash). The secret carries 256 bits."""
    prefix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(PREFIX_LENGTH))
    whole = f"dk_{prefix}_{secrets.token_urlsafe(32)}"
    return prefix, whole, digest(whole)


def digest(whole: str) -> str:
    """What is stored. A plain hash will do: the secret is random and long."""
    return hashlib.sha256(whole.encode()).hexdigest()


def prefix_of(whole: str) -> str:
    """The prefix of what looks like a key, else nothing."""
    shape = _SHAPE.fullmatch(whole)
    return shape[1] if shape else ""


def recognise(whole: str) -> ApiKey:
    """The key that this text is, with its organization. Raises Unrecognised (unknown, revoked, expired)."""
    prefix = prefix_of(whole)
    key = rows.one(ApiKey, "t.prefix = %s", [prefix], "organization") if prefix else None
    if key is None or not compare_digest(key.secret_hash, digest(whole)):
        raise Unrecognised("This API key is not known.")
    if key.revoked_at:
        raise Unrecognised("This API key was revoked.")
    if key.expires_at and key.expires_at <= clock.now():
        raise Unrecognised("This API key has expired.")
    return key


def mark_used(key: ApiKey) -> None:
    """Moves `last_used_at`, at most once a minute however many processes use the key."""
    now = clock.now()
    if key.last_used_at is None or key.last_used_at <= now - USED_EVERY:
        stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USED_EVERY)
        ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=now)
