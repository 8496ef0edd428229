"""Notification, Alert, Delivery and Claim."""

import uuid

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from accounts.models import User
from accounts.scoping import OwnedModel
from dispatch.core import clock
from notifications.models.channels import AlertChannel


class Level(models.TextChoices):
    """How prominent a notification is.

    A quiet notification is only listed, a toast is shown briefly, and a critical one is an alert that stays until
    it is acknowledged.
    """

    QUIET = "quiet", "Quiet"
    TOAST = "toast", "Toast"
    CRITICAL = "critical", "Critical"


class Alert(OwnedModel):
    """A critical event that needs the attention of someone in the organization.

    Open until someone acknowledges it anywhere or its cause ends. While open, it repeats (`next_repeat_at`) and
    escalates (`next_action_at`) by the plan frozen into it. `cycle` and `step` are its position in the plan, and
    `step_token` identifies that step. Acknowledged, it opens again (`returns_at`) if nothing follows.
    """

    class Status(models.TextChoices):
        OPEN = "open", "Open"
        ACKNOWLEDGED = "acknowledged", "Acknowledged"
        SETTLED = "settled", "Resolved"

    event_id = models.BigIntegerField()
    kind = models.CharField(max_length=64)
    title = models.CharField(max_length=160)
    body = models.CharField(max_length=500, blank=True)
    subject_type = models.CharField(max_length=32)
    subject_id = models.BigIntegerField()
    status = models.CharField(max_length=16, choices=Status, default=Status.OPEN)
    created_at = models.DateTimeField(default=clock.now)
    plan = models.JSONField(default=dict, help_text="The escalation policy as it was when the alert was raised.")
    cycle = models.PositiveSmallIntegerField(default=0)
    step = models.PositiveSmallIntegerField(default=0)
    step_token = models.UUIDField(default=uuid.uuid4)
    next_action_at = models.DateTimeField(null=True, blank=True)
    repeats = models.PositiveIntegerField(default=0)
    next_repeat_at = models.DateTimeField(null=True, blank=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    acknowledged_via = models.CharField(max_length=16, blank=True, help_text="app, phone, text or link.")
    returns_at = models.DateTimeField(
        null=True, blank=True, help_text="When the acknowledged alert opens again, unless something happens."
    )
    returns = models.IntegerField(default=0, db_default=0, validators=[MinValueValidator(0)])
    return_note = models.CharField(
        max_length=160, blank=True, default="", db_default="", help_text="Why it opened again."
    )
    settled_at = models.DateTimeField(null=True, blank=True)
    settled_how = models.CharField(max_length=160, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "event_id"], name="one_alert_per_event"),
            models.CheckConstraint(
                condition=Q(status="open", next_action_at__isnull=False, next_repeat_at__isnull=False)
                | ~Q(status="open") & Q(next_action_at=None, next_repeat_at=None),
                name="an_open_alert_has_a_next_step",
            ),
        ]
        indexes = [
            models.Index(
                fields=["organization", "next_action_at"],
                condition=Q(status="open"),
                name="alert_to_escalate_in_turn",
            ),
            models.Index(
                fields=["organization", "next_repeat_at"],
                condition=Q(status="open"),
                name="alert_to_repeat_in_turn",
            ),
            models.Index(
                fields=["organization", "returns_at"],
                condition=Q(status="acknowledged"),
                name="alert_to_return_in_turn",
            ),
            models.Index(fields=["subject_type", "subject_id"], condition=~Q(status="settled"), name="alert_of"),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def shown_body(self) -> str:
        """The second line as people see it: why the alert opened again, then the details."""
        return " · ".join(filter(None, (self.return_note, self.body)))[:500]


class Notification(OwnedModel):
    """One user's notification of one Event, or the team's if `user` is empty (for the team's channels).

    A critical notification belongs to an Alert and copies its state: it needs attention until someone in the
    organization acknowledges it (`acknowledged_by`, the same on all colleagues' rows) or its cause ends
    (`settled_how`).
    """

    Level = Level

    user = models.ForeignKey(
        User, null=True, blank=True, on_delete=models.CASCADE, related_name="notifications", db_index=False
    )
    alert = models.ForeignKey(Alert, null=True, blank=True, on_delete=models.CASCADE, related_name="notifications")
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
    settled_at = models.DateTimeField(null=True, blank=True, help_text="When the cause ended.")
    settled_how = models.CharField(max_length=160, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["user", "event_id"], name="one_notification_per_event"),
            models.UniqueConstraint(
                fields=["organization", "event_id"], condition=Q(user=None), name="one_team_notification_per_event"
            ),
        ]
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
        return self.level == Level.CRITICAL and self.acknowledged_at is None and self.settled_at is None


