"""Models of submissions and of the jobs made from them, with their candidates and offers."""

import uuid
from datetime import timedelta
from typing import Any, ClassVar, Self

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import ApiKey
from accounts.scoping import OwnedModel, OwnedModelWithoutIndex, OwnedQuerySet
from accounts.speech_fields import own_language
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.languages import gettext, mark
from dispatch.jobs.models.policies import ServiceType
from dispatch.jobs.models.threads import JobText, TechnicianNotice
from dispatch.jobs.rules import duplicates
from dispatch.jobs.rules.arrival_window import ArrivalWindow
from dispatch.technicians.models import Technician

# A next action is overdue after this time: the auditor should have advanced it (invariant 3).
OVERDUE = timedelta(seconds=30)


class Priority(models.IntegerChoices):
    """The urgency of a job. Lower numbers are more urgent."""

    EMERGENCY = 1, mark("Emergency")
    URGENT = 2, mark("Urgent")
    NORMAL = 3, mark("Normal")


class WithWindow(models.Model):
    """A row with an arrival window and an expected duration, both optional."""

    window_start = models.DateTimeField("arrival from", null=True, blank=True)
    window_end = models.DateTimeField("arrival until", null=True, blank=True)
    expected_minutes = models.IntegerField(null=True, blank=True, help_text="How long the work should take.")

    class Meta:
        abstract = True

    @property
    def arrival_window(self) -> ArrivalWindow | None:
        """The time between which the technician should arrive, if one was promised."""
        if self.window_start is None or self.window_end is None:
            return None
        return ArrivalWindow(self.window_start, self.window_end)


class Submission(WithWindow, OwnedModelWithoutIndex):
    """The form as received. Once answered 2xx, it becomes exactly one job, even if any process dies."""

    class Status(models.TextChoices):
        RECEIVED = "received", "Received"
        PROCESSED = "processed", "Processed"

    status = models.CharField(max_length=16, choices=Status, default=Status.RECEIVED)
    form = models.JSONField(help_text="The form as received.")
    customer_name = models.CharField(max_length=120)
    customer_phone = PhoneNumberField()
    service_type = models.ForeignKey(ServiceType, on_delete=models.PROTECT, related_name="+")
    priority = models.PositiveSmallIntegerField(choices=Priority, default=Priority.NORMAL)
    address = models.CharField(max_length=300, blank=True)
    lat = models.FloatField(null=True)
    lng = models.FloatField(null=True)
    notes = models.TextField(max_length=4000, blank=True)
    extra = models.JSONField(default=dict, blank=True)
    language = own_language("The language of the customer's page and texts. Empty: the organization's.")
    # No constraint in the database: a locked technician must not hold back the customer's form.
    preferred_technician = models.ForeignKey(
        Technician,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    idempotency_key = models.CharField(max_length=255, blank=True)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.SET_NULL, related_name="+")

    starts = models.PositiveSmallIntegerField(default=0, help_text="Number of attempts to start a job.")
    next_start_at = models.DateTimeField(
        null=True, help_text="If no worker has started it by then, the auditor does."
    )
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
            models.Index(
                fields=["organization", "next_start_at"], condition=Q(status="received"), name="submission_in_turn"
            ),
            models.Index(fields=["organization", "-id"], name="submission_newest"),
        ]

    def __str__(self) -> str:
        return gettext("Submission {id}").format(id=self.pk)

    @property
    def customer_language(self) -> str:
        """The language of the customer's texts: their own, or the organization's."""
        return self.language or self.organization.language


class JobQuerySet(OwnedQuerySet):
    """Queries on jobs."""

    def needing_attention(self) -> Self:
        """Filter jobs that need a person.

        They are pending, paused, overdue, not started or not completed in time, have an unanswered text, or their
        technician has left.
        """
        overdue = Q(status="dispatching", next_action_at__lt=clock.now() - OVERDUE)
        paused = Q(status="dispatching", paused_at__isnull=False)
        has_left = Q(status="assigned", technician__is_active=False)
        late = Q(status="assigned", attention_at__lte=clock.now())
        unanswered = JobText.objects.filter(handled_at=None).values("job_id")
        texted = Q(status__in=("dispatching", "assigned"), pk__in=unanswered)
        return self.filter(Q(status="pending") | paused | overdue | has_left | late | texted)


