"""Models of technicians: Technician, Skill, Shift."""

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField, DateTimeRangeField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import validate_own_voice, validate_time_zone
from accounts.scoping import OwnedModel
from accounts.speech_fields import own_language, own_voice
from dispatch.core import clock
from dispatch.core.languages import gettext, mark
from dispatch.technicians.fields import WeekSpansField
from dispatch.technicians.h3_cells import cell_of


class Skill(OwnedModel):
    """A skill that technicians have and service types require."""

    code = models.SlugField(max_length=64)
    name = models.CharField(max_length=80)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["organization", "code"], name="one_skill_per_code")]

    def __str__(self) -> str:
        return self.name


class Technician(OwnedModel):
    """A person who gets job offers.

    Coordinates are WGS 84 degrees; `cell` is their H3 cell (`h3_cells.RESOLUTION`).
    """

    name = models.CharField(max_length=120)
    phone = PhoneNumberField()
    lat = models.FloatField("latitude", validators=[MinValueValidator(-90), MaxValueValidator(90)])
    lng = models.FloatField("longitude", validators=[MinValueValidator(-180), MaxValueValidator(180)])
    cell = models.BigIntegerField(editable=False)
    position_at = models.DateTimeField(default=clock.now, editable=False)
    time_zone = models.CharField(
        max_length=64,
        blank=True,
        validators=[validate_time_zone],
        help_text="Leave empty to use the organization's time zone.",
    )
    language = own_language("Of their calls and texts. Leave empty to use the organization's.")
    voice = own_voice("It must speak their language. Leave empty to use the organization's.")
    skills = models.ManyToManyField(Skill, blank=True, related_name="technicians")
    # The ids of `skills`, maintained by a signal so that the search needs no join.
    skill_ids = ArrayField(models.BigIntegerField(), default=list, editable=False)
    # The shifts as spans of the week, maintained by a signal. None: no shifts, so at work whenever on duty.
    hours = WeekSpansField(null=True, editable=False)
    radius_m = models.PositiveIntegerField(
        "own radius (m)",
        null=True,
        blank=True,
        help_text="Maximum distance of jobs. Leave empty to use the policy's.",
    )
    max_open_jobs = models.PositiveSmallIntegerField(
        default=1, help_text="At the same time: open jobs with an arrival window at another time don't count."
    )
    on_duty = models.BooleanField(default=True)
    is_active = models.BooleanField(default=True)

    open_jobs = models.PositiveSmallIntegerField(default=0, editable=False)
    # When the open jobs with an arrival window take place; maintained by a trigger on jobs. None: no such jobs.
    planned_times = ArrayField(DateTimeRangeField(), null=True, editable=False)
    live_offer_id = models.BigIntegerField(null=True, editable=False)
    last_offered_at = models.DateTimeField(null=True, editable=False)
    link_version = models.PositiveIntegerField(
        default=1, editable=False, help_text="Part of signed links to their page; a new version revokes old links."
    )
    pin_hash = models.CharField(
        max_length=128,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Of the PIN that identifies them when they call.",
    )
    pin_failures = models.PositiveSmallIntegerField(
        default=0, db_default=0, editable=False, help_text="Wrong PINs since the last right one."
    )
    pin_locked_until = models.DateTimeField(
        null=True, editable=False, help_text="No PIN is accepted until then, after too many wrong ones."
    )
    misses_in_a_row = models.PositiveSmallIntegerField(
        default=0, editable=False, help_text="Calls missed since the last answered one."
    )
    auto_paused_at = models.DateTimeField(
        null=True, editable=False, help_text="No offers since then, after too many missed calls in a row."
    )
    created_at = models.DateTimeField(default=clock.now, editable=False)

    REFUSALS: ClassVar[dict[str, str]] = {
        "one_active_technician_per_phone": mark("Another active technician has this phone number.")
    }

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "phone"],
                condition=Q(is_active=True),
                name="one_active_technician_per_phone",
            )
        ]
        indexes = [
            models.Index(fields=["organization", "cell"], condition=Q(is_active=True), name="technician_near")
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def open_jobs_later(self) -> int:
        """The number of open jobs that are planned for later, which leave their place free now."""
        now = clock.now()
        return min(self.open_jobs, sum(span.lower > now for span in self.planned_times or ()))

    @property
    def workload_words(self) -> str:
        """The open jobs against the limit, such as "1 of 2, 3 later"."""
        later = self.open_jobs_later
        words = gettext("{jobs} of {most}").format(jobs=self.open_jobs - later, most=self.max_open_jobs)
        return gettext("{words}, {later} later").format(words=words, later=later) if later else words

    def clean(self) -> None:
        if self.organization_id is not None:
            validate_own_voice(self.organization, self.language, self.voice)

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.cell = cell_of(self.lat, self.lng)
        if (fields := kwargs.get("update_fields")) is not None and {"lat", "lng"} & set(fields):
            kwargs["update_fields"] = {*fields, "cell"}
        super().save(*args, **kwargs)


class Shift(OwnedModel):
    """Weekly working hours in the technician's time zone.

    An `ends` at or before `starts` is on the next day. A technician without shifts works whenever on duty.
    """

    class Weekday(models.IntegerChoices):
        MONDAY = 0, "Monday"
        TUESDAY = 1, "Tuesday"
        WEDNESDAY = 2, "Wednesday"
        THURSDAY = 3, "Thursday"
        FRIDAY = 4, "Friday"
        SATURDAY = 5, "Saturday"
        SUNDAY = 6, "Sunday"

    technician = models.ForeignKey(Technician, on_delete=models.CASCADE, related_name="shifts")
    weekday = models.PositiveSmallIntegerField(choices=Weekday)
    starts = models.TimeField()
    ends = models.TimeField()

    class Meta:
        ordering = ["weekday", "starts"]

    def __str__(self) -> str:
        return f"{self.get_weekday_display()} {self.starts:%H:%M}–{self.ends:%H:%M}"
