"""System checks of the technicians slice's settings."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from dispatch.core.http.ssrf import ForbiddenTarget, check_url

MAX_TIMEOUT_S = 10.0


@register()
def check_osrm(**_: Any) -> list[CheckMessage]:
    """Report an address of the OSRM server that can't be requested, and a time that makes rankings wait."""
    if not settings.OSRM_URL:
        return []
    faults: list[CheckMessage] = []
    if problem := _find_problem(settings.OSRM_URL):
        hint = "Example: http://osrm:5000, without /table or /route."
        faults.append(Error(f"OSRM_URL can't be used: {problem}.", hint=hint, id="dispatch.E120"))
    if not 0 < settings.OSRM_TIMEOUT_S <= MAX_TIMEOUT_S:
        said = f"OSRM_TIMEOUT_S must be more than 0 and at most {MAX_TIMEOUT_S:g}."
        faults.append(Error(said, hint="Set it to 1.", id="dispatch.E121"))
    return faults


def _find_problem(url: str) -> str:
    try:
        check_url(url, settings.HTTP_ALLOWED_PORTS)
    except ForbiddenTarget as refusal:
        return str(refusal)
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        return "the URL has a query or a fragment"
    if set(parts.path.split("/")) & {"table", "route", "nearest", "match", "trip", "tile"}:
        return "the URL names a service of the server"
    return ""
