"""Technician, Skill, Shift."""

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import validate_time_zone
from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.technicians.cells import cell_of
from dispatch.technicians.fields import WeekSpansField


class Skill(OwnedModel):
    """Something a technician can do and a service type can require."""

    code = models.SlugField(max_length=64)
    name = models.CharField(max_length=80)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["organization", "code"], name="one_skill_per_code")]

    def __str__(self) -> str:
        return self.name


class Technician(OwnedModel):
    """Who is offered jobs. Coordinates are WGS 84 degrees; `cell` is their H3 cell (`cells.RESOLUTION`)."""

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
        help_text="Of the shifts; empty: the organization's.",
    )
    skills = models.ManyToManyField(Skill, blank=True, related_name="technicians")
    # The ids of `skills`, kept by a signal, so that the search needs no join.
    skill_ids = ArrayField(models.BigIntegerField(), default=list, editable=False)
    # The shifts as spans of the week, kept by a signal; None = no shifts, at work whenever on duty.
    hours = WeekSpansField(null=True, editable=False)
    radius_m = models.PositiveIntegerField(
        "own radius (m)", null=True, blank=True, help_text="Goes no farther than this; empty: the policy's."
    )
    max_open_jobs = models.PositiveSmallIntegerField(default=1)
    on_duty = models.BooleanField(default=True)
    is_active = models.BooleanField(default=True)

    open_jobs = models.PositiveSmallIntegerField(default=0, editable=False)
    live_offer_id = models.BigIntegerField(null=True, editable=False)
    last_offered_at = models.DateTimeField(null=True, editable=False)
    link_version = models.PositiveIntegerField(
        default=1, editable=False, help_text="Signed links to their page carry it; a new one voids those before."
    )
    misses_in_a_row = models.PositiveSmallIntegerField(
        default=0, editable=False, help_text="Calls not taken since the last one that was."
    )
    auto_paused_at = models.DateTimeField(
        null=True, editable=False, help_text="Not offered anything since then, for too many misses in a row."
    )
    created_at = models.DateTimeField(default=clock.now, editable=False)

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

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.cell = cell_of(self.lat, self.lng)
        if (fields := kwargs.get("update_fields")) is not None and {"lat", "lng"} & set(fields):
            kwargs["update_fields"] = {*fields, "cell"}
        super().save(*args, **kwargs)


class Shift(OwnedModel):
    """When a technician works, in their own time zone. An `ends` at or before `starts` runs into the next day.
    A technician without shifts works whenever on duty."""

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
