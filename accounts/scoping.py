"""The one place that keeps organizations apart.

Models derive from `OwnedModel`; APIs from `OwnedViewSet`-like mixins in `accounts.api`; admins from
`accounts.admin_base.OwnedAdmin`. All of them end in `OwnedQuerySet.of()` or `visible_to()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.core.exceptions import ImproperlyConfigured
from django.db import models

if TYPE_CHECKING:
    from accounts.models import Organization, User


class OwnedQuerySet(models.QuerySet):
    """Rows of one organization, or of those that a user may administer."""

    def of(self, organization: Organization | int) -> Self:
        """Only the rows of `organization` (a row or its id)."""
        return self.filter(organization_id=getattr(organization, "pk", organization))

    def visible_to(self, user: User) -> Self:
        """Only the rows that `user` may administer: a superuser all, an Admin those of their organizations."""
        if user.is_superuser:
            return self
        return self.filter(organization_id__in=user.administered_organization_ids())


class OwnedModel(models.Model):
    """A row that belongs to one organization."""

    organization = models.ForeignKey("accounts.Organization", on_delete=models.PROTECT, related_name="+")

    objects: Any = OwnedQuerySet.as_manager()

    class Meta:
        abstract = True


def of_organization(queryset: models.QuerySet, organization: Organization | None) -> models.QuerySet:
    """Only the organization's rows; none without one. Raises ImproperlyConfigured for a model that belongs to
    none."""
    if not issubclass(queryset.model, OwnedModel):
        raise ImproperlyConfigured(f"{queryset.model.__name__} belongs to no organization.")
    return queryset.filter(organization=organization) if organization else queryset.none()
