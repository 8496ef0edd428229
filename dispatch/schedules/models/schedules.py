"""Define Schedule and what it refers to: ConcurrencyLimit and ExclusionCalendar; ScheduleFeed and ZoneRules."""

from __future__ import annotations

from datetime import datetime

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from accounts.models import validate_time_zone
from accounts.scoping import OwnedModel, OwnedModelWithoutIndex
from dispatch.core import clock
from dispatch.core.crypto import EncryptedJSONField
from dispatch.core.languages import mark
from dispatch.schedules import exclusion_cache
from dispatch.schedules.rules import jitter, recurrence
from dispatch.schedules.rules.exclusions import Exclusions

# Every schedule and run stores its shard, so this number cannot change. At most 64 executors can share the work.
SHARDS = 64
# Each slot of a limit is a number, and free ones are searched for.
MAX_CONCURRENT_RUNS = 1000


class Unit(models.TextChoices):
    """The unit of an interval."""

    SECOND = "second", mark("seconds")
    MINUTE = "minute", mark("minutes")
    HOUR = "hour", mark("hours")
    DAY = "day", mark("days")
    WEEK = "week", mark("weeks")
    MONTH = "month", mark("months")
    YEAR = "year", mark("years")


class Missed(models.TextChoices):
    """The policy for missed occurrences; see `rules.due`."""

    ALL = "all", mark("Run all missed ones")
    LAST = "last", mark("Run only the last one")
    SKIP = "skip", mark("Skip all missed ones")


class Overlap(models.TextChoices):
    """What happens to a due run while an earlier run of the same schedule has not ended; see `rules.due`."""

    ALLOW = "allow", mark("Run in parallel")
    SKIP = "skip", mark("Skip while an earlier run is in progress")
    BUFFER_ONE = "buffer_one", mark("Run once more after the earlier run")
    CANCEL_OTHER = "cancel_other", mark("Cancel the earlier run")


class ConcurrencyLimit(OwnedModel):
    """The number of runs with one key that may be in a worker or its queue at once; see `services.admission`."""

    key = models.CharField(max_length=80, help_text="The name by which schedules and runs refer to it.")
    max_runs = models.PositiveIntegerField(
        "runs at once", validators=[MinValueValidator(1), MaxValueValidator(MAX_CONCURRENT_RUNS)]
    )
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "key"], name="one_concurrency_limit_per_key"),
            models.CheckConstraint(
                condition=Q(max_runs__gte=1, max_runs__lte=MAX_CONCURRENT_RUNS),
                name="concurrency_limit_is_in_range",
            ),
        ]

    def __str__(self) -> str:
        return self.key


