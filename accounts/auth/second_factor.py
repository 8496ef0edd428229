"""Decide whether a session still lacks the second factor, and record set-up, use and removal.

django-allauth (`allauth.mfa`) stores the factors, TOTP, passkeys and recovery codes, and asks for them at sign-in.
`User.second_factor_at` repeats whether there is one, so that a request needs no query. A session that passed holds
the user's mark. A session that began before the factor was set up or reset holds no valid mark.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Any

import structlog
from allauth.mfa import signals
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.db import transaction
from django.dispatch import receiver

from accounts import installation_log
from accounts.auth import security_mail
from accounts.models import Membership, User
from accounts.sso import sessions as sso
from dispatch.core import clock, events
from dispatch.core.events import Actor

if TYPE_CHECKING:
    from django.contrib.sessions.backends.base import SessionBase

log = structlog.get_logger(__name__)

SESSION_KEY = "second_factor"
RECOVERY_CODES = Authenticator.Type.RECOVERY_CODES
# In `Authenticator.data` of a TOTP app: the time step of the last accepted code.
LAST_STEP = "last_step"


class Step(Enum):
    """What a session must do before it may do anything else."""

    SET_UP = "set up a second factor"
    VERIFY = "enter the second factor"


def is_required(user: User) -> bool:
    """Return whether the user must have a second factor."""
    if user.is_superuser and settings.SECOND_FACTOR_FOR_SUPERUSERS:
        return True
    return any(
        membership.organization.requires_second_factor or _is_break_glass(membership)
        for membership in user.active_memberships
    )


def _is_break_glass(membership: Membership) -> bool:
    """Return whether this member may sign in without the single sign-on that the others need."""
    provider = sso.provider_of(membership)
    return provider is not None and provider.is_required and provider.break_glass_id == membership.user_id


def missing_step(user: User, session: SessionBase) -> Step | None:
    """Return what this session of the user lacks; None: it may go on."""
    if sso.has_second_factor(user, session):
        return None  # the identity provider has verified it
    if user.second_factor_at is not None:
        return None if session.get(SESSION_KEY) == _mark_of(user) else Step.VERIFY
    return Step.SET_UP if is_required(user) else None


def factors_of(user: User) -> Any:
    """Return the user's factors without the recovery codes, which only replace another factor."""
    return Authenticator.objects.filter(user=user).exclude(type=RECOVERY_CODES)


def current_step() -> int:
    """Return the number of the current time step of TOTP codes."""
    return int(time.time()) // settings.MFA_TOTP_PERIOD


def append_event(user: User, kind: str, actor: Actor, **data: Any) -> None:
    """Append an event about the user in each of their organizations; for a superuser, also in the installation."""
    if user.is_superuser:
        installation_log.append_event(f"user.{kind.partition('.')[2]}", user.pk, actor=actor, **data)
    for membership in user.memberships.filter(joined_at__isnull=False).order_by("pk"):
        events.append(membership.organization_id, kind, membership.pk, actor=actor, user_id=user.pk, **data)
    log.info(kind.replace(".", "_"), user=user.pk, **data)


def _mark_of(user: User) -> str:
    assert user.second_factor_at is not None
    return f"{user.pk}:{user.second_factor_at.timestamp():.6f}"


def actor_of(user: User) -> Actor:
    """Return the user as an event's actor."""
    return Actor(type="user", id=user.pk, label=str(user))


@receiver(signals.authenticator_added)
def _record_set_up(request: Any, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    """Record a new factor. The session that added it has passed; the user's other sessions must enter it."""
    if authenticator.type == RECOVERY_CODES:
        _record_recovery_codes(request, user)
        return
    with transaction.atomic():
        if user.second_factor_at is None:
            user.second_factor_at = clock.now()
            user.save(update_fields=["second_factor_at"])
        if authenticator.type == Authenticator.Type.TOTP:
            authenticator.data[LAST_STEP] = current_step()  # the code that set it up is used
            authenticator.save(update_fields=["data"])
        append_event(user, "membership.second_factor_added", actor_of(user), factor=authenticator.type)
        security_mail.enqueue_mail(user, f"{authenticator.type}_added", request)
    request.session[SESSION_KEY] = _mark_of(user)


@receiver(signals.authenticator_removed)
def _record_removal(request: Any, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    if authenticator.type == RECOVERY_CODES:
        return
    with transaction.atomic():
        if not factors_of(user).exists():
            user.second_factor_at = None
            user.save(update_fields=["second_factor_at"])
            request.session.pop(SESSION_KEY, None)
        append_event(user, "membership.second_factor_removed", actor_of(user), factor=authenticator.type)
        security_mail.enqueue_mail(user, f"{authenticator.type}_removed", request)


@receiver(signals.authenticator_used)
def _record_use(request: Any, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    """Mark the session. During sign-in it is still anonymous; the mark names the user."""
    if user.second_factor_at is None:  # the factor was added without the signal above
        user.second_factor_at = clock.now()
        user.save(update_fields=["second_factor_at"])
    request.session[SESSION_KEY] = _mark_of(user)
    if authenticator.type == RECOVERY_CODES:
        with transaction.atomic():
            append_event(user, "membership.recovery_code_used", actor_of(user))
            security_mail.enqueue_mail(user, "recovery_code_used", request)


@receiver(signals.authenticator_reset)
def _record_reset(request: Any, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    if authenticator.type == RECOVERY_CODES:
        _record_recovery_codes(request, user)


def _record_recovery_codes(request: Any, user: User) -> None:
    with transaction.atomic():
        append_event(user, "membership.recovery_codes_created", actor_of(user))
        security_mail.enqueue_mail(user, "recovery_codes_created", request)


@receiver(signals.authentication_failed)
def _record_failure(user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    log.warning("second_factor_failed", user=user.pk, factor=authenticator.type)
