"""Extend sessions that are used, list them, and end them.

The limits are in `session_store`. Rows of `allauth.usersessions` have their address, browser and last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import structlog
from allauth.account.signals import user_logged_in as all_steps_passed
from allauth.core import context
from allauth.usersessions.models import UserSession
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.models import Session
from django.db import transaction
from django.dispatch import Signal, receiver
from django.http import HttpRequest

from accounts.auth import second_factor, security_mail
from accounts.auth.session_store import (
    LIMITED_FROM,
    SIGNED_IN_AT,
    SessionStore,
    expiry_of,
    has_limits,
    is_signed_in_as,
)
from accounts.models import User, password_changed
from accounts.sso import sessions as sso
from dispatch.core import clock
from dispatch.core.events import Actor

log = structlog.get_logger(__name__)

# Sent with `user`, whose sessions have ended; `former`, when they had ended before, or None; and `request`, whose
# session goes on, or None.
sessions_ended = Signal()

# In this view users change their own password. It gives its session the new hash afterwards, so that it goes on.
CHANGE_VIEW = "admin:password_change"
# A session in use is extended at most this often.
EXTEND_EVERY = timedelta(minutes=1)
# A sign-in ends the user's sessions beyond this number, those that were used longest ago.
MAX_SESSIONS = 100


@receiver(user_logged_in)
def _record_sign_in(request: HttpRequest, **kwargs: Any) -> None:
    request.session[SIGNED_IN_AT] = clock.now().timestamp()
    request.session.pop(sso.SESSION_KEY, None)  # of an earlier sign-in; the adapter stores the one of this sign-in


@receiver(all_steps_passed)
def _list_sign_in(request: HttpRequest, user: User, **kwargs: Any) -> None:
    """Delete the rows of sessions that have ended, and list the new one. Replaces the receiver of django-allauth.

    That one reads each session with Django's `get_user` (see `get_session_user`).
    """
    if excess := list_sessions(user)[MAX_SESSIONS - 1 :]:
        _end(user, excess)
        log.info("oldest_sessions_ended", user=user.pk, count=len(excess))
    UserSession.objects.create_from_request(request)


@receiver(password_changed)
def _record_password(user: User, **kwargs: Any) -> None:
    """Record and mail the change, and end all sessions, except that of a user's own change."""
    actor = second_factor.actor_of(user)
    with transaction.atomic():
        second_factor.append_event(user, "membership.password_changed", actor)
        security_mail.enqueue_mail(user, "password_changed", context.request)
        end_all_sessions(user, actor=actor, goes_on=_request_that_goes_on(user))


def _request_that_goes_on(user: User) -> HttpRequest | None:
    """Return the request in which the user changes their own password, if this is one."""
    request: HttpRequest | None = context.request
    if request is None or request.resolver_match is None or request.resolver_match.view_name != CHANGE_VIEW:
        return None
    return request if request.user.pk == user.pk else None


def extend_session(store: Any) -> bool:
    """Move the idle limit of a session that was loaded and is in use. Return whether it moved.

    Only the expiry is written: a save could overwrite what another request changed in the meantime.
    """
    if store.expires_at is None or not has_limits(store):
        return False
    ends_at = expiry_of(store)
    if ends_at - store.expires_at < EXTEND_EVERY:
        return False
    Session.objects.filter(pk=store.session_key).update(expire_date=ends_at)
    UserSession.objects.filter(session_key=store.session_key).update(last_seen_at=clock.now())
    return True


def record_use(request: HttpRequest) -> None:
    """Extend the session of a signed-in request, and list it if it is not listed yet."""
    if not has_limits(request.session):  # it began before there were limits
        request.session[LIMITED_FROM] = clock.now().timestamp()
        UserSession.objects.create_from_request(request)
    elif extend_session(request.session):
        UserSession.objects.create_from_request(request)


def list_sessions(user: User) -> list[UserSession]:
    """Return the user's sessions that have not ended, the last used first, and delete the rows of the others."""
    rows = list(UserSession.objects.filter(user=user).order_by("-last_seen_at", "-pk"))
    stored = _read(rows) if user.is_active else {}
    open_rows = [row for row in rows if is_signed_in_as(user, stored.get(row.session_key, {}))]
    # Their sessions stay: one that another request is signing in has no content yet.
    UserSession.objects.filter(pk__in={row.pk for row in rows} - {row.pk for row in open_rows}).delete()
    return open_rows


def _read(rows: Sequence[UserSession]) -> dict[str, dict[str, Any]]:
    """Return the content of the sessions that have not expired, by key."""
    keys = [row.session_key for row in rows]
    stored = Session.objects.filter(pk__in=keys, expire_date__gt=clock.now())
    store = SessionStore()
    return {key: store.decode(data) for key, data in stored.values_list("pk", "session_data")}


def _end(user: User, rows: Sequence[UserSession]) -> None:
    """Delete these sessions of the user and their rows.

    The lock keeps two requests from deleting the same rows in different orders.
    """
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        Session.objects.filter(pk__in=[row.session_key for row in rows]).delete()
        UserSession.objects.filter(pk__in=[row.pk for row in rows]).delete()


def end_session(user: User, session: UserSession, *, actor: Actor) -> None:
    """End one session of the user. Its sockets are closed."""
    with transaction.atomic():
        session.end()
        second_factor.append_event(user, "membership.sessions_ended", actor)


def end_all_sessions(user: User, *, actor: Actor, goes_on: HttpRequest | None = None) -> None:
    """End every session of the user, also those that are not listed. Their sockets are closed.

    The caller gives the session of the request `goes_on` the new hash.
    """
    with transaction.atomic():
        row = User.objects.select_for_update(no_key=True).get(pk=user.pk)
        former = row.sessions_ended_at
        row.sessions_ended_at = user.sessions_ended_at = clock.now()
        row.save(update_fields=["sessions_ended_at"])
        _end(row, list(UserSession.objects.filter(user=row)))
        second_factor.append_event(row, "membership.sessions_ended", actor)
        sessions_ended.send(User, user=row, former=former, request=goes_on)


def end_provider_sessions(user: User, provider_id: int) -> int:
    """End the sessions that this identity provider opened for the user. Return how many.

    Their sockets are closed.
    """
    rows = list(UserSession.objects.filter(user=user))
    stored = _read(rows)
    opened = [
        row
        for row in rows
        if (stored.get(row.session_key, {}).get(sso.SESSION_KEY) or {}).get("provider") == provider_id
    ]
    _end(user, opened)
    return len(opened)


def end_other_sessions(request: HttpRequest, user: User, *, actor: Actor) -> None:
    """End every session of the user except the one of this request."""
    current = request.session.session_key
    with transaction.atomic():
        UserSession.objects.filter(session_key=current).delete()  # keep the session itself
        end_all_sessions(user, actor=actor, goes_on=request)
        update_session_auth_hash(request, user)  # gives this session a new key
    UserSession.objects.create_from_request(request)
