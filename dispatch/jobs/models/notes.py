"""The notes that dispatchers write on a job."""

from django.db import models
from django.utils.timezone import localtime

from accounts.models import User
from accounts.scoping import OwnedModel
from dispatch.core import clock

MAX_NOTE_TEXT = 2000


def notes_endpoint(job_id: int) -> str:
    """Return the endpoint under which the API's responses to an Idempotency-Key are stored for the job's notes."""
    return f"jobs/{job_id}/notes"


class JobNote(OwnedModel):
    """A note on a job for colleagues. Its text never changes.

    `author_label` is who wrote it, also if the user is removed; an API key has only a label. `mentions` has
    {"start", "end", "users"} of each mention in the text.
    """

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="written_notes")
    author = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    author_label = models.CharField(max_length=200)
    text = models.TextField(max_length=MAX_NOTE_TEXT)
    mentions = models.JSONField(default=list)
    written_at = models.DateTimeField(default=clock.now)

    class Meta:
        ordering = ["id"]
        verbose_name = "job note"

    def __str__(self) -> str:
        return f"{self.author_name}, {localtime(self.written_at):%Y-%m-%d %H:%M}"

    @property
    def author_name(self) -> str:
        """The name of the author as it is now, or as it was when they were removed."""
        return str(self.author) if self.author else self.author_label
