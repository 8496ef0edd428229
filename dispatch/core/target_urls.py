"""The check of an address that a tenant wants called, for forms; the guarded client checks it again."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ValidationError

from dispatch.core.http_targets import TargetRefused, check_address, check_url, literal, parse_networks


def check_target_url(url: str) -> None:
    """The URL's form, and its address when it names one. What a name resolves to is checked at every call.

    Raises ValidationError."""
    try:
        host = check_url(url, settings.HTTP_ALLOWED_PORTS).raw_host or ""
        if literal(host) is not None:
            check_address(host, parse_networks(tuple(settings.HTTP_ALLOWED_NETWORKS)))
    except TargetRefused as error:
        text = str(error)
        raise ValidationError(f"This cannot be called: {text}.", code="refused") from None
