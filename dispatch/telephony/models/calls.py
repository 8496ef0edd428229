"""Models of outbound calls, their provider events, and inbound calls."""

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.languages import gettext, mark
from dispatch.telephony.models.prices import Priced

# The carrier knows the caller, and the caller may use the number (SHAKEN/STIR attestation A).
FULL_ATTESTATION = "TN-Validation-Passed-A"
# The start of what the provider says about a number → the kind of caller. A gateway's attestation (C) says nothing
# about the caller, nor does a number without a signature.
_ATTESTED = {FULL_ATTESTATION: "A", "TN-Validation-Passed-B": "B", "TN-Validation-Failed": "failed"}
UNATTESTED = "none"


def holder_of(purpose: str, subject_id: int, attempt: int) -> str:
    """Return the name under which an attempt holds its line (see `dispatch.capacity.line_leases`)."""
    return f"{purpose}:{subject_id}:{attempt}"


class Call(OwnedModel, Priced):
    """One outbound phone call. The row is committed before the provider is asked.

    created → requesting → submitted → ringing → answered → an end. `unknown` is a request without a known outcome;
    it is resolved by the first signed webhook or by asking the provider. States only move forward (`rules.RANK`).
    """

    class Status(models.TextChoices):
        CREATED = "created", mark("Created")
        REQUESTING = "requesting", mark("Requesting")
        UNKNOWN = "unknown", mark("Unknown")
        SUBMITTED = "submitted", mark("Submitted")
        RINGING = "ringing", mark("Ringing")
        ANSWERED = "answered", mark("Answered")
        COMPLETED = "completed", mark("Completed")
        BUSY = "busy", mark("Busy")
        NO_ANSWER = "no_answer", mark("No answer")
        FAILED = "failed", mark("Failed")
        CANCELED = "canceled", mark("Canceled")
        REJECTED = "rejected", mark("Rejected by the provider")
        NOT_PLACED = "not_placed", mark("Not placed")
        LOST = "lost", mark("End not reported")

    class Purpose(models.TextChoices):
        ALERT = "alert", mark("Alert")
        OFFER = "offer", mark("Offer")
        JOB_NEWS = "job_news", mark("Change of a job")
        LEAD = "lead", mark("Lead")
        CONNECT = "connect", mark("Person for a lead")
        CONFIRM = "confirm", mark("Code for a phone")
        TEST = "test", mark("Test")

    purpose = models.CharField(max_length=16, choices=Purpose)
    subject_id = models.BigIntegerField(help_text="ID of what the call is about, such as the offer.")
    attempt = models.PositiveSmallIntegerField(default=1)

    # A busy site writes thousands of rows per second, and an index entry costs as much as a row. The foreign keys
    # therefore have no indexes. Nor are they checked, because accounts, numbers and pools are never deleted, and
    # thus no organization that has some.
    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    account = models.ForeignKey(
        ProviderAccount, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    number = models.ForeignKey(
        OutboundNumber, on_delete=models.PROTECT, related_name="calls", db_index=False, db_constraint=False
    )
    pool = models.ForeignKey(
        DispatchPool, on_delete=models.PROTECT, related_name="calls", db_index=False, db_constraint=False
    )
    line_slot = models.PositiveIntegerField()
    pool_slot = models.PositiveIntegerField()
    to_phone = PhoneNumberField()
    from_phone = PhoneNumberField()
    ring_timeout_s = models.PositiveSmallIntegerField(default=30)
    time_limit_s = models.PositiveSmallIntegerField(default=300)
    priority = models.SmallIntegerField(
        default=3,
        db_default=3,
        validators=[MinValueValidator(0)],
        help_text="Calls of one purpose are placed in this order: 1 first.",
    )
    detect_machine = models.BooleanField(default=False, help_text="Have the provider detect who answered.")
    customer = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="The customer on whose behalf it calls, for rate limits.",
    )

    status = models.CharField(max_length=16, choices=Status, default=Status.CREATED)
    sid = models.CharField(max_length=64, null=True, blank=True)
    not_before = models.DateTimeField(default=clock.now, help_text="The call is not placed before this time.")
    place_by = models.DateTimeField(help_text="Deadline for claiming the request.")
    send_by = models.DateTimeField(null=True, help_text="Deadline for sending the claimed request.")
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    hang_up_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When the provider is next asked to end it."
    )
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
        help_text="Included in every event of the call, so that its subject finds them.",
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
            models.Index(fields=["hang_up_at"], condition=Q(hang_up_at__isnull=False), name="call_to_hang_up"),
            models.Index(fields=["requested_at"], name="call_requested_at"),
            models.Index(fields=["organization", "requested_at"], name="call_of_organization"),
            models.Index(
                fields=["organization", "customer", "created_at"],
                condition=~Q(customer=""),
                name="call_of_customer",
            ),
            models.Index(fields=["organization", "to_phone", "requested_at"], name="call_to_phone"),
            models.Index(
                fields=["account", "ended_at"],
                condition=Q(price__isnull=True, sid__isnull=False, status__in=["completed", "lost"]),
                name="call_without_price",
            ),
            models.Index(
                fields=["organization", "requested_at"], condition=Q(price__isnull=False), name="call_with_price"
            ),
        ]

    def __str__(self) -> str:
        return gettext("Call {id} ({status})").format(id=self.pk, status=self.get_status_display())

    @property
    def holder(self) -> str:
        """Return the holder of the call's line. It is known before the row exists, and stable for the attempt."""
        return holder_of(self.purpose, self.subject_id, self.attempt)


