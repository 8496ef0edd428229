"""What an endpoint may be set to: the checks that the API and the admin share. Each raises ValidationError."""

from __future__ import annotations

import re
from collections.abc import Mapping

from django.conf import settings
from django.core.exceptions import ValidationError

from dispatch.core.http_client import check_headers

MOST_HEADERS = 20
LONGEST_HEADERS = 8000
_EVENT_TYPE = re.compile(r"\*|[a-z][a-z0-9_]*\.(\*|[a-z][a-z0-9_]*)")
# Written with every call; an endpoint's own cannot stand in their place.
OUR_HEADERS = ("webhook-", "dispatch-")


def check_event_type(wanted: str) -> None:
    """ "job.assigned", "job.*" or "*"."""
    if not _EVENT_TYPE.fullmatch(wanted):
        raise ValidationError('An event type is as "job.assigned", "job.*" or "*".', code="invalid")


def check_own_headers(headers: Mapping[str, str]) -> None:
    """Few, short, sendable, and none that is ours to set."""
    if len(headers) > MOST_HEADERS or sum(len(n) + len(str(v)) for n, v in headers.items()) > LONGEST_HEADERS:
        raise ValidationError(f"At most {MOST_HEADERS} headers of {LONGEST_HEADERS} characters together.")
    for name, value in headers.items():
        if not isinstance(value, str):
            raise ValidationError(f"The header {name} is not text.", code="invalid")
        if name.lower().startswith(OUR_HEADERS):
            raise ValidationError(f"The header {name} is set by Dispatch.", code="reserved")
    try:
        check_headers(headers)
    except ValueError as error:
        raise ValidationError(f"{error}.", code="invalid") from None


def check_permanent_code(code: int) -> None:
    """300 to 599, and never 429, which asks to come again."""
    if not 300 <= code <= 599 or code == 429:
        raise ValidationError("A permanent code is 300 to 599, and not 429.", code="invalid")


def longest_timeout_s() -> float:
    """A call must end while its lease lasts."""
    return float(settings.OUTBOX_MAX_TIMEOUT_S)
