"""Signing in: who is counted when somebody guesses passwords."""

from __future__ import annotations

from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt, AccessLog
from django.db.models import Sum
from django.http import HttpRequest

# Guesses spread over many names, or over many addresses, count as well: so many of them like one of a pair.
NAMES_OF_AN_ADDRESS = 10
ADDRESSES_OF_A_NAME = 5


def guarded_name(request: HttpRequest, credentials: dict[str, Any] | None = None) -> str:
    """The name that axes counts failures for: the e-mail however it was typed, so that A@x and a@x are one."""
    given = credentials or request.POST
    return str(given.get("username") or given.get("email") or "").strip().lower()


class SignInHandler(AxesDatabaseHandler):
    """Counts the failures of one person at one address; of one address, whatever the names; and of one person,
    wherever they come from. The last locks nobody out of an address at which they have signed in before, so that
    a stranger cannot keep a dispatcher from work."""

    def get_failures(self, request: Any, credentials: dict[str, Any] | None = None) -> int:
        """The failures that are held against AXES_FAILURE_LIMIT."""
        name, address = guarded_name(request, credentials), request.axes_ip_address
        recent = AccessAttempt.objects.filter(attempt_time__gte=get_cool_off_threshold(request))

        def failures(**of: str) -> int:
            return recent.filter(**of).aggregate(Sum("failures_since_start"))["failures_since_start__sum"] or 0

        counts = [super().get_failures(request, credentials), failures(ip_address=address) // NAMES_OF_AN_ADDRESS]
        everywhere = failures(username=name) // ADDRESSES_OF_A_NAME
        if everywhere and not AccessLog.objects.filter(username=name, ip_address=address).exists():
            counts.append(everywhere)
        return max(counts)
