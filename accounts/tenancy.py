"""Determine a request's organization and the caller's role in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied

from accounts.models import Membership, Organization, User
from dispatch.core.events import Actor

if TYPE_CHECKING:
    from accounts.models import ApiKey

HEADER = "X-Organization"
SESSION_KEY = "organization_id"


class NoOrganization(Exception):
    """The person is not a member of the named organization, or of any. The text may be shown to them."""


@dataclass(frozen=True)
class CurrentTenant:
    """Hold the current organization. `membership` is None for a superuser who acts as an admin without one."""

    organization: Organization
    membership: Membership | None

    @property
    def role(self) -> str:
        return self.membership.role if self.membership else Membership.Role.ADMIN


def membership_context(user: User, slug: str = "", remembered_id: int | None = None) -> CurrentTenant:
    """Return the organization named by `slug`, else the remembered one, else the user's first active one.

    A remembered organization counts only while the user is an active member or a superuser. Raises NoOrganization.
    """
    memberships = user.active_memberships
    if slug:
        for membership in memberships:
            if membership.organization.slug == slug:
                return CurrentTenant(membership.organization, membership)
        if user.is_superuser and (named := Organization.objects.filter(slug=slug, is_active=True).first()):
            return CurrentTenant(named, None)
        raise NoOrganization(f"You're not an active member of the organization {slug!r}.")
    for membership in memberships:
        if membership.organization_id == remembered_id:
            return CurrentTenant(membership.organization, membership)
    if user.is_superuser and remembered_id:
        kept = Organization.objects.filter(pk=remembered_id, is_active=True).first()
        if kept is not None:
            return CurrentTenant(kept, None)
    if memberships:
        return CurrentTenant(memberships[0].organization, memberships[0])
    if user.is_superuser:
        only = list(Organization.objects.filter(is_active=True)[:2])
        if len(only) == 1:
            return CurrentTenant(only[0], None)
        raise NoOrganization(f"Set the {HEADER} header to the slug of an organization.")
    raise NoOrganization("You're not an active member of an active organization.")


def administered_organization(request: Any) -> Organization:
    """Return the organization of an admin page's request. Raises PermissionDenied unless the user is its admin."""
    try:
        current = membership_context(request.user, remembered_id=request.session.get(SESSION_KEY))
    except NoOrganization as error:
        raise PermissionDenied(str(error)) from None
    if current.role != Membership.Role.ADMIN:
        raise PermissionDenied
    return current.organization


def user_of(request: Any) -> User:
    """Return the signed-in user of an authorized request. Raises PermissionDenied for an API key."""
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user


def actor_of(user: User) -> Actor:
    """Return the user as an event's actor."""
    return Actor(type="user", id=user.pk, label=str(user))


def actor_of_key(key: ApiKey) -> Actor:
    """Return the API key as an event's actor."""
    return Actor(type="api_key", id=key.pk, label=key.name)
