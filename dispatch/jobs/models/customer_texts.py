"""Models of the texts that keep customers informed: which ones an organization sends, and which were sent."""

from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.languages import gettext, mark
from dispatch.technicians.models import Technician


class CustomerTextKind(models.TextChoices):
    """The reasons for a text to the customer.

    A job has at most one row of each kind, except `assigned`: one for each technician.
    """

    RECEIVED = "received", mark("the request was received")
    ASSIGNED = "assigned", mark("a technician is coming")
    ON_THE_WAY = "on_the_way", mark("the technician is on the way")
    RUNNING_LATE = "running_late", mark("the technician is running late")
    COMPLETED = "completed", mark("the work is done")
    CANCELLED = "cancelled", mark("the request was canceled")


class CustomerTextPolicy(OwnedModel):
    """Which texts an organization sends to its customers. Without a row, none. Changes affect running jobs."""

    organization = models.OneToOneField(
        Organization, on_delete=models.PROTECT, related_name="customer_text_policy"
    )
    sends_received = models.BooleanField("request received", default=False)
    sends_assigned = models.BooleanField("who is coming", default=False)
    sends_on_the_way = models.BooleanField("on the way, with the arrival time", default=False)
    sends_running_late = models.BooleanField("running late, with the delay", default=False, db_default=False)
    sends_completed = models.BooleanField("work done", default=False)
    sends_cancelled = models.BooleanField("request canceled", default=False)
    sender_name = models.CharField(
        max_length=40, blank=True, help_text="Begins every text. Leave empty to use the organization's name."
    )
    contact_phone = PhoneNumberField(
        blank=True,
        default="",
        help_text="The number that customers call, shown on their page and in the text about a cancellation.",
    )

    class Meta:
        verbose_name = "customer texts"
        verbose_name_plural = "customer texts"

    def __str__(self) -> str:
        return gettext("Texts to customers of {organization}").format(organization=self.organization)

    def sends(self, kind: str) -> bool:
        """Return whether texts of this kind are sent."""
        return bool(getattr(self, f"sends_{kind}"))


class CustomerText(OwnedModel):
    """The text of one kind to the customer of one job, or the reason why there is none.

    `text_id` is the latest Text; an earlier one was withdrawn before it was sent, or is outdated. `attempt` counts
    them.
    `technician`: whom a text of the kind `assigned` names; otherwise empty.
    """

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="customer_texts")
    kind = models.CharField(max_length=16, choices=CustomerTextKind)
    technician = models.ForeignKey(
        Technician, on_delete=models.PROTECT, related_name="+", null=True, blank=True, help_text="Who is coming."
    )
    text_id = models.BigIntegerField(null=True, blank=True)
    attempt = models.PositiveSmallIntegerField(default=1)
    reason = models.CharField(max_length=160, blank=True, help_text="Why no text could be sent.")
    created_at = models.DateTimeField(default=clock.now)
    failed_at = models.DateTimeField(null=True, blank=True, help_text="When it was reported as not delivered.")

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["job", "kind"], condition=~Q(kind="assigned"), name="one_customer_text_per_kind"
            ),
            models.UniqueConstraint(
                fields=["job", "technician"], condition=Q(kind="assigned"), name="one_customer_text_per_technician"
            ),
            models.CheckConstraint(
                condition=Q(kind="assigned", technician__isnull=False)
                | (~Q(kind="assigned") & Q(technician__isnull=True)),
                name="customer_text_names_who_is_coming",
            ),
        ]
        indexes = [
            models.Index(fields=["text_id"], condition=Q(text_id__isnull=False), name="customer_text_of_text"),
        ]

    def __str__(self) -> str:
        return f"Text to the customer of job {self.job_id}: {self.get_kind_display()}"
