"""The webhook addresses that we give to the provider. Our own call id is in them."""

from __future__ import annotations

from functools import cache
from urllib.parse import urlencode

from django.conf import settings
from django.urls import reverse

from dispatch.telephony.models import Call


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
