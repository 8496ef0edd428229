"""Notification, Claim."""

from django.db import models
from django.db.models import Q

from accounts.models import User
from accounts.scoping import OwnedModel
from dispatch.core import clock


class Notification(OwnedModel):
    """One thing that one user must know, made from one Event.

    A critical one is an alert: it asks for a person until somebody of the organization has acknowledged it
    (`acknowledged_by`, the same on all colleagues' rows) or its cause is gone (`settled_how` says by what)."""

    class Level(models.TextChoices):
        QUIET = "quiet", "Quiet"
        TOAST = "toast", "Toast"
        CRITICAL = "critical", "Critical"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="notifications")
    event_id = models.BigIntegerField()
    kind = models.CharField(max_length=64)
    level = models.CharField(max_length=16, choices=Level, default=Level.TOAST)
    title = models.CharField(max_length=160)
    body = models.CharField(max_length=500, blank=True)
    subject_type = models.CharField(max_length=32)
    subject_id = models.BigIntegerField()
    created_at = models.DateTimeField(default=clock.now)
    read_at = models.DateTimeField(null=True, blank=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    settled_at = models.DateTimeField(null=True, blank=True, help_text="When the cause was gone.")
    settled_how = models.CharField(max_length=160, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["user", "event_id"], name="one_notification_per_event")]
        indexes = [
            models.Index(fields=["user", "-id"], condition=Q(read_at=None), name="notification_unread"),
            models.Index(
                fields=["organization", "subject_type", "subject_id"],
                condition=Q(settled_at=None),
                name="notification_unsettled",
            ),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def is_open_alert(self) -> bool:
        return self.level == self.Level.CRITICAL and self.acknowledged_at is None and self.settled_at is None


class Claim(OwnedModel):
    """Who has taken on something that needs attention, for all colleagues to see. It ends when they let it go or
    when its cause is gone. `subject_type` is job or call_error (then the id is the provider's error code)."""

    subject_type = models.CharField(max_length=32)
    subject_id = models.BigIntegerField()
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    claimed_at = models.DateTimeField(default=clock.now)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "subject_type", "subject_id"], name="one_claim_per_subject"
            )
        ]

    def __str__(self) -> str:
        return f"{self.user} has {self.subject_type} {self.subject_id}"
