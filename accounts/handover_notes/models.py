"""Define HandoverNote and HandoverReading."""

from __future__ import annotations

from django.db import models
from django.utils.timezone import localtime

from accounts.scoping import OwnedModel
from dispatch.core import clock

MAX_TEXT = 2000


class HandoverNote(OwnedModel):
    """Store what a dispatcher who ended their shift wrote for the next one.

    `first_read_at` is null until a colleague of the author has read it. An erased author stays as "Erased user".
    """

    organization = models.ForeignKey("accounts.Organization", on_delete=models.CASCADE, related_name="+")
    author = models.ForeignKey("accounts.User", null=True, on_delete=models.SET_NULL, related_name="+")
    text = models.TextField(max_length=MAX_TEXT)
    written_at = models.DateTimeField(default=clock.now)
    first_read_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["written_at", "pk"]
        verbose_name = "hand-over note"
        indexes = [models.Index(fields=["organization", "written_at"], name="handover_notes_by_time")]

    def __str__(self) -> str:
        return f"{self.author or '—'}, {localtime(self.written_at):%Y-%m-%d %H:%M}"


class HandoverReading(models.Model):
    """Store that a person has read a note, and when."""

    note = models.ForeignKey(HandoverNote, on_delete=models.CASCADE, related_name="readings")
    reader = models.ForeignKey("accounts.User", on_delete=models.CASCADE, related_name="+")
    read_at = models.DateTimeField(default=clock.now)

    class Meta:
        ordering = ["read_at", "pk"]
        constraints = [models.UniqueConstraint(fields=["note", "reader"], name="one_reading_per_person")]

    def __str__(self) -> str:
        return f"{self.reader}, {localtime(self.read_at):%Y-%m-%d %H:%M}"