class Channel(models.TextChoices):
    """The channel of a delivery."""

    EMAIL = "email", "Email"
    SMS = "sms", "Text"
    VOICE = "voice", "Call"
    CHAT = "chat", "Chat"
    PUSH = "push", "Push"


class Delivery(OwnedModel):
    """One notification sent by one channel. The row is committed before anything is sent.

    waiting → sending → sent or failed; `dropped` if no longer needed. A voice delivery is `sent` once the call was
    answered. `sending` lapses at `next_attempt_at`: an email or chat message may then be sent twice, but a call or
    text is not, because it has a row in telephony. A push is `sent` once the push service of one of the person's
    browsers has taken it. `destination`: the channel of a chat message.
    """

    class Status(models.TextChoices):
        WAITING = "waiting", "Waiting"
        SENDING = "sending", "Sending"
        SENT = "sent", "Sent"
        FAILED = "failed", "Failed"
        DROPPED = "dropped", "No longer needed"

    notification = models.ForeignKey(
        Notification, on_delete=models.CASCADE, related_name="deliveries", db_index=False
    )
    channel = models.CharField(max_length=8, choices=Channel)
    destination = models.ForeignKey(
        AlertChannel, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    cycle = models.PositiveSmallIntegerField(default=0)
    step = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text=("Escalation step. Empty if sent immediately.")
    )
    status = models.CharField(max_length=8, choices=Status, default=Status.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True, default=clock.now)
    error = models.CharField(max_length=255, blank=True)
    created_at = models.DateTimeField(default=clock.now)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(
                fields=["notification", "channel", "destination", "cycle", "step"],
                name="each_delivery_to_its_destination_once",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=Q(status__in=("waiting", "sending"), next_attempt_at__isnull=False)
                | ~Q(status__in=("waiting", "sending")) & Q(next_attempt_at=None),
                name="an_open_delivery_has_a_next_attempt",
            ),
        ]
        indexes = [
            models.Index(
                fields=["channel", "next_attempt_at"],
                condition=Q(status__in=("waiting", "sending")),
                name="delivery_to_make",
            ),
            models.Index(
                fields=["organization", "next_attempt_at"],
                condition=Q(channel="email", status__in=("waiting", "sending")),
                name="email_in_turn",
            ),
            models.Index(
                fields=["organization", "next_attempt_at"],
                condition=Q(channel__in=("sms", "voice"), status__in=("waiting", "sending")),
                name="call_or_text_in_turn",
            ),
            models.Index(
                fields=["organization", "next_attempt_at"],
                condition=Q(channel="push", status__in=("waiting", "sending")),
                name="push_in_turn",
            ),
            models.Index(
                fields=["destination", "-id"], condition=Q(destination__isnull=False), name="delivery_of_channel"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_channel_display()} {self.pk} ({self.get_status_display()})"


class Claim(OwnedModel):
    """Ownership of a problem that needs attention, visible to all colleagues.

    It ends when the owner releases it or when the problem's cause ends. `subject_type` is job or call_error; the
    id of a call_error identifies the kind of error.
    """

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
