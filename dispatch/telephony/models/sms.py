"""Models of texts and opt-outs."""

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce
from phonenumber_field.modelfields import PhoneNumberField

from accounts.scoping import OwnedModel, OwnedModelWithoutIndex
from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.languages import gettext
from dispatch.telephony.models.prices import Priced


class Text(OwnedModelWithoutIndex, Priced):
    """One SMS, outbound or inbound. An outbound row is committed before the provider is asked.

    created → requesting → submitted → sent → an end. `unknown` is a request without a known outcome; it is
    resolved by the first signed webhook or by asking the provider. States only move forward (`sms_rules.RANK`). An
    inbound text starts as `received`.
    """

    class Direction(models.TextChoices):
        OUT = "out", "Outbound"
        IN = "in", "Inbound"

    class Status(models.TextChoices):
        CREATED = "created", "Created"
        REQUESTING = "requesting", "Requesting"
        UNKNOWN = "unknown", "Unknown"
        SUBMITTED = "submitted", "Submitted"
        SENT = "sent", "Sent"
        DELIVERED = "delivered", "Delivered"
        UNDELIVERED = "undelivered", "Undelivered"
        FAILED = "failed", "Failed"
        REJECTED = "rejected", "Rejected by the provider"
        CANCELED = "canceled", "Canceled"
        NOT_SENT = "not_sent", "Not sent"
        RECEIVED = "received", "Received"

    class Purpose(models.TextChoices):
        NONE = "", "—"
        ALERT = "alert", "Alert"
        OFFER = "offer", "Offer"
        JOB = "job", "Job details"
        JOB_NEWS = "job_news", "Change of a job"
        LINK = "link", "Link to their page"
        THREAD = "thread", "Conversation about a job"
        CUSTOMER = "customer", "Text to the customer"
        REPLY = "reply", "Reply"
        LEAD = "lead", "Lead"
        CONFIRM = "confirm", "Code for a phone"
        TEST = "test", "Test"

    direction = models.CharField(max_length=3, choices=Direction, default=Direction.OUT)
    purpose = models.CharField(
        max_length=16, choices=Purpose, blank=True, help_text="Of an inbound text: the purpose that handled it."
    )
    subject_id = models.BigIntegerField(
        null=True, blank=True, help_text="ID of what the text is about, such as the offer."
    )
    attempt = models.PositiveIntegerField(default=1)

    account = models.ForeignKey(ProviderAccount, on_delete=models.PROTECT, related_name="+", db_index=False)
    number = models.ForeignKey(OutboundNumber, on_delete=models.PROTECT, related_name="texts", db_index=False)
    to_phone = PhoneNumberField()
    from_phone = models.CharField(max_length=32, help_text="E.164, or the sender's short code or name.")
    body = models.TextField(max_length=1600)

    status = models.CharField(max_length=16, choices=Status, default=Status.CREATED)
    sid = models.CharField(max_length=64, null=True, blank=True)
    not_before = models.DateTimeField(default=clock.now, help_text="Earliest time to send it.")
    not_after = models.DateTimeField(help_text="Deadline for sending it.")
    send_by = models.DateTimeField(null=True, help_text="Deadline for sending the claimed request.")
    empty_listings = models.PositiveSmallIntegerField(default=0)
    checked_at = models.DateTimeField(
        null=True, blank=True, help_text="When the provider was last asked about it."
    )

    created_at = models.DateTimeField(default=clock.now)
    requested_at = models.DateTimeField(null=True, blank=True)
    submitted_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    handled_at = models.DateTimeField(
        null=True, blank=True, help_text="Of an inbound text: when it was processed."
    )
    context = models.JSONField(
        default=dict,
        blank=True,
        help_text="Included in every event of the text, so that its subject finds them.",
    )
    error_code = models.CharField(max_length=16, blank=True)
    error_message = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["purpose", "subject_id", "attempt"],
                condition=Q(direction="out"),
                name="one_text_per_attempt",
            ),
            models.UniqueConstraint(fields=["account", "sid"], name="one_text_per_sid"),
            models.CheckConstraint(
                condition=Q(direction="in") | Q(subject_id__isnull=False) & ~Q(purpose=""),
                name="our_texts_are_about_something",
            ),
        ]
        indexes = [
            models.Index(fields=["not_before"], condition=Q(status="created"), name="text_to_send"),
            models.Index(fields=["id"], condition=Q(status__in=["requesting", "unknown"]), name="text_in_doubt"),
            models.Index(
                fields=["submitted_at"],
                condition=Q(status__in=["submitted", "sent"], ended_at=None),
                name="text_unreported",
            ),
            models.Index(fields=["number", "requested_at"], name="text_pace_of_number"),
            models.Index(fields=["organization", "to_phone", "-id"], name="text_to_phone"),
            models.Index(fields=["organization", "from_phone", "-id"], name="text_from_phone"),
            models.Index(
                fields=["created_at"], condition=Q(direction="in", handled_at=None), name="text_to_deal_with"
            ),
            models.Index(
                F("account"),
                Coalesce("requested_at", "created_at"),
                condition=Q(
                    price__isnull=True,
                    sid__isnull=False,
                    status__in=["submitted", "sent", "delivered", "undelivered", "received"],
                ),
                name="text_without_price",
            ),
            models.Index(
                F("organization"),
                Coalesce("requested_at", "created_at"),
                condition=Q(price__isnull=False),
                name="text_with_price",
            ),
        ]

    def __str__(self) -> str:
        return gettext("Text {id} ({status})").format(id=self.pk, status=self.get_status_display())


class OptOut(OwnedModel):
    """A phone that opted out of the organization's texts; it can still be called.

    The opt-out came from a STOP text, from the provider's report, or from a person who entered it.
    """

    class Source(models.TextChoices):
        STOP = "stop", "Sent STOP"
        PROVIDER = "provider", "Reported by the provider"
        HAND = "hand", "Entered manually"

    phone = PhoneNumberField()
    source = models.CharField(max_length=16, choices=Source, default=Source.HAND, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["-id"]
        verbose_name = "opt-out"
        constraints = [models.UniqueConstraint(fields=["organization", "phone"], name="one_opt_out_per_phone")]

    def __str__(self) -> str:
        return str(self.phone)
