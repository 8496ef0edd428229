"""Recognize the browsers from which a user has signed in, and report a sign-in from a new one."""

from __future__ import annotations

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from accounts.auth import second_factor, security_mail
from accounts.models import User

COOKIE = "known_device"
SALT = "accounts.auth.devices"
MAX_AGE_S = 400 * 86_400  # the longest that browsers keep a cookie
# How many users of one browser are remembered, such as at a shared desk.
MAX_USERS = 20


def recognize_browser(request: HttpRequest, response: HttpResponse, user: User) -> None:
    """Remember this browser for the user, and mail them if it was not known."""
    known = _users_of(request)
    if user.pk not in known:
        with transaction.atomic():
            actor = second_factor.actor_of(user)
            second_factor.append_event(user, "membership.signed_in_from_new_device", actor)
            security_mail.enqueue_mail(user, "new_device", request)
    kept = [user.pk, *(pk for pk in known if pk != user.pk)][:MAX_USERS]
    response.set_cookie(
        COOKIE,
        signing.dumps(kept, salt=SALT),
        max_age=MAX_AGE_S,
        secure=bool(settings.SESSION_COOKIE_SECURE),
        httponly=True,
        samesite="Lax",
    )


def _users_of(request: HttpRequest) -> list[int]:
    try:
        known = signing.loads(request.COOKIES.get(COOKIE, ""), salt=SALT, max_age=MAX_AGE_S)
    except signing.BadSignature:
        return []
    return known if isinstance(known, list) else []
