"""Generate, parse and verify API keys: `dk_<prefix>_<secret>`."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from datetime import datetime, timedelta
from hmac import compare_digest

from django.core.exceptions import ValidationError
from django.db.models import Q

from accounts.models import ApiKey
from dispatch.core import clock
from dispatch.core.db import fast_rows
from dispatch.core.languages import gettext
from dispatch.core.web.form_fields import check_year

PREFIX_LENGTH = 8
# Resolution of `last_used_at`: one write per minute instead of one per request.
USED_RESOLUTION = timedelta(minutes=1)
_SHAPE = re.compile(r"dk_([a-z0-9]{8})_[A-Za-z0-9_-]{43}")


class InvalidApiKey(Exception):
    """The key is not valid. The text may be shown to the caller."""


def generate_key() -> tuple[str, str, str]:
    """Return a new key: (prefix, whole key, hash). The whole key is shown once. The secret has 256 bits."""
    prefix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(PREFIX_LENGTH))
    whole = f"dk_{prefix}_{secrets.token_urlsafe(32)}"
    return prefix, whole, hash_key(whole)


def hash_key(whole: str) -> str:
    """Return the stored hash. A plain hash is sufficient: the secret is long and random."""
    return hashlib.sha256(whole.encode()).hexdigest()


def prefix_of(whole: str) -> str:
    """Return the prefix of a well-formed key, or an empty string."""
    shape = _SHAPE.fullmatch(whole)
    return shape[1] if shape else ""


def check_expiry(expires_at: datetime | None) -> None:
    """Accept when a new key expires; None: never. Raises ValidationError."""
    if expires_at is None:
        return
    check_year(expires_at)
    if expires_at <= clock.now():
        raise ValidationError(gettext("Must be in the future."))


def authenticate_key(whole: str) -> ApiKey:
    """Return the key with its organization. Raises InvalidApiKey (unknown, revoked, expired)."""
    prefix = prefix_of(whole)
    key = fast_rows.fetch_one(ApiKey, "t.prefix = %s", [prefix], "organization") if prefix else None
    return verify_key(key, whole)


def verify_key(key: ApiKey | None, whole: str) -> ApiKey:
    """Return the row that was found by the prefix of `whole`. Raises InvalidApiKey like `authenticate_key`."""
    if key is None or not compare_digest(key.secret_hash, hash_key(whole)):
        raise InvalidApiKey("Unknown API key.")
    if key.revoked_at:
        raise InvalidApiKey("This API key was revoked.")
    if key.expires_at and key.expires_at <= clock.now():
        raise InvalidApiKey("This API key has expired.")
    return key


def mark_used(key: ApiKey) -> None:
    """Update `last_used_at`, at most once a minute across all processes."""
    now = clock.now()
    if key.last_used_at is None or key.last_used_at <= now - USED_RESOLUTION:
        stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USED_RESOLUTION)
        ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=now)
