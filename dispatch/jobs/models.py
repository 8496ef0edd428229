"""ServiceType, DispatchPolicy, Submission, Job, Candidate, Offer."""

import re
import uuid
from datetime import timedelta
from typing import Any, ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import ApiKey, Organization
from accounts.scoping import OwnedModel, OwnedQuerySet
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.technicians.models import Skill, Technician

# Nothing should be due for longer: the auditor moves it on (invariant 3).
OVERDUE = timedelta(seconds=30)


class Priority(models.IntegerChoices):
    EMERGENCY = 1, "Emergency"
    URGENT = 2, "Urgent"
    NORMAL = 3, "Normal"


class ServiceType(OwnedModel):
    """What a customer can ask for, and the skills it takes."""

    code = models.SlugField(max_length=64)
    name = models.CharField(max_length=80)
    spoken_name = models.CharField(
        max_length=120, blank=True, help_text="As read out on the phone; empty: the name."
    )
    required_skills = models.ManyToManyField(Skill, blank=True, related_name="+")
    is_active = models.BooleanField(default=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["organization", "code"], name="one_service_type_per_code")]

    def __str__(self) -> str:
        return self.name


def _seconds(label: str, low: int, high: int) -> models.PositiveIntegerField:
    return models.PositiveIntegerField(
        f"{label} (s)", null=True, blank=True, validators=[MinValueValidator(low), MaxValueValidator(high)]
    )


class DispatchPolicy(OwnedModel):
    """How jobs are offered: for one service type, or (service type empty) for the organization.

    An empty field falls back: service type → organization → settings. Frozen into a job when it starts
    (`rules.CascadePolicy`)."""

    service_type = models.OneToOneField(
        ServiceType, null=True, blank=True, on_delete=models.CASCADE, related_name="policy"
    )
    call_pool = models.ForeignKey(
        DispatchPool,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        limit_choices_to={"kind": "calls"},
        help_text="Whose numbers call; empty: the default call pool. Read as it is now, not frozen.",
    )
    answer_timeout_s = _seconds("delay between attempts", 10, 3600)
    ring_timeout_s = _seconds("ring time", 5, 600)
    answered_extension_s = _seconds("time to decide after answering", 10, 600)
    line_wait_s = _seconds("longest wait for a line", 5, 7200)
    technician_wait_s = _seconds("longest wait for technicians on another offer", 0, 7200)
    radius_m = models.PositiveIntegerField(
        "radius (m)", null=True, blank=True, validators=[MinValueValidator(100), MaxValueValidator(500_000)]
    )
    max_candidates = models.PositiveSmallIntegerField(
        "most candidates", null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(50)]
    )
    rounds = models.PositiveSmallIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(5)]
    )
    weight_distance = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    weight_workload = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    weight_rest = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    auto_pause_misses = models.PositiveSmallIntegerField(
        "misses in a row before a technician is paused",
        null=True,
        blank=True,
        validators=[MaxValueValidator(100)],
        help_text="Unanswered calls; 0: never. Read as it is now, not frozen.",
    )
    offer_by_text = models.BooleanField("offer by SMS too", null=True, blank=True)
    missed_call_grace_s = models.PositiveIntegerField(
        "time to answer after a missed call (s)",
        null=True,
        blank=True,
        validators=[MaxValueValidator(3600)],
        help_text="By text, link or call-back. 0: the next technician is called at once.",
    )
    address_by_text = models.BooleanField("send the address by SMS after accepting", null=True, blank=True)
    advance_on_decline = models.BooleanField("move on at once when declined", null=True, blank=True)
    advance_on_busy = models.BooleanField("move on at once when busy", null=True, blank=True)
    advance_on_failed = models.BooleanField("move on at once when the call failed", null=True, blank=True)
    advance_on_no_answer = models.BooleanField("move on at once when not answered", null=True, blank=True)
    advance_on_hangup = models.BooleanField("move on at once when hung up without a key", null=True, blank=True)

    class Meta:
        verbose_name_plural = "dispatch policies"
        constraints = [
            models.UniqueConstraint(
                fields=["organization"], condition=Q(service_type=None), name="one_policy_per_organization"
            )
        ]

    def __str__(self) -> str:
        return f"Policy of {self.service_type or 'the organization'}"

    def clean(self) -> None:
        """Refuses what cannot work together, also with the values that empty fields fall back to."""
        from dispatch.jobs import policies  # it reads these tables

        if problems := policies.problems_of(self):
            raise ValidationError(problems)