class Job(WithWindow, OwnedModelWithoutIndex):
    """The service job made from a submission.

    `next_action_at` and `step_token` are the truth behind every timer. `version` is incremented by every visible
    change; an action names the version on which the person based the decision.
    """

    class Status(models.TextChoices):
        DISPATCHING = "dispatching", mark("Dispatching")
        ASSIGNED = "assigned", mark("Assigned")
        PENDING = "pending", mark("Pending")
        COMPLETED = "completed", mark("Completed")
        CANCELLED = "cancelled", mark("Canceled")

    class WaitingFor(models.TextChoices):
        NOTHING = "", "—"
        START = "start", "Next step"
        ANSWER = "answer", "An answer"
        LINE = "line", "A line"
        TECHNICIAN = "technician", "A technician with another offer"
        PROVIDER = "provider", "The phone provider, which is not responding"
        ACCOUNT = "account", "The phone provider, which refuses our account"
        PERSON = "person", "A dispatcher"
        QUIET_HOURS = "quiet_hours", "The end of quiet hours"
        SPEND_CAP = "spend_cap", "The daily spending cap, which is reached"
        WINDOW = "window", "Its arrival window"

    class PendingReason(models.TextChoices):
        NONE = "", "—"
        EXHAUSTED = "exhausted", mark("Nobody accepted")
        NOBODY_NEAR = "nobody_near", mark("No qualified technician nearby")
        NO_POSITION = "no_position", mark("Address not found")
        MOVED_OFTEN = "moved_often", mark("Address changed repeatedly")
        NO_LINE = "no_line", mark("No line became free")
        PROVIDER_DOWN = "provider_down", mark("The phone provider is not responding")
        ACCOUNT_REFUSED = "account_refused", mark("The phone provider refuses our account")
        SPEND_CAP = "spend_cap", mark("The daily spending cap is reached")
        FAILED = "processing_failed", mark("Processing failed")

    class DuplicateState(models.TextChoices):
        NONE = "", "—"
        POSSIBLE = "possible", "Possible duplicate"
        MERGED = "merged", "Merged"
        DISMISSED = "dismissed", "Not a duplicate"

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
    preferred_technician = models.ForeignKey(
        Technician,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,
        db_constraint=False,
        help_text="The customer's choice: called first if eligible.",
    )

    policy = models.JSONField(default=dict, help_text="Parameters of the cascade, frozen when it started.")
    out_of_reach = models.JSONField(default=dict, help_text="Technicians who are not candidates, by reason.")
    round = models.PositiveSmallIntegerField(default=1)
    first_round = models.PositiveSmallIntegerField(default=1, help_text="Of the current dispatch.")
    waiting_for = models.CharField(max_length=16, choices=WaitingFor, default="", blank=True)
    waiting_since = models.DateTimeField(null=True)
    line_pool = models.ForeignKey(
        DispatchPool,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,
        help_text="Pool that the job waits for.",
    )
    line_wait_until = models.DateTimeField(null=True, help_text="Deadline for getting a line.")
    technician_wait_until = models.DateTimeField(
        null=True, help_text="Set after all other candidates of this round were tried."
    )
    next_action_at = models.DateTimeField(null=True)
    step_token = models.UUIDField(default=uuid.uuid4)
    fill_at = models.DateTimeField(null=True, help_text="When to call another technician beside the current ones.")
    paused_at = models.DateTimeField(null=True)
    is_trial = models.BooleanField(
        default=False, db_default=False, help_text="Resumed to try whether the phone provider works again."
    )
    attention_at = models.DateTimeField(
        null=True,
        help_text="When a paused job, or an assigned one that was not started or completed, needs attention.",
    )
    reminded_at = models.DateTimeField(null=True, help_text="When dispatchers were reminded of it.")
    on_the_way_at = models.DateTimeField(
        null=True, help_text="When the technician was first reported to be on the way."
    )
    eta_at = models.DateTimeField(null=True, help_text="When the technician should arrive.")
    started_at = models.DateTimeField(null=True, help_text="When the technician started the work.")
    late_minutes = models.SmallIntegerField(
        null=True,
        validators=[MinValueValidator(0)],
        help_text="By how many minutes the technician is late, as they last reported.",
    )
    late_reported_at = models.DateTimeField(null=True, help_text="When they reported it.")
    calls_at_any_hour = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether a dispatcher decided to call technicians despite quiet hours.",
    )
    failed_steps = models.PositiveSmallIntegerField(
        default=0, help_text="Consecutive failures; 3 make it pending."
    )
    version = models.PositiveIntegerField(default=1)

    not_again = ArrayField(
        models.BigIntegerField(), default=list, blank=True, help_text="Technicians who said they can't make it."
    )
    technician = models.ForeignKey(
        Technician, null=True, on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    duplicate_of = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="duplicates", db_index=False
    )
    duplicate_state = models.CharField(
        max_length=16, choices=DuplicateState, default="", db_default="", blank=True
    )
    address_key = models.CharField(
        max_length=duplicates.MAX_KEY_LENGTH, default="", db_default="", blank=True,
        help_text="Equal for spellings of one address.",
    )  # fmt: skip
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
            models.Index(
                fields=["pending_reason", "organization"], condition=Q(status="pending"), name="job_pending_for"
            ),
            models.Index(fields=["next_action_at"], condition=Q(status="dispatching"), name="job_to_move_on"),
            models.Index(
                fields=["organization", "next_action_at"], condition=Q(status="dispatching"), name="job_in_turn"
            ),
            models.Index(fields=["id"], condition=Q(is_trial=True), name="job_on_trial"),
            models.Index(fields=["technician"], condition=Q(technician__isnull=False), name="job_of_technician"),
            models.Index(
                fields=["duplicate_of"], condition=Q(duplicate_of__isnull=False), name="job_with_duplicates"
            ),
            models.Index(
                fields=["line_pool", "next_action_at"],
                condition=Q(line_pool__isnull=False),
                name="job_polled_for_pool",
            ),
            models.Index(
                fields=["attention_at"],
                condition=Q(attention_at__isnull=False, reminded_at=None),
                name="job_to_remind_of",
            ),
            models.Index(fields=["organization", "status", "-id"], name="job_by_status"),
            models.Index(fields=["organization", "created_at"], name="job_by_day"),
            models.Index(
                fields=["organization", "-ended_at"], condition=Q(ended_at__isnull=False), name="job_ended_lately"
            ),
            models.Index(
                fields=["organization", "customer_phone"], condition=Q(ended_at=None), name="job_open_by_phone"
            ),
            models.Index(fields=["organization", "customer_phone", "-id"], name="job_by_phone"),
            models.Index(
                fields=["technician"],
                condition=Q(status="assigned", window_start__isnull=False),
                name="job_planned_for",
            ),
            models.Index(
                fields=["organization", "address_key"],
                condition=Q(ended_at=None) & ~Q(address_key=""),
                name="job_open_by_address",
            ),
        ]

    def __str__(self) -> str:
        return gettext("Job {id}").format(id=self.pk)

    @property
    def late_words(self) -> str:
        """The technician's report "Running late 20 min" while it matters, or an empty string."""
        if self.status != self.Status.ASSIGNED or self.started_at is not None or self.late_minutes is None:
            return ""
        return gettext("Running late {minutes} min").format(minutes=self.late_minutes)

    @property
    def duplicate_words(self) -> str:
        """The flag in words, for badges."""
        return gettext("Possible duplicate of #{job}").format(job=self.duplicate_of_id)

    @property
    def arrival_words(self) -> str:
        """The arrival window in the active language, such as "between 2:00 PM and 4:00 PM"; empty without one."""
        window = self.arrival_window
        return window.words(self.organization.time_zone, clock.now()) if window else ""

    @property
    def window_words(self) -> str:
        """The arrival window as the board shows it; empty without one."""
        window = self.arrival_window
        return window.short_words(self.organization.time_zone, clock.now()) if window else ""

    @property
    def is_possible_duplicate(self) -> bool:
        """Whether the job is flagged as a duplicate of a job that is still open."""
        if self.duplicate_state != self.DuplicateState.POSSIBLE or self.duplicate_of is None:
            return False
        return self.ended_at is None and self.duplicate_of.ended_at is None

    @property
    def has_uninformed_technician(self) -> bool:
        """Whether a technician could not be notified of a change of this job, or only after quiet hours."""
        loaded: list[TechnicianNotice] | None = getattr(self, "uninformed_notices", None)
        if loaded is None:
            return self.notices.filter(TechnicianNotice.IS_UNINFORMED).exists()
        return bool(loaded)


