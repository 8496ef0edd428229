"""Hash values with a secret key, so that only this installation can compute or compare the hashes.

The keys are derived from FIELD_ENCRYPTION_KEYS, which are stored apart from the database. `purpose` separates the
uses: a hash of one purpose is worthless for another. The first key makes a hash; each of them can recognize one.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

from dispatch.core.crypto import encryption_keys


def make_hash(purpose: str, value: str) -> str:
    """Return the hash of `value` under the first key: 64 hexadecimal digits."""
    return _hash(encryption_keys()[0], purpose, value)


def all_hashes(purpose: str, value: str) -> list[str]:
    """Return the hashes of `value` under every key, in their order."""
    return [_hash(key, purpose, value) for key in encryption_keys()]


def is_hash_of(purpose: str, value: str, digest: str) -> bool:
    """Return whether one of the keys makes this hash of `value`. `digest` may be any text."""
    given = digest.encode(errors="replace")
    return any(hmac.compare_digest(known.encode(), given) for known in all_hashes(purpose, value))


def is_under_first_key(purpose: str, value: str, digest: str) -> bool:
    """Return whether the first key makes this hash of `value`."""
    return hmac.compare_digest(make_hash(purpose, value), digest)


def key_ids() -> list[str]:
    """Return a short id of each key, in their order. An id reveals nothing about its key."""
    return [_hash(key, "key id", "")[:8] for key in encryption_keys()]


def _hash(key: str, purpose: str, value: str) -> str:
    return hmac.new(_key_of(key, purpose), value.encode(), hashlib.sha256).hexdigest()


@lru_cache(maxsize=100)
def _key_of(key: str, purpose: str) -> bytes:
    """Derive the key of one purpose."""
    return hmac.digest(key.encode(), f"dispatch {purpose}".encode(), "sha256")