class CallEvent(OwnedModel):
    """One report of the provider about a call, stored once."""

    call = models.ForeignKey(Call, on_delete=models.CASCADE, related_name="provider_events", db_index=False)
    key = models.CharField(max_length=128, help_text="Deduplicates events: a sequence number or a digest.")
    kind = models.CharField(max_length=32)
    payload = models.JSONField(default=dict)
    at = models.DateTimeField(default=clock.now)
    next_action_at = models.DateTimeField(
        null=True, blank=True, help_text="When the loop applies a pressed key, unless its webhook has."
    )

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["call", "key"], name="each_provider_event_once")]
        indexes = [
            models.Index(
                fields=["next_action_at"], condition=Q(next_action_at__isnull=False), name="pressed_key_to_act_on"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} ({self.key})"


class InboundCall(OwnedModel, Priced):
    """A call to one of our numbers. `purpose` and `subject_id` identify the subject of its prompt."""

    class Status(models.TextChoices):
        ANSWERED = "answered", "Answered"
        COMPLETED = "completed", "Completed"

    account = models.ForeignKey(ProviderAccount, on_delete=models.PROTECT, related_name="+", db_index=False)
    number = models.ForeignKey(OutboundNumber, on_delete=models.PROTECT, related_name="inbound_calls")
    sid = models.CharField(max_length=64)
    from_phone = models.CharField(max_length=32, blank=True, help_text="E.164. Empty if withheld.")
    status = models.CharField(max_length=16, choices=Status, default=Status.ANSWERED)
    purpose = models.CharField(max_length=16, blank=True)
    subject_id = models.BigIntegerField(null=True, blank=True)
    keys_pressed = models.CharField(max_length=64, blank=True)
    pending_keys = models.JSONField(
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
        help_text="Recorded keys that were not applied yet: key and time of arrival.",
    )
    next_action_at = models.DateTimeField(
        null=True, blank=True, help_text="When the loop applies them, unless the webhook has."
    )
    answered_prompts = models.JSONField(
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
        help_text="The latest answers to prompts, so that each counts once: identity and time of arrival.",
    )
    attestation = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="What the provider says about the caller's number (StirVerstat). Without attestation A, the "
        "number may be forged.",
    )
    verified_at = models.DateTimeField(null=True, blank=True, help_text="When the caller entered the right PIN.")
    created_at = models.DateTimeField(default=clock.now)
    ended_at = models.DateTimeField(null=True, blank=True)
    duration_s = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["account", "sid"], name="one_inbound_call_per_sid")]
        indexes = [
            models.Index(fields=["organization", "-id"], name="inbound_call_newest"),
            models.Index(fields=["created_at"], condition=Q(ended_at=None), name="inbound_call_open"),
            models.Index(
                fields=["next_action_at"], condition=Q(next_action_at__isnull=False), name="inbound_key_to_act_on"
            ),
            models.Index(
                fields=["account", "ended_at"],
                condition=Q(price__isnull=True, ended_at__isnull=False),
                name="inbound_without_price",
            ),
            models.Index(
                fields=["organization", "created_at"], condition=Q(price__isnull=False), name="inbound_with_price"
            ),
        ]

    def __str__(self) -> str:
        return gettext("Inbound call {id}").format(id=self.pk)

    @property
    def caller_kind(self) -> str:
        """What vouches for the caller's number: "A", "B", "failed" (a signature that does not hold) or "none"."""
        found = (kind for said, kind in _ATTESTED.items() if self.attestation.startswith(said))
        return next(found, UNATTESTED)

    @property
    def is_trusted(self) -> bool:
        """Whether the caller is who the number says: the carrier vouches for it, or the PIN was right."""
        return self.attestation == FULL_ATTESTATION or self.verified_at is not None
