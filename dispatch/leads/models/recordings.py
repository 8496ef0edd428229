"""Define the recordings that a campaign plays: audio files kept here, or addresses of files elsewhere."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from accounts.scoping import OwnedModel
from dispatch.core import clock


class Recording(OwnedModel):
    """A recording for the calls of one campaign. It never changes; a new file is a new row.

    It belongs to the campaign that first used it, and is deleted with it. `url` is empty if the file is kept here.
    """

    campaign = models.ForeignKey(
        "leads.Campaign", on_delete=models.CASCADE, related_name="recordings", null=True, blank=True
    )
    name = models.CharField(max_length=120)
    url = models.CharField("https address", max_length=2000, blank=True, default="")
    content_type = models.CharField(max_length=32, blank=True, default="")
    size_bytes = models.PositiveIntegerField(default=0)
    duration_s = models.FloatField("length (s)", default=0)
    digest = models.CharField(max_length=64, blank=True, default="", help_text="SHA-256 of the file.")
    created_at = models.DateTimeField(default=clock.now)
    unused_at = models.DateTimeField(
        null=True, blank=True, default=clock.now, help_text="Since when no call plays it. Empty while it is used."
    )

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(url="") & ~Q(digest="") | ~Q(url="") & Q(digest=""),
                name="recording_is_a_file_or_an_address",
            )
        ]
        indexes = [
            models.Index(
                fields=["organization", "unused_at"], condition=Q(unused_at__isnull=False), name="recording_unused"
            )
        ]

    def __str__(self) -> str:
        return self.name


class RecordingFile(OwnedModel):
    """The bytes of a recording, apart from it so that only what plays them reads them."""

    recording = models.OneToOneField(Recording, on_delete=models.CASCADE, primary_key=True, related_name="file")
    content = models.BinaryField()

    def __str__(self) -> str:
        return f"File of recording {self.pk}"
