"""Models of what is exchanged with technicians about a job: the texts of its thread, and notices of changes."""

from typing import ClassVar

from django.db import models
from django.db.models import Prefetch, Q

from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.languages import mark
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Text


class JobText(OwnedModel):
    """A text between a technician and the dispatchers about a job. Together they are the job's thread.

    An inbound text is in the threads of all open jobs of its technician.
    """

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="texts")
    text = models.ForeignKey(Text, on_delete=models.CASCADE, related_name="+")
    technician = models.ForeignKey(Technician, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=clock.now)
    handled_at = models.DateTimeField(
        null=True, help_text="When a dispatcher answered an inbound text, or marked it as needing no reply."
    )
    failed_at = models.DateTimeField(null=True, help_text="When an outbound text was reported as not delivered.")

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["job", "text"], name="one_place_in_a_thread")]
        indexes = [models.Index(fields=["job"], condition=Q(handled_at=None), name="job_text_unanswered")]

    def __str__(self) -> str:
        return f"{self.technician} about job {self.job_id}"


class TechnicianNotice(OwnedModel):
    """News about a job for a technician: by text, else by a call in which key 1 confirms, else by a dispatcher.

    In quiet hours that hold back the job, it is deferred. Its text is `text_id`; its calls are those of purpose
    `job_news` whose subject is this id.
    """

    class News(models.TextChoices):
        ASSIGNED = "assigned", mark("the job was assigned to them")
        REASSIGNED = "reassigned", mark("the job was reassigned")
        CANCELLED = "cancelled", mark("the job was canceled")
        CHANGED = "changed", mark("the job has changed")
        REOPENED = "reopened", mark("the job was reopened")

    class Status(models.TextChoices):
        SENDING = "sending", "Sending"
        REACHED = "reached", "Reached"
        UNREACHED = "unreached", "Not reached"
        SUPERSEDED = "superseded", "No longer needed"

    # The notices whose technician could not be notified, or only after quiet hours. A job that changes often has
    # many others.
    IS_UNINFORMED: ClassVar[Q] = Q(status=Status.UNREACHED) | Q(
        status=Status.SENDING, deferred_until__isnull=False
    )

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="notices", db_index=False)
    technician = models.ForeignKey(Technician, on_delete=models.PROTECT, related_name="+")
    news = models.CharField(max_length=16, choices=News)
    status = models.CharField(max_length=16, choices=Status, default=Status.SENDING)
    text_id = models.BigIntegerField(null=True, blank=True)
    reached_by = models.CharField(max_length=16, blank=True, help_text="text, call or dispatcher.")
    reason = models.CharField(max_length=160, blank=True, help_text="Why the last way failed.")
    created_at = models.DateTimeField(default=clock.now)
    begins_at = models.DateTimeField(
        null=True, help_text="When the work, or the trip to it, began or should begin, if known."
    )
    deferred_until = models.DateTimeField(
        null=True, help_text="The end of the quiet hours that the notice waits for."
    )
    alert_at = models.DateTimeField(help_text="When dispatchers are alerted, unless the technician was reached.")
    next_action_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=~Q(status="sending") | Q(next_action_at__isnull=False),
                name="open_notice_has_a_next_action",
            )
        ]
        indexes = [
            models.Index(
                fields=["next_action_at"], condition=Q(next_action_at__isnull=False), name="notice_to_advance"
            ),
            models.Index(fields=["text_id"], condition=Q(text_id__isnull=False), name="notice_of_text"),
            models.Index(fields=["job", "id"], name="notice_of_job"),
            models.Index(
                fields=["job"], condition=Q(status__in=("sending", "unreached")), name="open_notice_of_job"
            ),
        ]

    def __str__(self) -> str:
        return f"Notice to {self.technician}: {self.get_news_display()}"

    @property
    def is_deferred(self) -> bool:
        """Whether the notice waits for the end of quiet hours."""
        return self.status == self.Status.SENDING and self.deferred_until is not None


# `Job.objects.prefetch_related(UNINFORMED_NOTICES)` loads what `Job.has_uninformed_technician` asks for.
UNINFORMED_NOTICES = Prefetch(
    "notices", TechnicianNotice.objects.filter(TechnicianNotice.IS_UNINFORMED), to_attr="uninformed_notices"
)