class Submission(OwnedModel):
    """The form as it was received. Answered with 2xx, it becomes exactly one job, whatever dies in between."""

    class Status(models.TextChoices):
        RECEIVED = "received", "Received"
        PROCESSED = "processed", "Processed"

    status = models.CharField(max_length=16, choices=Status, default=Status.RECEIVED)
    form = models.JSONField(help_text="As it came.")
    customer_name = models.CharField(max_length=120)
    customer_phone = PhoneNumberField()
    service_type = models.ForeignKey(ServiceType, on_delete=models.PROTECT, related_name="+")
    priority = models.PositiveSmallIntegerField(choices=Priority, default=Priority.NORMAL)
    address = models.CharField(max_length=300, blank=True)
    lat = models.FloatField(null=True)
    lng = models.FloatField(null=True)
    notes = models.TextField(max_length=4000, blank=True)
    extra = models.JSONField(default=dict, blank=True)
    idempotency_key = models.CharField(max_length=255, blank=True)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.SET_NULL, related_name="+")

    starts = models.PositiveSmallIntegerField(default=0, help_text="How often a start was begun.")
    next_start_at = models.DateTimeField(null=True, help_text="When the auditor starts it, if nobody has.")
    last_error = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(default=clock.now)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(status="processed") | Q(next_start_at__isnull=False),
                name="received_submission_has_a_start",
            ),
            models.CheckConstraint(
                condition=Q(lat__isnull=True, lng__isnull=True) | Q(lat__isnull=False, lng__isnull=False),
                name="submission_position_is_whole",
            ),
        ]
        indexes = [
            models.Index(fields=["next_start_at"], condition=Q(status="received"), name="submission_to_start"),
            models.Index(fields=["organization", "-id"], name="submission_newest"),
        ]

    def __str__(self) -> str:
        return f"Submission {self.pk}"


class JobQuerySet(OwnedQuerySet):
    """Jobs of one organization."""

    def needing_attention(self) -> Self:
        """Those that wait for a dispatcher, or whose next action is overdue."""
        overdue = Q(status="dispatching", next_action_at__lt=clock.now() - OVERDUE)
        return self.filter(Q(status="pending") | Q(status="dispatching", paused_at__isnull=False) | overdue)


