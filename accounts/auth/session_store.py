"""Store sessions in the database with the idle and the absolute limit (SESSION_ENGINE), and find their users."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib import auth
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.utils.crypto import constant_time_compare

from dispatch.core import clock

# When the user signed in, in Unix seconds.
SIGNED_IN_AT = "signed_in_at"
# When the limits of a session began that is older than they are, in Unix seconds. It does not prove a sign-in.
LIMITED_FROM = "limited_from"


def expiry_of(data: Any) -> datetime:
    """Return when a session with this content ends if it is used now: by the idle or the absolute limit."""
    idle = clock.now() + timedelta(hours=settings.SESSION_IDLE_HOURS)
    if (began_at := data.get(SIGNED_IN_AT, data.get(LIMITED_FROM))) is None:
        return idle
    return min(idle, datetime.fromtimestamp(began_at, UTC) + timedelta(hours=settings.SESSION_MAX_HOURS))


def has_limits(data: Any) -> bool:
    """Return whether a session with this content ends by the absolute limit."""
    return SIGNED_IN_AT in data or LIMITED_FROM in data


def get_session_user(session: Any) -> Any:
    """Return the user whom the session signed in, or AnonymousUser. End the session if its hash is not valid.

    Django's `get_user` gives a session under one of SECRET_KEY_FALLBACKS another key, which would sign out the
    other requests and the sockets of the same browser: they have the former one. Here the session stays as it is.
    Its absolute limit is sooner than the fallback is removed.
    """
    path = session.get(auth.BACKEND_SESSION_KEY)
    if auth.SESSION_KEY not in session or path not in settings.AUTHENTICATION_BACKENDS:
        return AnonymousUser()
    user_id = auth.get_user_model()._meta.pk.to_python(session[auth.SESSION_KEY])
    user = auth.load_backend(path).get_user(user_id)
    if user is None:
        return AnonymousUser()
    if _has_hash_of(user, session):
        return user
    session.flush()
    return AnonymousUser()


def is_signed_in_as(user: Any, data: Any) -> bool:
    """Return whether a session with this content signed in this user, and its hash is valid."""
    return (
        data.get(auth.SESSION_KEY) == user._meta.pk.value_to_string(user)
        and data.get(auth.BACKEND_SESSION_KEY) in settings.AUTHENTICATION_BACKENDS
        and _has_hash_of(user, data)
    )


def _has_hash_of(user: Any, data: Any) -> bool:
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    given = data.get(auth.HASH_SESSION_KEY, "")
    return any(constant_time_compare(given, each) for each in hashes)


class SessionStore(DatabaseStore):
    """Set `expire_date` on each save. Django does not load a session after it, so no other check is needed.

    `expires_at` is the `expire_date` that was loaded; None for a session that this request created.
    """

    expires_at: datetime | None = None

    def create_model_instance(self, data: Any) -> Any:
        row = super().create_model_instance(data)
        row.expire_date = expiry_of(data)
        return row

    def _get_session_from_db(self) -> Any:
        row = super()._get_session_from_db()  # type: ignore[misc]
        self.expires_at = row.expire_date if row else None
        return row
