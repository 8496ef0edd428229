"""Call and the provider events that moved it."""

from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.telephony.models_texts import InboundCall, OptOut, Text

__all__ = ["Call", "CallEvent", "InboundCall", "OptOut", "Text", "holder_of"]


def holder_of(purpose: str, subject_id: int, attempt: int) -> str:
    """The holder of the line of one attempt (capacity's word); `sql.OpenCalls` builds the same in SQL."""
    return f"{purpose}:{subject_id}:{attempt}"


class Call(OwnedModel):
    """One phone call. The row is committed before the provider is asked.

    created → requesting → submitted → ringing → answered → an end; `unknown` is a request whose outcome nobody
    heard, settled by the first signed webhook or by asking the provider. States only move forward (`rules.RANK`).
    """

    class Status(models.TextChoices):
        CREATED = "created", "Created"
        REQUESTING = "requesting", "Requesting"
        UNKNOWN = "unknown", "Unknown"
        SUBMITTED = "submitted", "Submitted"
        RINGING = "ringing", "Ringing"
        ANSWERED = "answered", "Answered"
        COMPLETED = "completed", "Completed"
        BUSY = "busy", "Busy"
        NO_ANSWER = "no_answer", "No answer"
        FAILED = "failed", "Failed"
        CANCELED = "canceled", "Canceled"
        REJECTED = "rejected", "Rejected by the provider"
        NOT_PLACED = "not_placed", "Not placed"
        LOST = "lost", "End never reported"

    class Purpose(models.TextChoices):
        ALERT = "alert", "Alert"
        OFFER = "offer", "Offer"
        LEAD = "lead", "Lead"
        TEST = "test", "Test"

    purpose = models.CharField(max_length=16, choices=Purpose)
    subject_id = models.BigIntegerField(help_text="The id of what the call is for, in its purpose's table.")
    attempt = models.PositiveSmallIntegerField(default=1)

    # A busy site writes thousands of rows a second, and each index of theirs costs as much as the row: the
    # references have none of their own.
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    account = models.ForeignKey(ProviderAccount, on_delete=models.PROTECT, related_name="+", db_index=False)
    number = models.ForeignKey(OutboundNumber, on_delete=models.PROTECT, related_name="calls", db_index=False)
    pool = models.ForeignKey(DispatchPool, on_delete=models.PROTECT, related_name="calls", db_index=False)
    line_slot = models.PositiveIntegerField()
    pool_slot = models.PositiveIntegerField()
    to_phone = PhoneNumberField()
    from_phone = PhoneNumberField()
    ring_timeout_s = models.PositiveSmallIntegerField(default=30)
    time_limit_s = models.PositiveSmallIntegerField(default=300)
    detect_machine = models.BooleanField(default=False, help_text="The provider says who answered: `answered_by`.")

    status = models.CharField(max_length=16, choices=Status, default=Status.CREATED)
    sid = models.CharField(max_length=64, null=True, blank=True)
    not_before = models.DateTimeField(default=clock.now, help_text="The placer leaves it alone until then.")
    place_by = models.DateTimeField(help_text="Nobody claims it for asking after this moment.")
    send_by = models.DateTimeField(null=True, help_text="The claimed request must have left by then.")
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    empty_listings = models.PositiveSmallIntegerField(default=0)
    checked_at = models.DateTimeField(
        null=True, blank=True, help_text="When the provider was last asked about it."
    )
    last_sequence = models.IntegerField(default=-1)

    created_at = models.DateTimeField(default=clock.now)
    requested_at = models.DateTimeField(null=True, blank=True)
    submitted_at = models.DateTimeField(null=True, blank=True)
    answered_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    duration_s = models.PositiveIntegerField(null=True, blank=True)
    answered_by = models.CharField(max_length=32, blank=True)
    keys_pressed = models.CharField(max_length=64, blank=True)
    context = models.JSONField(
        default=dict,
        blank=True,
        help_text="Said again in every event of the call, so that its subject finds them.",
    )
    error_code = models.CharField(max_length=16, blank=True)
    error_message = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["purpose", "subject_id", "attempt"], name="one_call_per_attempt"),
            models.UniqueConstraint(
                fields=["account", "sid"], condition=Q(sid__isnull=False), name="one_call_per_sid"
            ),
            models.UniqueConstraint(
                fields=["organization", "to_phone"], condition=Q(ended_at=None), name="one_open_call_per_phone"
            ),
            models.UniqueConstraint(
                fields=["number", "line_slot"], condition=Q(ended_at=None), name="one_open_call_per_line"
            ),
            models.UniqueConstraint(
                fields=["pool", "pool_slot"], condition=Q(ended_at=None), name="one_open_call_per_pool_slot"
            ),
        ]
        indexes = [
            models.Index(fields=["not_before"], condition=Q(status="created"), name="call_to_place"),
            models.Index(fields=["status", "id"], condition=Q(ended_at=None), name="call_open"),
            models.Index(fields=["requested_at"], name="call_requested_at"),
            models.Index(
                fields=["organization", "created_at"], condition=Q(purpose="lead"), name="lead_call_lately"
            ),
            models.Index(fields=["organization", "to_phone", "requested_at"], name="call_to_phone"),
        ]

    def __str__(self) -> str:
        return f"Call {self.pk} ({self.get_status_display()})"

    @property
    def holder(self) -> str:
        """Who holds its line: known before the row is, and the same when the attempt is tried again."""
        return holder_of(self.purpose, self.subject_id, self.attempt)


class CallEvent(OwnedModel):
    """One thing that the provider told us about a call, stored once."""

    call = models.ForeignKey(Call, on_delete=models.CASCADE, related_name="provider_events")
    key = models.CharField(max_length=128, help_text="Makes it one of its kind: a sequence number, or a digest.")
    kind = models.CharField(max_length=32)
    payload = models.JSONField(default=dict)
    at = models.DateTimeField(default=clock.now)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["call", "key"], name="each_provider_event_once")]

    def __str__(self) -> str:
        return f"{self.kind} ({self.key})"