class Job(OwnedModel):
    """The service job made from a submission.

    `next_action_at` and `step_token` are the truth behind every timer; `version` grows with every change and is
    what an action by hand was decided on."""

    class Status(models.TextChoices):
        DISPATCHING = "dispatching", "Dispatching"
        ASSIGNED = "assigned", "Assigned"
        PENDING = "pending", "Pending"
        COMPLETED = "completed", "Completed"
        CANCELLED = "cancelled", "Cancelled"

    class WaitingFor(models.TextChoices):
        NOTHING = "", "—"
        START = "start", "Next step"
        ANSWER = "answer", "An answer"
        LINE = "line", "A line"
        TECHNICIAN = "technician", "A technician on another offer"
        PERSON = "person", "A dispatcher"

    class PendingReason(models.TextChoices):
        NONE = "", "—"
        EXHAUSTED = "exhausted", "Nobody accepted"
        NOBODY_NEAR = "nobody_near", "No fit technician near"
        NO_POSITION = "no_position", "The place could not be found"
        NO_LINE = "no_line", "No line became free"
        FAILED = "processing_failed", "Processing failed"

    objects: ClassVar[Any] = JobQuerySet.as_manager()

    submission = models.OneToOneField(Submission, on_delete=models.PROTECT, related_name="job")
    service_type = models.ForeignKey(ServiceType, on_delete=models.PROTECT, related_name="+")
    status = models.CharField(max_length=16, choices=Status, default=Status.DISPATCHING)
    pending_reason = models.CharField(max_length=32, choices=PendingReason, default="", blank=True)
    priority = models.PositiveSmallIntegerField(choices=Priority, default=Priority.NORMAL)
    customer_name = models.CharField(max_length=120)
    customer_phone = PhoneNumberField()
    address = models.CharField(max_length=300, blank=True)
    lat = models.FloatField(null=True)
    lng = models.FloatField(null=True)
    position_source = models.CharField(max_length=32, blank=True, help_text="form, zip, or the geocoder's name.")
    notes = models.TextField(max_length=4000, blank=True)
    extra = models.JSONField(default=dict, blank=True)

    policy = models.JSONField(default=dict, help_text="The cascade's parameters, frozen when it started.")
    out_of_reach = models.JSONField(
        default=dict, help_text="Technicians beyond the candidates, counted by reason."
    )
    round = models.PositiveSmallIntegerField(default=1)
    first_round = models.PositiveSmallIntegerField(default=1, help_text="Of the present dispatch.")
    waiting_for = models.CharField(max_length=16, choices=WaitingFor, default="", blank=True)
    waiting_since = models.DateTimeField(null=True)
    line_pool = models.ForeignKey(
        DispatchPool, null=True, on_delete=models.SET_NULL, related_name="+", help_text="Whose line it waits for."
    )
    line_wait_until = models.DateTimeField(null=True, help_text="Set while no line was free since the last call.")
    technician_wait_until = models.DateTimeField(
        null=True, help_text="Set once all others were tried, in the present round."
    )
    next_action_at = models.DateTimeField(null=True)
    step_token = models.UUIDField(default=uuid.uuid4)
    paused_at = models.DateTimeField(null=True)
    failed_steps = models.PositiveSmallIntegerField(default=0, help_text="In a row; three make it pending.")
    version = models.PositiveIntegerField(default=1)

    not_again = ArrayField(
        models.BigIntegerField(), default=list, blank=True, help_text="Technicians who said they cannot make it."
    )
    technician = models.ForeignKey(Technician, null=True, on_delete=models.PROTECT, related_name="jobs")
    created_at = models.DateTimeField(default=clock.now)
    assigned_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=~Q(status="dispatching") | Q(next_action_at__isnull=False) | Q(paused_at__isnull=False),
                name="dispatching_job_has_a_next_action",
            ),
            models.CheckConstraint(
                condition=Q(paused_at__isnull=True) | Q(next_action_at__isnull=True),
                name="paused_job_has_no_next_action",
            ),
            models.CheckConstraint(
                condition=~Q(status="assigned") | Q(technician__isnull=False), name="assigned_job_has_a_technician"
            ),
            models.CheckConstraint(
                condition=~Q(status="pending") | ~Q(pending_reason=""), name="pending_job_says_why"
            ),
        ]
        indexes = [
            models.Index(fields=["next_action_at"], condition=Q(status="dispatching"), name="job_to_move_on"),
            models.Index(fields=["organization", "status", "-id"], name="job_by_status"),
            models.Index(fields=["organization", "created_at"], name="job_by_day"),
            models.Index(
                fields=["organization", "-ended_at"], condition=Q(ended_at__isnull=False), name="job_ended_lately"
            ),
        ]

    def __str__(self) -> str:
        return f"Job {self.pk}"


class Candidate(OwnedModel):
    """A technician's place in one job's ranking, with the reason they are in or out."""

    class Verdict(models.TextChoices):
        IN = "in", "In"
        DEFERRED = "deferred", "On another offer"
        OUT = "out", "Out"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="candidates")
    technician = models.ForeignKey(Technician, on_delete=models.PROTECT, related_name="+")
    rank = models.PositiveSmallIntegerField(help_text="1 is offered first; those who are out come last.")
    verdict = models.CharField(max_length=16, choices=Verdict)
    reason = models.CharField(max_length=160)
    distance_m = models.PositiveIntegerField()
    score = models.FloatField()
    skipped_round = models.PositiveSmallIntegerField(
        default=0, help_text="The round in which they turned out to be unfit."
    )

    class Meta:
        ordering = ["rank"]
        constraints = [
            models.UniqueConstraint(fields=["job", "technician"], name="one_candidacy_per_job"),
            models.UniqueConstraint(fields=["job", "rank"], name="one_candidate_per_rank"),
        ]

    def __str__(self) -> str:
        return f"{self.rank}. {self.technician}"


