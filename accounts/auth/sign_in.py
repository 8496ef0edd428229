"""Count failed sign-ins to stop password guessing."""

from __future__ import annotations

from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt, AccessLog
from django.db.models import Sum
from django.http import HttpRequest, QueryDict

# Guesses spread over many names or many addresses are limited too, to these multiples of the limit of one pair.
ADDRESS_LIMIT_FACTOR = 10
NAME_LIMIT_FACTOR = 5


def guarded_name(request: HttpRequest, credentials: dict[str, Any] | None = None) -> str:
    """Return the name under which axes counts failures: the email address in lower case."""
    given = credentials or request.POST
    return str(given.get("username") or given.get("email") or "").strip().lower()


class SignInHandler(AxesDatabaseHandler):
    """Count failures per name and address, per address, and per name.

    The count per name never locks a user out of an address from which they have signed in before, so that a
    stranger cannot keep a dispatcher from working.
    """

    def user_login_failed(
        self, sender: Any, credentials: dict[str, Any], request: Any = None, **kwargs: Any
    ) -> None:
        """Count a failure. What was sent is not stored: it may be large, or have a password in another field."""
        if request is None:
            super().user_login_failed(sender, credentials, request, **kwargs)
            return
        sent = request.GET, request.POST
        request.GET = request.POST = QueryDict()
        try:
            super().user_login_failed(sender, credentials, request, **kwargs)
        finally:
            request.GET, request.POST = sent

    def get_failures(self, request: Any, credentials: dict[str, Any] | None = None) -> int:
        """Return the failures that count toward AXES_FAILURE_LIMIT."""
        name, address = guarded_name(request, credentials), request.axes_ip_address
        recent = AccessAttempt.objects.filter(attempt_time__gte=get_cool_off_threshold(request))

        def failures(**of: str) -> int:
            return recent.filter(**of).aggregate(Sum("failures_since_start"))["failures_since_start__sum"] or 0

        counts = [super().get_failures(request, credentials), failures(ip_address=address) // ADDRESS_LIMIT_FACTOR]
        everywhere = failures(username=name) // NAME_LIMIT_FACTOR
        if everywhere and not AccessLog.objects.filter(username=name, ip_address=address).exists():
            counts.append(everywhere)
        return max(counts)
