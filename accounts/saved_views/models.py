"""Define SavedView and DefaultView."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Lower

from accounts.scoping import OwnedModel
from dispatch.core import clock

MAX_NAME, MAX_QUERY = 60, 1000


class SavedView(OwnedModel):
    """Store filters and layout of the board under a name, for one user or for the whole organization.

    `query` is the board's query string, in the form that the console writes. It is read like any other address, so
    it opens nothing that its reader may not see.
    """

    organization = models.ForeignKey("accounts.Organization", on_delete=models.CASCADE, related_name="+")
    owner = models.ForeignKey(
        "accounts.User", null=True, on_delete=models.CASCADE, related_name="+",
        help_text="Whose view it is. Empty: everyone in the organization uses it.",
    )  # fmt: skip
    shared_by = models.ForeignKey(
        "accounts.User", null=True, on_delete=models.SET_NULL, related_name="+",
        help_text="Who shared it, and may change it as admins may.",
    )  # fmt: skip
    name = models.CharField(max_length=MAX_NAME)
    query = models.CharField(max_length=MAX_QUERY, blank=True)
    created_at = models.DateTimeField(default=clock.now)

    class Meta:
        ordering = [Lower("name"), "pk"]
        constraints = [
            models.UniqueConstraint(
                "organization", "owner", Lower("name"), name="one_view_per_name",
                condition=models.Q(owner__isnull=False),
            ),
            models.UniqueConstraint(
                "organization", Lower("name"), name="one_shared_view_per_name",
                condition=models.Q(owner__isnull=True),
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.name

    @property
    def is_shared(self) -> bool:
        """Return whether everyone in the organization uses the view."""
        return self.owner_id is None


class DefaultView(OwnedModel):
    """Store which view the board opens with, for a user in one organization."""

    organization = models.ForeignKey("accounts.Organization", on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey("accounts.User", on_delete=models.CASCADE, related_name="+")
    view = models.ForeignKey(SavedView, on_delete=models.CASCADE, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organization", "user"], name="one_default_view")]

    def __str__(self) -> str:
        return f"{self.user}: {self.view}"
