"""Define which report a member receives by email, and when. `console.reports.subscriptions` sends it."""

from __future__ import annotations

from django.core.validators import MaxValueValidator
from django.db import models

from accounts.models import Membership
from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.languages import mark


class ReportSubscription(OwnedModel):
    """Store a member's subscription to a report. It is deleted with the membership, and when its rights end.

    `due_at` is the current or next moment of the report, `next_attempt_at` when it is tried again. `sending_since`
    is set immediately before the mail server gets the message: if a process dies then, it is not sent again.
    """

    class Frequency(models.TextChoices):
        DAILY = "daily", mark("Every day")
        WEEKLY = "weekly", mark("Every Monday")
        MONTHLY = "monthly", mark("On the first of the month")

    membership = models.ForeignKey(Membership, on_delete=models.CASCADE, related_name="report_subscriptions")
    report = models.CharField(max_length=24, help_text="The kind of report.")
    frequency = models.CharField(max_length=8, choices=Frequency, default=Frequency.WEEKLY)
    hour = models.PositiveSmallIntegerField(
        default=7, validators=[MaxValueValidator(23)], help_text="In the organization's time zone."
    )
    due_at = models.DateTimeField()
    next_attempt_at = models.DateTimeField(db_index=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    sending_since = models.DateTimeField(null=True, editable=False)
    sent_at = models.DateTimeField(null=True, editable=False)
    error = models.CharField(max_length=200, blank=True, default="", editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["membership", "report"], name="one_subscription_per_report"),
            models.CheckConstraint(condition=models.Q(hour__lte=23), name="report_hour_exists"),
        ]

    def __str__(self) -> str:
        return f"{self.report}, {self.get_frequency_display()}: {self.membership}"
