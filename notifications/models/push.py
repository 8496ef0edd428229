"""Browsers that get push notifications, the messages to them, and the key that identifies this installation."""

import uuid
from typing import Any

from django.db import models
from django.db.models import Q

from accounts.models import User
from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.crypto import EncryptedJSONField, EncryptedTextField
from dispatch.technicians.models import Technician


class PushKey(models.Model):
    """Store the key pair (VAPID) by which push services recognize this installation. There is one row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    private_key: Any = EncryptedTextField(editable=False)
    public_key = models.CharField(max_length=120, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_push_key")]

    def __str__(self) -> str:
        return self.public_key


class PushSubscription(OwnedModel):
    """Store one browser of a user or technician that gets push notifications.

    `endpoint` is a URL at the browser's push service, and works like a password. `public_id` is what the browser
    knows it by (in a cookie). `server_key`: the public key under which the browser subscribed.
    """

    user = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    technician = models.ForeignKey(
        Technician, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=60, help_text="The browser and its system.")
    host = models.CharField(max_length=120, help_text="The push service.")
    endpoint: Any = EncryptedTextField(editable=False)
    endpoint_hash = models.CharField(max_length=64, editable=False)
    keys: Any = EncryptedJSONField(default=dict, editable=False)
    server_key = models.CharField(max_length=120, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False, help_text="Failed attempts in a row.")
    error = models.CharField(max_length=255, blank=True, editable=False, help_text="Of the latest attempt.")
    tried_at = models.DateTimeField(null=True, editable=False, help_text="When the latest attempt ended.")
    paused_until = models.DateTimeField(null=True, editable=False, help_text="No attempt until then.")
    succeeded_at = models.DateTimeField("last success", null=True, editable=False)
    failed_at = models.DateTimeField("last failure", null=True, editable=False)
    failure = models.CharField(
        "reason of the last failure", max_length=255, db_default="", default="", blank=True, editable=False
    )

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.CheckConstraint(
                condition=Q(user=None, technician__isnull=False) | Q(user__isnull=False, technician=None),
                name="a_push_subscription_has_one_owner",
            ),
            models.UniqueConstraint(
                fields=["organization", "user", "technician", "endpoint_hash"],
                name="one_push_subscription_per_browser",
                nulls_distinct=False,
            ),
        ]
        indexes = [
            models.Index(fields=["technician"], condition=Q(technician__isnull=False), name="push_of_technician"),
            models.Index(fields=["endpoint_hash"], name="push_of_endpoint"),
        ]

    def __str__(self) -> str:
        return self.name


class PushMessage(OwnedModel):
    """Store one message to one browser. The row is committed before anything is sent.

    It has no text: that is rendered when it is sent, from the row that `purpose` and `subject_id` name. waiting →
    sending → sent or failed; `dropped` if no longer needed. `sending` lapses at `next_attempt_at`: the message may
    then be sent twice, and the browser replaces the first by the second.
    """

    class Purpose(models.TextChoices):
        ALERT = "alert", "Notification"  # the subject is a delivery
        CLOSE = "close", "End of an alert"  # an alert
        WITHDRAWAL = "withdraw", "Withdrawal"  # a notification
        OFFER = "offer", "Offer"  # an offer
        JOB = "job", "Job"  # a job
        JOB_NEWS = "job_news", "Change of a job"  # a technician's notice
        TEST = "test", "Test"  # the event of the test

    class Status(models.TextChoices):
        WAITING = "waiting", "Waiting"
        SENDING = "sending", "Sending"
        SENT = "sent", "Sent"
        FAILED = "failed", "Failed"
        DROPPED = "dropped", "No longer needed"

    subscription = models.ForeignKey(
        PushSubscription, on_delete=models.CASCADE, related_name="messages", db_index=False
    )
    purpose = models.CharField(max_length=8, choices=Purpose)
    subject_id = models.BigIntegerField()
    attempt = models.PositiveIntegerField(default=0, help_text="Which message about the same subject.")
    status = models.CharField(max_length=8, choices=Status, default=Status.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True, default=clock.now)
    expires_at = models.DateTimeField(help_text="The message is worthless afterwards.")
    error = models.CharField(max_length=255, blank=True)
    created_at = models.DateTimeField(default=clock.now)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["subscription", "purpose", "subject_id", "attempt"], name="each_push_message_once"
            ),
            models.CheckConstraint(
                condition=Q(status__in=("waiting", "sending"), next_attempt_at__isnull=False)
                | ~Q(status__in=("waiting", "sending")) & Q(next_attempt_at=None),
                name="an_open_push_has_a_next_attempt",
            ),
        ]
        indexes = [
            models.Index(
                fields=["next_attempt_at"], condition=Q(status__in=("waiting", "sending")), name="push_to_send"
            ),
            models.Index(fields=["purpose", "subject_id"], name="push_of_subject"),
            models.Index(
                fields=["organization", "ended_at"], condition=Q(ended_at__isnull=False), name="push_to_delete"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_purpose_display()} {self.pk} ({self.get_status_display()})"
