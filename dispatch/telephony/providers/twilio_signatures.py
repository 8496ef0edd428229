"""Verify the signature of Twilio's webhooks."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable
from typing import Any


def is_valid(token: str, url: str, form: Any, signature: str) -> bool:
    """Return whether `signature` is that of the URL and form, as the SDK's RequestValidator does.

    The URL as configured is compared first, which takes a twentieth of the time. The SDK also tries the URL with
    and without its port.
    """
    if hmac.compare_digest(compute(token, url, form).encode(), signature.encode()):
        return True
    from twilio.request_validator import RequestValidator

    return bool(RequestValidator(token).validate(url, form, signature))


def compute(token: str, url: str, form: Any) -> str:
    """Return base64(HMAC-SHA1(token, URL + the form's fields and values, both sorted)).

    `form`: Django's QueryDict, or a mapping with one value for each field.
    """
    fields = form.lists() if hasattr(form, "lists") else ((name, [value]) for name, value in form.items())
    return base64.b64encode(hmac.digest(token.encode(), (url + _joined(fields)).encode(), "sha1")).decode()


def _joined(fields: Iterable[tuple[str, list[str]]]) -> str:
    return "".join(name + value for name, values in sorted(fields) for value in sorted(set(values)))
