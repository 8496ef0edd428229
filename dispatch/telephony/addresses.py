"""The webhook addresses that we give to the provider. Our own ids are in them."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.urls import reverse

from dispatch.capacity.models import OutboundNumber
from dispatch.telephony.models import Call, Text


def webhook(call: Call, kind: str, step: int = 0, keys: str = "") -> str:
    """Absolute, with the overrides by which the provider repeats what failed. `step` counts a call's documents, so
    that the same key pressed twice is two events; `keys` are those that the document asks for."""
    path = reverse("telephony:webhook", args=[call.account.provider, call.pk, kind])
    query = "?" + urlencode({"step": step, "keys": keys}) if step else ""
    return f"{settings.PUBLIC_BASE_URL}{path}{query}{settings.WEBHOOK_RETRIES}"


def webhook_of(provider: str, call_id: int, kind: str) -> str:
    """The first address of `kind` for a call known by its id alone; the same as `webhook` gives."""
    before, after = _around_id(provider, kind)
    return f"{settings.PUBLIC_BASE_URL}{before}{call_id}{after}{settings.WEBHOOK_RETRIES}"


@cache
def _around_id(provider: str, kind: str) -> tuple[str, str]:
    before, _, after = reverse("telephony:webhook", args=[provider, 2**62, kind]).partition(str(2**62))
    return before, after


def text_webhook(text: Text) -> str:
    """Where the provider reports what became of a text."""
    path = _path("text_status", text.account.provider, text.pk)
    return f"{settings.PUBLIC_BASE_URL}{path}{settings.WEBHOOK_RETRIES}"


def number_webhook(number: OutboundNumber, kind: str, **query: Any) -> str:
    """Where the provider posts texts (`sms`) and calls (`voice`, `gather`, `status`) to our number."""
    given = f"?{urlencode(query)}" if query else ""
    path = _path("number", number.account.provider, number.pk, kind)
    return f"{settings.PUBLIC_BASE_URL}{path}{given}{settings.WEBHOOK_RETRIES}"


def _path(name: str, *args: Any) -> str:
    return reverse(f"telephony:{name}", args=args)
