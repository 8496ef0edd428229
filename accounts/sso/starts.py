"""Remember in the session that the person began a sign-in by a form of this site.

A sign-in ends the present session and opens another one, so a link on another site must not begin it: that site
could sign people in to an organization of its choice. Forms have the CSRF token.
"""

from __future__ import annotations

from django.http import HttpRequest

from accounts.sso.models import IdentityProvider
from dispatch.core import clock

SESSION_KEY = "sso_start"
# As long as django-allauth keeps the state of a sign-in.
VALID_S = 600


def allow_start(request: HttpRequest, provider: IdentityProvider, *, is_trial: bool) -> None:
    """Allow this browser to begin a sign-in or a trial at the provider. Call it for a submitted form only."""
    request.session[SESSION_KEY] = {"provider": provider.pk, "try": is_trial, "at": clock.now().timestamp()}


def may_start(request: HttpRequest, provider: IdentityProvider, *, is_trial: bool) -> bool:
    """Return whether the form was submitted in this browser lately. It counts until the sign-in is complete.

    The dialog of a trial allows no sign-in: the provider that is tried may lead the browser to one.
    """
    start = request.session.get(SESSION_KEY)
    if start is None or (start["provider"], start.get("try", False)) != (provider.pk, is_trial):
        return False
    return bool(clock.now().timestamp() - start["at"] < VALID_S)


def end_start(request: HttpRequest) -> None:
    """Require the form again for the next sign-in."""
    request.session.pop(SESSION_KEY, None)
