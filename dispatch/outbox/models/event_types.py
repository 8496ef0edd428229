"""Define EventType and EventTypeVersion, the entries of an organization's event catalog."""

from __future__ import annotations

from django.db import models

from accounts.scoping import OwnedModel
from dispatch.core import clock


class EventType(OwnedModel):
    """A type of messages that an organization publishes: an entry of its event catalog.

    Dispatch's own types are in `dispatch.outbox.catalog`. `version` is the number of the current
    EventTypeVersion; 0 means that it has no schema.
    """

    name = models.CharField(
        max_length=80, help_text='A subject and a verb, such as "order.changed". It cannot be changed.'
    )
    description = models.CharField(max_length=500, blank=True, default="")
    is_enforced = models.BooleanField(
        "refuse other payloads",
        default=False,
        help_text="Messages of this type whose payload does not match the schema are refused.",
    )
    version = models.PositiveIntegerField(default=0, editable=False)
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["organization", "name"], name="one_event_type_per_name")]

    def __str__(self) -> str:
        return self.name


class EventTypeVersion(OwnedModel):
    """One version of an event type: its JSON Schema and an example. It is never changed."""

    event_type = models.ForeignKey(EventType, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    schema = models.JSONField(null=True)
    example = models.JSONField(null=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["event_type", "number"], name="one_version_per_event_type")]

    def __str__(self) -> str:
        return f"{self.event_type_id} version {self.number}"
