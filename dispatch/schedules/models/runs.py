"""Define Run and RunReport, and Executor and ShardLease: how executors divide the due runs.

Constraints enforce the guarantees: `one_next_run_per_schedule`, `one_run_per_occurrence` and
`one_run_per_concurrency_slot` against concurrent executors, `one_report_per_epoch` against duplicate reports.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from accounts.scoping import OwnedModel, OwnedModelWithoutIndex
from dispatch.core import clock
from dispatch.core.languages import gettext, mark
from dispatch.schedules.models.schedules import ConcurrencyLimit, Schedule


class RunStatus(models.TextChoices):
    """The status of a run. Succeeded, failed, skipped, missed and canceled runs have ended."""

    SCHEDULED = "scheduled", mark("Scheduled")
    IN_PROGRESS = "in_progress", mark("In progress")
    RUNNING = "running", mark("Running")
    RETRYING = "retrying", mark("Retrying")
    SUCCEEDED = "succeeded", mark("Succeeded")
    FAILED = "failed", mark("Failed")
    SKIPPED = "skipped", mark("Skipped")
    MISSED = "missed", mark("Missed")
    CANCELLED = "cancelled", mark("Canceled")


WAITING = (RunStatus.SCHEDULED, RunStatus.RETRYING)
TAKEN = (RunStatus.IN_PROGRESS, RunStatus.RUNNING)


class Run(OwnedModelWithoutIndex):
    """One occurrence of a schedule, or a manual run (without a number).

    `due_at` is when an executor claims it: its trigger time or the time of its retry; NULL while the schedule is
    paused. `epoch` increases each time the run is assigned to a worker. Messages and reports of an older epoch
    change nothing.
    """

    schedule = models.ForeignKey(Schedule, on_delete=models.PROTECT, related_name="runs", db_index=False)
    kind = models.CharField(max_length=32)
    shard = models.PositiveSmallIntegerField()
    number = models.PositiveIntegerField(null=True, help_text="Number of the occurrence. Empty for a manual run.")
    trigger_at = models.DateTimeField()
    payload = models.JSONField(null=True, help_text="The payload of this run. NULL: the schedule's.")
    stretch_count = models.IntegerField(
        "occurrences",
        default=1,
        db_default=1,
        help_text="Consecutive occurrences that this row stands for. Only missed and skipped ones share a row.",
    )
    stretch_last_at = models.DateTimeField(
        null=True, help_text="The last of these occurrences, if there are several."
    )
    due_at = models.DateTimeField(null=True)
    status = models.CharField(max_length=16, choices=RunStatus, default=RunStatus.SCHEDULED)
    attempt = models.PositiveSmallIntegerField(default=1)
    epoch = models.PositiveIntegerField(default=0)
    lapses = models.PositiveSmallIntegerField(default=0, help_text="Workers that died during this attempt.")
    waiting_for = models.CharField(
        max_length=16,
        blank=True,
        help_text=(
            '"earlier": an earlier run has to end first. "concurrency": as many runs with its key as its limit '
            'allows are in progress. Otherwise why its request cannot be sent now: "endpoint", "circuit", '
            '"pool paused", "rate", "slot", "lookup" or "token_pending".'
        ),
    )
    # Ended runs keep the id of a limit that was deleted. Their number is large, so there is no foreign key.
    concurrency_limit = models.ForeignKey(
        ConcurrencyLimit,
        null=True,
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_constraint=False,
        db_index=False,
        help_text="Of a manual run, the limit it was started with; of others, the one it last waited for.",
    )
    concurrency_slot = models.SmallIntegerField(
        null=True, help_text="The slot of the limit that it holds while it is in progress or running."
    )
    waits_since = models.DateTimeField(
        null=True, help_text="When a run that waits for a slot became due: its place in the queue of its key."
    )
    deferred_since = models.DateTimeField(
        null=True, help_text="Since when its attempt has been deferred without being made."
    )
    taken_at = models.DateTimeField(null=True, help_text="When its message was last sent.")
    started_at = models.DateTimeField(null=True)
    lease_until = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(
        null=True, help_text="When its cancellation was requested while a worker was executing it."
    )
    ended_at = models.DateTimeField(null=True)
    result = models.JSONField(null=True)
    error = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(default=clock.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["schedule"],
                condition=Q(status="scheduled", number__isnull=False),
                name="one_next_run_per_schedule",
            ),
            models.UniqueConstraint(fields=["schedule", "number"], name="one_run_per_occurrence"),
            models.UniqueConstraint(
                fields=["concurrency_limit", "concurrency_slot"],
                condition=Q(status__in=["in_progress", "running"], concurrency_slot__isnull=False),
                name="one_run_per_concurrency_slot",
            ),
            models.CheckConstraint(
                condition=Q(status="running", lease_until__isnull=False)
                | (~Q(status="running") & Q(lease_until__isnull=True)),
                name="only_a_running_run_has_a_lease",
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True, status__in=["scheduled", "in_progress", "running", "retrying"])
                | Q(ended_at__isnull=False, status__in=["succeeded", "failed", "skipped", "missed", "cancelled"]),
                name="an_ended_run_says_when",
            ),
        ]
        indexes = [
            models.Index(
                fields=["shard", "due_at"],
                condition=Q(status__in=["scheduled", "retrying"], due_at__isnull=False),
                name="run_due",
            ),
            models.Index(
                fields=["organization", "due_at", "shard"],
                condition=Q(status__in=["scheduled", "retrying"], due_at__isnull=False),
                name="run_in_turn",
            ),
            models.Index(fields=["taken_at"], condition=Q(status="in_progress"), name="run_in_progress"),
            models.Index(fields=["lease_until"], condition=Q(status="running"), name="run_leases"),
            models.Index(
                fields=["schedule"],
                condition=Q(status__in=["scheduled", "in_progress", "running", "retrying"]),
                name="run_open_of_schedule",
            ),
            models.Index(fields=["schedule"], condition=Q(waiting_for="earlier"), name="run_waits_for_earlier"),
            models.Index(
                fields=["concurrency_limit", "waits_since", "id"],
                condition=Q(waiting_for="concurrency", status="retrying"),
                name="run_waits_for_concurrency",
            ),
            models.Index(
                fields=["organization"], condition=Q(status="retrying") & ~Q(waiting_for=""), name="run_held"
            ),
            models.Index(F("organization"), F("id").desc(), name="run_of_organization"),
            models.Index(
                fields=["organization", "trigger_at"],
                condition=Q(status__in=["scheduled", "retrying"]),
                name="run_coming",
            ),
            models.Index(F("organization"), F("id").desc(), condition=Q(status="failed"), name="run_failed"),
            models.Index(fields=["organization"], condition=Q(payload__isnull=False), name="run_own_payload"),
            models.Index(
                fields=["organization", "ended_at"],
                condition=Q(ended_at__isnull=False),
                name="run_ended_of_organization",
            ),
        ]

    def __str__(self) -> str:
        return gettext("run {id}").format(id=self.pk)

    @property
    def state_label(self) -> str:
        """Return the status for people: a run that waits for a slot of its key is not between two tries."""
        return mark("Waiting") if self.waiting_for == "concurrency" else str(self.get_status_display())


class RunReport(OwnedModel):
    """A worker's report on one epoch of a run. It is stored before the status queue carries its id."""

    class Outcome(models.TextChoices):
        SUCCEEDED = "succeeded", mark("Succeeded")
        FAILED = "failed", mark("Failed")
        REFUSED = "refused", mark("Refused")
        CANCELLED = "cancelled", mark("Canceled")
        DEFERRED = "deferred", mark("Deferred")

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="reports", db_index=False)
    epoch = models.PositiveIntegerField()
    attempt = models.PositiveSmallIntegerField()
    outcome = models.CharField(max_length=16, choices=Outcome)
    result = models.JSONField(null=True)
    error = models.CharField(max_length=500, blank=True)
    again_in_s = models.FloatField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "epoch"], name="one_report_per_epoch")]

    def __str__(self) -> str:
        return f"{self.run_id} #{self.epoch}: {self.get_outcome_display()}"


class Executor(models.Model):
    """A live process that claims due runs. The shards are divided among the executors."""

    name = models.CharField(max_length=128, primary_key=True)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class ShardLease(models.Model):
    """Which executor holds a shard, and until when."""

    shard = models.PositiveSmallIntegerField(primary_key=True)
    holder = models.CharField(max_length=128, blank=True)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.shard}: {self.holder or 'nobody'}"