class Candidate(OwnedModel):
    """A technician's rank for one job, with the reason for being eligible or not.

    Only a transaction that has created or locked the job writes its candidates, so the database need not check for
    each that the job exists, and its organization. Nothing deletes technicians, who are deactivated instead.
    Candidates are read by their job only.
    """

    class Verdict(models.TextChoices):
        IN = "in", mark("Eligible")
        DEFERRED = "deferred", mark("Has another offer")
        OUT = "out", mark("Not eligible")

    organization = models.ForeignKey(
        "accounts.Organization", on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="candidates", db_index=False, db_constraint=False
    )
    technician = models.ForeignKey(
        Technician, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    rank = models.PositiveSmallIntegerField(
        help_text="1 gets the first offer; ineligible come last, except the customer's preferred technician."
    )
    verdict = models.CharField(max_length=16, choices=Verdict)
    reason = models.CharField(max_length=160)
    distance_m = models.PositiveIntegerField()
    travel_s = models.IntegerField(null=True, help_text="Drive by road, in seconds; empty: unknown.")
    score = models.FloatField()
    skipped_round = models.PositiveSmallIntegerField(
        default=0, help_text="The round that skipped the technician as ineligible."
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
    """One technician's chance at one job. Its call is the Call of purpose `offer` whose subject is this id."""

    class Status(models.TextChoices):
        PENDING = "pending", mark("Pending")
        ACCEPTED = "accepted", mark("Accepted")
        DECLINED = "declined", mark("Declined")
        TIMED_OUT = "timed_out", mark("Timed out")
        FAILED = "failed", mark("Failed")
        RESCINDED = "rescinded", mark("Withdrawn")

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="offers", db_index=False)
    technician = models.ForeignKey(Technician, on_delete=models.PROTECT, related_name="offers")
    attempt = models.PositiveSmallIntegerField(help_text="1 for the job's first offer.")
    slot = models.SmallIntegerField(
        default=0,
        db_default=0,
        validators=[MinValueValidator(0)],
        help_text="Emergencies can have several offers at once: one per slot.",
    )
    round = models.PositiveSmallIntegerField(default=1)
    status = models.CharField(max_length=16, choices=Status, default=Status.PENDING)
    outcome = models.CharField(max_length=32, blank=True, help_text="How it ended (`rules.Outcome`).")
    reason = models.CharField(max_length=160, blank=True)
    distance_m = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(default=clock.now)
    ringing_since = models.DateTimeField(null=True, help_text="When the provider accepted the call.")
    answered_at = models.DateTimeField(null=True)
    missed_at = models.DateTimeField(
        null=True, help_text="When its call was missed and the offer stayed open for other channels."
    )
    expires_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)
    holds_until = models.DateTimeField(
        null=True, help_text="When the slot's next technician may be called, if later."
    )

    class Meta:
        ordering = ["attempt"]
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt"], name="one_offer_per_attempt"),
            models.UniqueConstraint(
                fields=["job", "slot"], condition=Q(status="pending"), name="one_pending_offer_per_slot"
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
        """Whether the offer is live and its deadline is running, because the provider has accepted its call."""
        return self.status == self.Status.PENDING and self.ringing_since is not None

    def __str__(self) -> str:
        return f"Offer {self.attempt} of job {self.job_id} to {self.technician}"
