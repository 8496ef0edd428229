"""Keep organizations apart. All tenant isolation goes through this module.

Models derive from `OwnedModel`; API views from `OrganizationViewSet` of `accounts.api.base`; admins from
`accounts.admin.base.OwnedAdmin`. All of them end in `OwnedQuerySet.of()` or `visible_to()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.core.exceptions import ImproperlyConfigured
from django.db import models

if TYPE_CHECKING:
    from accounts.models import Organization, User


class OwnedQuerySet(models.QuerySet):
    """Filter rows by one organization, or by the organizations that a user may administer."""

    def of(self, organization: Organization | int) -> Self:
        """Return only the rows of `organization` (a row or its id)."""
        return self.filter(organization_id=getattr(organization, "pk", organization))

    def visible_to(self, user: User) -> Self:
        """Return only the rows of organizations that `user` administers; all rows for a superuser."""
        if user.is_superuser:
            return self
        return self.filter(organization_id__in=user.administered_organization_ids())


class OwnedModel(models.Model):
    """Base of every row that belongs to one organization."""

    organization = models.ForeignKey("accounts.Organization", on_delete=models.PROTECT, related_name="+")

    objects: Any = OwnedQuerySet.as_manager()

    class Meta:
        abstract = True


class OwnedModelWithoutIndex(OwnedModel):
    """Base of owned rows that are written often: the model declares the indexes that queries need."""

    organization = models.ForeignKey(
        "accounts.Organization", on_delete=models.PROTECT, related_name="+", db_index=False
    )

    class Meta(OwnedModel.Meta):
        abstract = True


def of_organization(queryset: models.QuerySet, organization: Organization | None) -> models.QuerySet:
    """Return only the organization's rows; none if it is None.

    Raises ImproperlyConfigured for a model that has no organization.
    """
    if not issubclass(queryset.model, OwnedModel):
        raise ImproperlyConfigured(f"{queryset.model.__name__} belongs to no organization.")
    return queryset.filter(organization=organization) if organization else queryset.none()
