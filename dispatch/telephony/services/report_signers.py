"""Verify the signatures of reports that are applied in groups, with the tokens of the accounts that they name.

Tokens are cached for CACHE_S. A cached token only saves reads: the group compares the account's stored tokens
again when it has locked the call, so that a token that was just withdrawn opens nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured

from dispatch.core.crypto import decrypt
from dispatch.core.db import prepared
from dispatch.telephony import report_sql as sql
from dispatch.telephony.providers.base import Provider, WebhookEvent

# A signature that no cached token has made is a reason to read the tokens again, but only once a second.
CACHE_S, REREAD_S = 60.0, 1.0
MAX_CACHED = 10_000


class Signer(NamedTuple):
    """An account that may sign reports, with its tokens as they are stored: encrypted, or empty."""

    provider: str
    account_sid: str
    auth_token: str
    previous_auth_token: str


class Signed(NamedTuple):
    """What was signed: the URL, the form and the headers of a request, read by the provider's client."""

    reader: Provider
    url: str
    form: Mapping[str, str]
    headers: Mapping[str, str]


# Account SID → when they were read, and the accounts with this SID that reports were about.
_cached: dict[str, tuple[float, frozenset[Signer]]] = {}


def reset() -> None:
    """Clear the cache (tests)."""
    _cached.clear()


def cached_signers(account_sid: str, within_s: float = CACHE_S) -> frozenset[Signer] | None:
    """Return the accounts with this SID if they were read within this time, or None."""
    found = _cached.get(account_sid)
    return found[1] if found is not None and time.monotonic() - found[0] < within_s else None


def read_signers(call_ids: Iterable[int]) -> dict[int, Signer]:
    """Return the accounts of these calls, and cache them."""
    rows = prepared.fetch_by_index(sql.SIGNERS, {"ids": prepared.integers(call_ids)})
    found = {row[0]: Signer(*row[1:]) for row in rows}
    if len(_cached) > MAX_CACHED:
        _cached.clear()
    by_sid: dict[str, set[Signer]] = {}
    for signer in found.values():
        by_sid.setdefault(signer.account_sid, set()).add(signer)
    for account_sid, signers in by_sid.items():
        _cached[account_sid] = time.monotonic(), frozenset(signers)
    return found


def has_signed(signer: Signer, provider: str, event: WebhookEvent, signed: Signed) -> bool:
    """Return whether the account is the one that the report names, and has signed it."""
    if signer.provider != provider or signer.account_sid != event.account_sid:
        return False
    try:
        tokens = [decrypt(sealed) for sealed in signer[2:] if sealed]
    except ImproperlyConfigured:
        return False
    return any(signed.reader.is_signed_with(token, signed.url, signed.form, signed.headers) for token in tokens)
