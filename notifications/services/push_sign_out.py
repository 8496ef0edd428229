"""End push notifications in a browser in which its user signs out: someone else may use it next.

When all sessions of a user end except one, such as after a new password, its browser keeps them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth.signals import user_logged_out

from accounts.auth.sessions import sessions_ended
from accounts.models import User
from accounts.tenancy import actor_of
from notifications.services import push_subscriptions

# Names the browser's subscription by its `public_id`. It outlives the session, which may end by itself.
COOKIE = "dispatch_push"


def register() -> None:
    """Listen to sign-outs and to the end of all sessions."""
    user_logged_out.connect(_end_in_browser, dispatch_uid="notifications.push_sign_out")
    sessions_ended.connect(_keep_in_browser, dispatch_uid="notifications.push_sign_out")


def _end_in_browser(sender: Any, request: Any, user: Any, **kwargs: Any) -> None:
    given = _public_id_of(request)
    if given and isinstance(user, User):
        push_subscriptions.remove_by_public_id(user, given, actor=actor_of(user))


def _keep_in_browser(sender: Any, user: User, former: datetime | None, request: Any, **kwargs: Any) -> None:
    if given := _public_id_of(request):
        push_subscriptions.keep_by_public_id(user, given, former=former)


def _public_id_of(request: Any) -> str:
    return str(getattr(request, "COOKIES", {}).get(COOKIE, ""))
