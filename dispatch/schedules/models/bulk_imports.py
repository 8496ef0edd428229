"""Define BulkImport, its parts that are not processed yet, and the errors of its rows."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.languages import mark, ngettext


class BulkImport(OwnedModel):
    """A bulk import of schedules. A worker creates them in parts; the counts are its progress."""

    class Status(models.TextChoices):
        RECEIVED = "received", mark("Received")
        RUNNING = "running", mark("Running")
        DONE = "done", mark("Done")
        CANCELLED = "cancelled", mark("Canceled")

    OPEN = (Status.RECEIVED, Status.RUNNING)

    status = models.CharField(max_length=16, choices=Status, default=Status.RECEIVED)
    total = models.PositiveIntegerField()
    created = models.PositiveIntegerField(default=0)
    refused = models.PositiveIntegerField(default=0)
    actor = models.JSONField(default=dict, help_text="The user or API key that started it.")
    scopes = ArrayField(models.CharField(max_length=32), default=list, help_text="Scopes of the caller.")
    worked_at = models.DateTimeField(null=True, help_text="When a worker last claimed a part.")
    created_at = models.DateTimeField(default=clock.now)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "bulk import"
        indexes = [
            models.Index(F("organization"), F("id").desc(), name="bulk_of_organization"),
            models.Index(fields=["worked_at"], condition=Q(status__in=["received", "running"]), name="bulk_open"),
        ]

    def __str__(self) -> str:
        return ngettext("{count} schedule", "{count} schedules", self.total).format(count=self.total)


class BulkPart(models.Model):
    """Rows of a bulk import that are not processed yet."""

    bulk = models.ForeignKey(BulkImport, on_delete=models.CASCADE, related_name="parts")
    first_row = models.PositiveIntegerField()
    rows = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["bulk", "first_row"], name="one_part_per_first_row")]

    def __str__(self) -> str:
        return f"{self.bulk_id} from {self.first_row}"


class BulkError(models.Model):
    """The reasons why a row was rejected. Rows are counted from 0."""

    bulk = models.ForeignKey(BulkImport, on_delete=models.CASCADE, related_name="row_errors")
    row = models.PositiveIntegerField()
    errors = models.JSONField(help_text="As in an API response: field, code, detail.")

    class Meta:
        ordering = ["row"]
        constraints = [models.UniqueConstraint(fields=["bulk", "row"], name="one_error_per_row")]

    def __str__(self) -> str:
        return f"{self.bulk_id} row {self.row}"
