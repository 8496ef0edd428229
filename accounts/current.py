"""Which organization a request is about, and as what the person acts there."""

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
    """The person has no place in the organization they named, or in any. Its text may be shown to them."""


@dataclass(frozen=True)
class Current:
    """`membership` is None for a superuser who is not a member: they act as an Admin."""

    organization: Organization
    membership: Membership | None

    @property
    def role(self) -> str:
        return self.membership.role if self.membership else Membership.Role.ADMIN


def of_person(user: User, slug: str = "", remembered_id: int | None = None) -> Current:
    """The organization named by `slug`, else the remembered one while it still counts, else the first active one.

    Raises NoOrganization."""
    memberships = user.active_memberships
    if slug:
        for membership in memberships:
            if membership.organization.slug == slug:
                return Current(membership.organization, membership)
        if user.is_superuser and (named := Organization.objects.filter(slug=slug, is_active=True).first()):
            return Current(named, None)
        raise NoOrganization(f"You are not an active member of the organization {slug!r}.")
    for membership in memberships:
        if membership.organization_id == remembered_id:
            return Current(membership.organization, membership)
    if memberships:
        return Current(memberships[0].organization, memberships[0])
    if user.is_superuser:
        chosen = Organization.objects.filter(pk=remembered_id, is_active=True) if remembered_id else None
        if chosen is not None and (kept := chosen.first()):
            return Current(kept, None)
        only = list(Organization.objects.filter(is_active=True)[:2])
        if len(only) == 1:
            return Current(only[0], None)
        raise NoOrganization(f"Name an organization in the {HEADER} header.")
    raise NoOrganization("You are not an active member of any active organization.")


def person_of(request: Any) -> User:
    """The signed-in person of a request that its permissions let in. Raises PermissionDenied for a key."""
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user


def actor_of(user: User) -> Actor:
    """The person as an event's actor."""
    return Actor(type="user", id=user.pk, label=str(user))


def actor_of_key(key: ApiKey) -> Actor:
    """The key as an event's actor."""
    return Actor(type="api_key", id=key.pk, label=key.name)
