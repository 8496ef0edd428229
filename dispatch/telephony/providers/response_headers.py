"""Read the headers of a provider's response that concern time. Names of headers are in lower case."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime

from dispatch.core import clock


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that the response asks for, as a number or as an HTTP date."""
    value = headers.get("retry-after", "")
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return max((parsedate_to_datetime(value) + server_behind(headers) - clock.now()).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def server_behind(headers: Mapping[str, str]) -> timedelta:
    """Return how far the server's clock is behind ours, from the Date header of its response."""
    try:
        theirs = parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError):
        return timedelta()
    return clock.now() - theirs