class Schedule(OwnedModelWithoutIndex):
    """What to do, and when. The payload has the format of the kind's own API."""

    class Status(models.TextChoices):
        ACTIVE = "active", mark("Active")
        PAUSED = "paused", mark("Paused")
        ENDED = "ended", mark("Ended")
        DELETED = "deleted", mark("Deleted")

    OVER = (Status.ENDED, Status.DELETED)
    _read_exclusions: tuple[tuple[tuple[int, ...], str], Exclusions] | None = None

    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=32)
    payload = models.JSONField(default=dict)
    headers = EncryptedJSONField(default=dict, blank=True, help_text="Headers for URL calls. Stored encrypted.")
    status = models.CharField(max_length=16, choices=Status, default=Status.ACTIVE)

    time_zone = models.CharField(max_length=64, validators=[validate_time_zone])
    trigger_at = models.DateTimeField(null=True, blank=True, help_text="Run once at this time.")
    every = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    unit = models.CharField(max_length=8, choices=Unit, blank=True)
    cron = models.CharField(max_length=120, blank=True)
    rrule = models.CharField(
        "recurrence rule",
        max_length=500,
        blank=True,
        default="",
        db_default="",
        help_text="A recurrence rule (RFC 5545) without COUNT and UNTIL, such as FREQ=MONTHLY;BYDAY=-1FR.",
    )
    starts_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    max_occurrences = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    anchor = models.DateTimeField(help_text="Start of the interval count.", editable=False)

    retry_schedule_s = ArrayField(
        models.PositiveIntegerField(),
        default=list,
        blank=True,
        help_text="Seconds to wait before each retry of a run. The number of values is the number of retries.",
    )
    missed = models.CharField(max_length=8, choices=Missed, default=Missed.LAST)
    missed_after_s = models.PositiveIntegerField(
        "missed after (s)", help_text="Mark a run missed if it hasn't started after this many seconds."
    )
    overlap = models.CharField(max_length=16, choices=Overlap, default=Overlap.ALLOW)
    jitter_s = models.IntegerField(
        "jitter (s)",
        default=0,
        db_default=0,
        validators=[MinValueValidator(0)],
        help_text="Delay each occurrence by up to this many seconds. An occurrence always has the same delay.",
    )

    exclude_calendars = ArrayField(
        models.BigIntegerField(),
        null=True,
        blank=True,
        help_text="Ids of the exclusion calendars. Occurrences on their days and intervals are left out.",
    )
    concurrency_limit = models.ForeignKey(
        ConcurrencyLimit,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
        help_text="Limits how many runs with this key are in progress at once, of this and other schedules.",
    )

    shard = models.PositiveSmallIntegerField(editable=False)
    version = models.PositiveIntegerField(default=1, editable=False)
    next_at = models.DateTimeField(null=True, editable=False, help_text="The trigger time of the next run.")
    occurrences = models.PositiveIntegerField(
        default=0, editable=False, help_text="Occurrences created so far, including the next one."
    )
    paused_until = models.DateTimeField(null=True, editable=False, help_text="When the last pause ended.")
    failures = models.PositiveIntegerField(
        default=0, editable=False, help_text=("Consecutive runs that failed permanently.")
    )
    bulk = models.ForeignKey(
        "BulkImport", null=True, on_delete=models.SET_NULL, related_name="+", db_index=False, editable=False
    )
    bulk_row = models.PositiveIntegerField(null=True, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)
    changed_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(trigger_at__isnull=False, every__isnull=True, cron="", rrule="")
                | Q(trigger_at__isnull=True, every__isnull=False, cron="", rrule="")
                | (Q(trigger_at__isnull=True, every__isnull=True, rrule="") & ~Q(cron=""))
                | (Q(trigger_at__isnull=True, every__isnull=True, cron="") & ~Q(rrule="")),
                name="schedule_has_one_timing",
            ),
            models.CheckConstraint(condition=Q(shard__lt=SHARDS), name="schedule_shard_exists"),
            models.UniqueConstraint(
                fields=["bulk", "bulk_row"], condition=Q(bulk__isnull=False), name="one_schedule_per_bulk_row"
            ),
        ]
        indexes = [
            models.Index(F("organization"), F("id").desc(), name="schedule_of_organization"),
            models.Index(
                fields=["organization", "next_at"], condition=Q(next_at__isnull=False), name="schedule_next"
            ),
            models.Index(fields=["organization"], condition=Q(failures__gt=0), name="schedule_failing"),
            models.Index(
                fields=["organization"],
                condition=Q(exclude_calendars__isnull=False),
                name="schedule_with_calendars",
            ),
            models.Index(
                fields=["organization", "changed_at"],
                condition=Q(status__in=["ended", "deleted"]),
                name="schedule_over",
            ),
            models.Index(
                fields=["concurrency_limit"],
                condition=Q(concurrency_limit__isnull=False),
                name="schedule_with_limit",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def taken(self) -> int:
        """Return the number of occurrences claimed or skipped: all but the waiting one."""
        return self.occurrences - (1 if self.next_at else 0)

    @property
    def timing(self) -> recurrence.Timing:
        """Return the timing in the form that the rules use."""
        return recurrence.Timing(
            zone=self.time_zone,
            trigger_at=self.trigger_at,
            every=self.every,
            unit=self.unit,
            anchor=self.anchor,
            cron=self.cron,
            rrule=self.rrule,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
            max_occurrences=self.max_occurrences,
            exclusions=self._exclusions(),
        )

    def _exclusions(self) -> Exclusions:
        """Return what the calendars exclude, as first read by this object."""
        key = (tuple(self.exclude_calendars or ()), self.time_zone)
        if self._read_exclusions is None or self._read_exclusions[0] != key:
            self._read_exclusions = (key, exclusion_cache.exclusions_of(*key))
        return self._read_exclusions[1]

    def due_at(self, at: datetime) -> datetime:
        """Return when the occurrence at this time is due: the time plus its jitter."""
        return at + jitter.jitter_of(self.pk, at, self.jitter_s)


class ScheduleFeed(OwnedModel):
    """A signed link to an iCalendar feed of the organization's coming runs. Deleting the row revokes the link."""

    name = models.CharField(max_length=80, help_text="Who or what uses the link.")
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        verbose_name = "calendar feed"

    def __str__(self) -> str:
        return self.name


class ExclusionCalendar(OwnedModel):
    """Days and intervals at which the schedules that name it do not run, from an iCalendar file.

    `entries` are [start, end, name]; see `rules.exclusions`. `version` increases with each change of them, and
    `applied_version` is the one from which the next runs of schedules were computed. `content` is the last good
    copy of the file.
    """

    name = models.CharField(max_length=80)
    url = models.CharField("URL", max_length=2000, blank=True, help_text="Read once a day.")
    content = models.TextField(blank=True, help_text="The text of the iCalendar file.")
    entries = models.JSONField(default=list, editable=False)
    version = models.PositiveIntegerField(default=1, editable=False)
    applied_version = models.PositiveIntegerField(default=1, editable=False)
    refreshed_at = models.DateTimeField(null=True, editable=False, help_text="When it was last read.")
    refresh_at = models.DateTimeField(editable=False, help_text="When it is read next.")
    last_error = models.CharField(max_length=300, blank=True, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="one_exclusion_calendar_per_name")
        ]
        indexes = [models.Index(fields=["refresh_at"], name="exclusion_calendar_refresh")]

    def __str__(self) -> str:
        return self.name


class ZoneRules(models.Model):
    """A digest of a time zone's rules, from which the next runs in that zone were computed."""

    zone = models.CharField(max_length=64, primary_key=True)
    digest = models.CharField(max_length=64)

    def __str__(self) -> str:
        return self.zone