class Offer(OwnedModel):
    """One technician's chance at one job. Its call is the Call of purpose `offer` with this id as its subject."""

    class Status(models.TextChoices):
        PENDING = "pending", "Pending"
        ACCEPTED = "accepted", "Accepted"
        DECLINED = "declined", "Declined"
        TIMED_OUT = "timed_out", "Timed out"
        FAILED = "failed", "Failed"
        RESCINDED = "rescinded", "Rescinded"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="offers")
    technician = models.ForeignKey(Technician, on_delete=models.PROTECT, related_name="offers")
    attempt = models.PositiveSmallIntegerField(help_text="1 for the job's first offer.")
    round = models.PositiveSmallIntegerField(default=1)
    status = models.CharField(max_length=16, choices=Status, default=Status.PENDING)
    outcome = models.CharField(max_length=32, blank=True, help_text="How it ended (`rules.Outcome`).")
    reason = models.CharField(max_length=160, blank=True)
    distance_m = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(default=clock.now)
    ringing_since = models.DateTimeField(null=True, help_text="When the provider took the call: the clock starts.")
    answered_at = models.DateTimeField(null=True)
    missed_at = models.DateTimeField(
        null=True, help_text="When its call ended without an answer, and it stayed open for one in another way."
    )
    expires_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["attempt"]
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt"], name="one_offer_per_attempt"),
            models.UniqueConstraint(
                fields=["job"], condition=Q(status="pending"), name="one_pending_offer_per_job"
            ),
            models.UniqueConstraint(
                fields=["job"], condition=Q(status="accepted"), name="one_accepted_offer_per_job"
            ),
            models.UniqueConstraint(
                fields=["technician"], condition=Q(status="pending"), name="one_pending_offer_per_technician"
            ),
        ]

    @property
    def is_ringing(self) -> bool:
        """Whether it is live and the provider has taken its call, so that its time runs."""
        return self.status == self.Status.PENDING and self.ringing_since is not None

    def __str__(self) -> str:
        return f"Offer {self.attempt} of job {self.job_id} to {self.technician}"


class PublicForm(OwnedModel):
    """An organization's form for its customers, at /f/<its slug>/. Without a row, or switched off, there is
    none."""

    organization = models.OneToOneField(Organization, on_delete=models.PROTECT, related_name="public_form")
    is_on = models.BooleanField("switched on", default=True)
    heading = models.CharField(max_length=120, blank=True, help_text="Empty: “Request a technician”.")
    intro = models.TextField(max_length=1000, blank=True, help_text="Above the form.")
    thanks = models.TextField(max_length=1000, blank=True, help_text="After it was sent.")
    asks_urgency = models.BooleanField("asks how urgent it is", default=True)
    per_hour = models.PositiveIntegerField(
        "most requests per hour", default=60, validators=[MinValueValidator(1), MaxValueValidator(10_000)]
    )
    embed_origins = models.TextField(
        "sites that may embed it",
        max_length=2000,
        blank=True,
        help_text="One per line, such as https://www.example.com. Empty: any site.",
    )

    def __str__(self) -> str:
        return f"Form of {self.organization}"

    def clean(self) -> None:
        """Raises ValidationError for what is no origin."""
        wrong = [line for line in self._origins() if not _ORIGIN.fullmatch(line)]
        if wrong:
            raise ValidationError({"embed_origins": f"{wrong[0]!r} is no site such as https://www.example.com."})

    def frame_ancestors(self) -> str:
        """The sites that may show it in a frame, as a Content-Security-Policy says it."""
        return " ".join(self._origins()) or "*"

    def _origins(self) -> list[str]:
        return [line.strip() for line in self.embed_origins.splitlines() if line.strip()]


_ORIGIN = re.compile(r"https?://(\*\.)?[A-Za-z0-9.-]+(:\d{1,5})?")
