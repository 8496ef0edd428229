"""Validate an endpoint's settings, for the API and the admin. Each function raises ValidationError."""

from __future__ import annotations

import re
from collections.abc import Mapping

from django.conf import settings
from django.core.exceptions import ValidationError

from dispatch.core.http.exchange import check_headers
from dispatch.core.languages import gettext
from dispatch.outbox.rules import conditions

MAX_HEADERS = 20
MAX_HEADERS_LENGTH = 8000
_EVENT_TYPE = re.compile(r"\*|[a-z][a-z0-9_]*\.(\*|[a-z][a-z0-9_]*)")
# Dispatch sets these with every request; an endpoint's headers cannot replace them.
RESERVED_HEADERS = ("webhook-", "dispatch-")


def check_event_type(wanted: str) -> None:
    """Accept "job.assigned", "job.*" or "*"."""
    if not _EVENT_TYPE.fullmatch(wanted):
        raise ValidationError(
            gettext('Enter an event type such as "job.assigned", "job.*" or "*".'), code="invalid"
        )


def check_condition(text: str) -> None:
    """Accept a JMESPath expression within the limits of `rules.conditions`."""
    if text:
        try:
            conditions.parse_condition(text)
        except conditions.InvalidCondition as error:
            raise ValidationError(str(error), code="invalid") from None


def check_own_headers(headers: Mapping[str, str]) -> None:
    """Accept valid headers within the limits on number and size, each once, except those that Dispatch sets."""
    if len(headers) > MAX_HEADERS or sum(len(n) + len(str(v)) for n, v in headers.items()) > MAX_HEADERS_LENGTH:
        raise ValidationError(
            gettext("At most {count} headers with {length} characters in total.").format(
                count=MAX_HEADERS, length=MAX_HEADERS_LENGTH
            )
        )
    names: set[str] = set()
    for name, value in headers.items():
        if name.lower() in names:
            raise ValidationError(
                gettext("The header {name} is set twice. Upper and lower case make no difference.").format(
                    name=name
                ),
                code="duplicate",
            )
        names.add(name.lower())
        if not isinstance(value, str):
            raise ValidationError(
                gettext("The value of the header {name} must be text.").format(name=name), code="invalid"
            )
        if name.lower().startswith(RESERVED_HEADERS):
            raise ValidationError(
                gettext("The header {name} is set by Dispatch and can't be changed.").format(name=name),
                code="reserved",
            )
    try:
        check_headers(headers)
    except ValueError as error:
        raise ValidationError(f"{error}.", code="invalid") from None


def check_permanent_code(code: int) -> None:
    """Accept 300 to 599, except 429: it means "retry later"."""
    if not 300 <= code <= 599 or code == 429:
        raise ValidationError(
            gettext("A permanent code must be between 300 and 599, and not 429."), code="invalid"
        )


def longest_timeout_s() -> float:
    """Return the longest timeout that an endpoint may have: an attempt must end within its lease."""
    return float(settings.OUTBOX_MAX_TIMEOUT_S)
