"""Build the webhook URLs that the provider calls. They carry our ids."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.urls import reverse

from dispatch.capacity.models import OutboundNumber
from dispatch.core import keyed_hashes
from dispatch.telephony.models import Call, Text

MAX_STEPS = 100  # maximum number of documents in one call, far more than any menu needs
_FALLBACK = "fallback of a call"


def webhook(call: Call, kind: str, step: int = 0, keys: str = "") -> str:
    """Return the absolute URL of a call's webhook, with the overrides that make the provider retry failures.

    `step` counts the documents of a call, so that pressing the same key twice makes two events. `keys`: the keys
    that the document asks for.
    """
    return webhook_of(call.account.provider, call.pk, kind, step, keys)


def webhook_of(provider: str, call_id: int, kind: str, step: int = 0, keys: str = "") -> str:
    """Return the URL of a call's webhook, as `webhook` does, from ids alone."""
    before, after = _around_id(provider, kind)
    query = "?" + urlencode({"step": step, "keys": encode_keys(keys)}) if step else ""
    return f"{settings.PUBLIC_BASE_URL}{before}{call_id}{after}{query}{settings.WEBHOOK_RETRIES}"


@cache
def _around_id(provider: str, kind: str) -> tuple[str, str]:
    before, _, after = _path("webhook", provider, 2**62, kind).partition(str(2**62))
    return before, after


def fallback(provider: str, call_id: int | None = None) -> str:
    """Return the URL of the document for calls whose webhooks fail.

    With the id of a call, the URL also proves that it is about this call, without a database.
    """
    query = "" if call_id is None else f"?call={call_id}&proof={keyed_hashes.make_hash(_FALLBACK, str(call_id))}"
    return f"{settings.PUBLIC_BASE_URL}{_fallback_path(provider)}{query}{settings.WEBHOOK_RETRIES}"


def is_fallback_of(call_id: int, proof: str) -> bool:
    """Return whether a request to the fallback URL is about this call."""
    return keyed_hashes.is_hash_of(_FALLBACK, str(call_id), proof)


@cache  # each request for a call names it
def _fallback_path(provider: str) -> str:
    return _path("fallback", provider)


def text_webhook(text: Text) -> str:
    """Return the URL for status reports of a text."""
    path = _path("text_status", text.account.provider, text.pk)
    return f"{settings.PUBLIC_BASE_URL}{path}{settings.WEBHOOK_RETRIES}"


def encode_keys(keys: str) -> str:
    """Write the star as a letter. In a URL it may be written as itself or escaped, which changes the signature."""
    return keys.replace("*", "s")


def decode_keys(text: str) -> str:
    """Return the keys that `encode_keys` wrote."""
    return text.replace("s", "*")


def number_webhook(number: OutboundNumber, kind: str, **query: Any) -> str:
    """Return the URL for texts (`sms`) and calls (`voice`, `gather`, `status`) to our number."""
    given = f"?{urlencode(query)}" if query else ""
    path = _path("number", number.account.provider, number.pk, kind)
    return f"{settings.PUBLIC_BASE_URL}{path}{given}{settings.WEBHOOK_RETRIES}"


def _path(name: str, *args: Any) -> str:
    """Return the path of a webhook from the routes of webhooks alone."""
    return reverse(f"telephony:{name}", urlconf="dispatch.telephony.root_urls", args=args)
