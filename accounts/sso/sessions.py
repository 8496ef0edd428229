"""Decide what a session may do, by the way it was opened.

A session that a provider opened reaches only the provider's organization, and nothing that belongs to the account
as a whole: its factors, its password, its memberships elsewhere. A session that a password or passkey opened
reaches no organization that requires single sign-on, except for the break-glass owner.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest

from accounts.auth.session_store import get_session_user
from accounts.models import Membership, User
from accounts.sso.admission import satisfies_second_factor
from accounts.sso.models import IdentityProvider
from dispatch.core import clock

# In a session that a provider opened: its {"provider", "issuer", "client", "organization"}, and of the sign-in
# {"second_factor", "amr", "acr", "at"}. "second_factor" was true at the sign-in; `has_second_factor` is true now.
SESSION_KEY = "sso"
MAX_CLAIM_LENGTH = 200
MAX_METHODS = 50


def describe_session(provider: IdentityProvider, claims: dict[str, Any]) -> dict[str, Any]:
    """Return what the session stores about how it was opened. It contains no personal data."""
    methods = claims.get("amr")
    kept = {
        "amr": [str(each)[:20] for each in methods[:MAX_METHODS]] if isinstance(methods, list) else [],
        "acr": str(claims.get("acr") or "")[:MAX_CLAIM_LENGTH],
    }
    return {
        "provider": provider.pk,
        "issuer": provider.issuer,
        "client": provider.client_id,
        "organization": provider.organization_id,
        **kept,
        "second_factor": satisfies_second_factor(provider, kept),
        "at": clock.now().timestamp(),
    }


def user_of_session(request: HttpRequest) -> User | AnonymousUser:
    """Return the request's user, limited to what the session may reach."""
    if not hasattr(request, "_limited_user"):
        request._limited_user = limit_user(get_session_user(request.session), request.session)  # type: ignore[attr-defined]
    return request._limited_user  # type: ignore[attr-defined]


def limit_user(user: Any, session: Any) -> User | AnonymousUser:
    """Set which memberships the user may use in this session. Return nobody if a provider's session has ended."""
    if not isinstance(user, User):
        return user
    opened = session.get(SESSION_KEY)
    if opened is None:
        user.session_reach = reached_by_password
        return user
    user.session_reach = lambda membership: _is_reached_by(membership, opened)
    return user if user.active_memberships and not user.is_superuser else AnonymousUser()


def reached_by_password(membership: Membership) -> bool:
    """Return whether a session without single sign-on may use this membership."""
    provider = provider_of(membership)
    if provider is None or not provider.is_required or membership.user.is_superuser:
        return True
    return provider.break_glass_id == membership.user_id


def _is_reached_by(membership: Membership, opened: dict[str, Any]) -> bool:
    """Return whether the provider that opened the session, with the same issuer and client, is this one's."""
    provider = provider_of(membership)
    return provider is not None and (
        (provider.pk, provider.issuer, provider.client_id, provider.organization_id)
        == (opened["provider"], opened.get("issuer"), opened.get("client"), opened["organization"])
    )


def has_second_factor(user: User, session: Any) -> bool:
    """Return whether a provider opened the session with a second factor, by the provider's present settings."""
    opened = session.get(SESSION_KEY)
    if opened is None:
        return False
    reached = [row for row in user.active_memberships if _is_reached_by(row, opened)]
    return any(satisfies_second_factor(row.organization.identity_provider, opened) for row in reached)


def provider_of(membership: Membership) -> IdentityProvider | None:
    """Return the active provider of the membership's organization."""
    provider: IdentityProvider | None = getattr(membership.organization, "identity_provider", None)
    return provider if provider is not None and provider.is_active else None


def required_provider(user: User) -> IdentityProvider | None:
    """Return a provider without which this user can't sign in; None if a password is enough for something."""
    everywhere = list(user.memberships.filter(is_active=True, organization__is_active=True))
    if user.is_superuser or any(map(reached_by_password, everywhere)):
        return None
    return next(filter(None, map(provider_of, everywhere)), None)


def is_confined(request: HttpRequest) -> bool:
    """Return whether a provider opened the session of this request."""
    return SESSION_KEY in request.session


def is_shared(user: User) -> bool:
    """Return whether the account belongs to members of more than one organization, or is a superuser's."""
    return user.is_superuser or user.memberships.filter(joined_at__isnull=False).count() > 1


def may_change_account(request: HttpRequest) -> bool:
    """Return whether this session may change what the account's organizations share, such as the phone."""
    return not is_confined(request) or not (isinstance(request.user, User) and is_shared(request.user))
