"""Define ScheduleFeed, ExclusionCalendar and ZoneRules."""

from __future__ import annotations

from django.db import models

from accounts.scoping import OwnedModel
from dispatch.core import clock


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
