"""End push notifications in a browser in which its user signs out: someone else may use it next."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.signals import user_logged_out

from accounts.models import User
from accounts.tenancy import actor_of
from notifications.services import push_subscriptions

# Names the browser's subscription by its `public_id`. It outlives the session, which may end by itself.
COOKIE = "dispatch_push"


def register() -> None:
    """Listen to sign-outs."""
    user_logged_out.connect(_end_in_browser, dispatch_uid="notifications.push_sign_out")


def _end_in_browser(sender: Any, request: Any, user: Any, **kwargs: Any) -> None:
    given = getattr(request, "COOKIES", {}).get(COOKIE)
    if given and isinstance(user, User):
        push_subscriptions.remove_by_public_id(user, given, actor=actor_of(user))
