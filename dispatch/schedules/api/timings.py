"""Validate when a schedule runs, describe it, and list its next times."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import timezone
from rest_framework import serializers

from accounts.models import validate_time_zone
from dispatch.core import clock
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.languages import gettext as _
from dispatch.schedules import exclusion_cache
from dispatch.schedules.models import ExclusionCalendar, Schedule, Unit
from dispatch.schedules.rules import descriptions, recurrence, rrules
from dispatch.schedules.rules.recurrence import InvalidTiming, Timing

# A trigger time may be this far in the past, to allow for clock differences and network delay.
JUST_NOW = timedelta(minutes=5)
_TIMINGS = ("trigger_at", "every", "cron", "rrule")
TIMING_FIELDS = (*_TIMINGS, "unit", "starts_at", "ends_at", "max_occurrences", "exclude_calendars")
MAX_EXCLUDED = 10
SHOWN = 10


class LocalDateTimeField(serializers.DateTimeField):
    """A date and time with an offset, or a wall-clock time in the schedule's time zone."""

    def enforce_timezone(self, value: datetime) -> datetime:
        if not 1 < value.year < 9999:  # in UTC, the year might be out of range
            self.fail("overflow")
        return value


class TimingSerializer(StrictSerializer):
    """When a schedule runs: one of `trigger_at` (once), `every` with `unit` from `starts_at`, `cron` or `rrule`.

    A `starts_at` alone is a trigger time.
    """

    time_zone = serializers.CharField(max_length=64, required=False, validators=[validate_time_zone])
    trigger_at = LocalDateTimeField(required=False, allow_null=True)
    every = serializers.IntegerField(min_value=1, max_value=recurrence.MAX_EVERY, required=False, allow_null=True)
    unit = serializers.ChoiceField(choices=Unit.choices, required=False, allow_blank=True)
    cron = serializers.CharField(max_length=120, required=False, allow_blank=True)
    rrule = serializers.CharField(
        max_length=rrules.MAX_LENGTH,
        required=False,
        allow_blank=True,
        help_text=(
            "A recurrence rule (RFC 5545) from `starts_at`, daily or longer. COUNT and UNTIL become "
            "`max_occurrences` and `ends_at`."
        ),
    )
    starts_at = LocalDateTimeField(required=False, allow_null=True)
    ends_at = LocalDateTimeField(required=False, allow_null=True)
    max_occurrences = serializers.IntegerField(min_value=1, max_value=2**31 - 1, required=False, allow_null=True)
    exclude_calendars = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=2**63 - 1),
        max_length=MAX_EXCLUDED,
        required=False,
        allow_null=True,
        help_text="Ids of exclusion calendars. Occurrences on their days and intervals are left out.",
    )

    def validate_exclude_calendars(self, value: list[int] | None) -> list[int] | None:
        """Return the ids in order, or None if there are none."""
        wanted = sorted(set(value or ()))
        found = ExclusionCalendar.objects.of(self.context["request"].organization).filter(pk__in=wanted)
        known = set(found.values_list("pk", flat=True))
        if missing := [str(pk) for pk in wanted if pk not in known]:
            raise serializers.ValidationError(
                _("Unknown calendars: {missing}.").format(missing=", ".join(missing)), code="does_not_exist"
            )
        return wanted or None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not self._has_timing(attrs):
            return attrs
        when = self._when(attrs)
        now = clock.now()
        try:
            recurrence.check_timing(timing_of(when, now), now, settings.SCHEDULE_SHORTEST_INTERVAL_S)
        except InvalidTiming as error:
            raise serializers.ValidationError({error.field: str(error)}) from None
        return {**attrs, **when}

    def _has_timing(self, attrs: dict[str, Any]) -> bool:
        return self.instance is None or any(name in attrs for name in (*TIMING_FIELDS, "time_zone"))

    def _when(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the whole timing: the given values, else the existing ones.

        Another kind of timing (once, interval, cron) replaces the previous timing.
        """
        before = self.instance
        zone = attrs.get("time_zone") or (
            before.time_zone if before else self.context["request"].organization.time_zone
        )
        given = [name for name in _TIMINGS if attrs.get(name)]
        if not given and before is None and attrs.get("starts_at"):
            attrs["trigger_at"] = attrs.pop("starts_at")
            given = ["trigger_at"]
        if len(given) > 1 or (not given and before is None):
            raise serializers.ValidationError(
                {"trigger_at": _("Set one of trigger_at, every (with unit), cron, or rrule.")}
            )
        when: dict[str, Any] = {name: getattr(before, name) if before else None for name in TIMING_FIELDS}
        if given:
            when |= dict.fromkeys(_TIMINGS) | {"unit": ""}
        when |= {name: attrs[name] for name in TIMING_FIELDS if name in attrs}
        if "rrule" in given:
            when |= self._read_rule(attrs, zone)
        for name in ("trigger_at", "starts_at", "ends_at"):
            if when[name] is not None and timezone.is_naive(when[name]):
                when[name] = recurrence.localize(when[name], zone)
        when["unit"], when["cron"] = when["unit"] or "", (when["cron"] or "").strip()
        when["rrule"] = when["rrule"] or ""
        self._check_together(when, attrs, given)
        return {**when, "time_zone": zone}

    def _read_rule(self, attrs: dict[str, Any], zone: str) -> dict[str, Any]:
        """Return the fields that the rule sets: COUNT and UNTIL must not contradict those that are given."""
        try:
            rule = rrules.read_rule(attrs["rrule"])
        except rrules.InvalidRule as error:
            raise serializers.ValidationError({"rrule": str(error)}) from None
        fields: dict[str, Any] = {"rrule": rule.text}
        limits = (("COUNT", "max_occurrences", rule.count), ("UNTIL", "ends_at", rule.until))
        for part, name, value in limits:
            if value is None:
                continue
            if attrs.get(name) is not None:
                raise serializers.ValidationError(
                    {"rrule": _("Set either {part} or {name}, not both.").format(part=part, name=name)}
                )
            fields[name] = value
        return fields

    def _check_together(self, when: dict[str, Any], attrs: dict[str, Any], given: list[str]) -> None:
        if when["every"] and not when["unit"]:
            raise serializers.ValidationError(
                {"unit": _("Choose a unit: {units}.").format(units=", ".join(recurrence.UNITS))}
            )
        if when["unit"] and not when["every"]:
            raise serializers.ValidationError({"every": _("Required with unit.")})
        if not any(when[name] for name in _TIMINGS):
            raise serializers.ValidationError(
                {"trigger_at": _("Set only one of trigger_at, every, cron, and rrule.")}
            )
        if when["rrule"] and when["starts_at"] and when["starts_at"].year < rrules.FIRST_YEAR:
            raise serializers.ValidationError(
                {"starts_at": _("Must be in {first_year} or later.").format(first_year=rrules.FIRST_YEAR)}
            )
        if when["trigger_at"]:
            for name in ("starts_at", "ends_at", "max_occurrences", "exclude_calendars"):
                if attrs.get(name):
                    raise serializers.ValidationError({name: _("Not allowed for one-time schedules.")})
                when[name] = None
            if "trigger_at" in given and when["trigger_at"] < clock.now() - JUST_NOW:
                raise serializers.ValidationError({"trigger_at": _("This time has passed.")})


class OccurrenceSerializer(serializers.Serializer):
    """One time at which a schedule runs.

    `local` is in the schedule's time zone. `moved`: its wall-clock time does not exist that day, so it runs at the
    first moment after the gap. `due_at`: `at` plus the schedule's jitter; a preview of a timing has none.
    """

    at = serializers.DateTimeField()
    due_at = serializers.DateTimeField()
    local = serializers.CharField()
    words = serializers.CharField()
    moved = serializers.BooleanField()


class PreviewSerializer(serializers.Serializer):
    """A timing in words, and its next ten times."""

    words = serializers.CharField()
    next = OccurrenceSerializer(many=True)


def occurrences_of(row: Schedule) -> list[dict[str, Any]]:
    """Return the next ten times of an active schedule, beginning with its waiting run."""
    if row.next_at is None or row.status != Schedule.Status.ACTIVE:
        return []
    times = [row.next_at]
    times += recurrence.preview(row.timing, row.next_at, SHOWN - 1, made=row.occurrences)
    timing = row.timing
    return [occurrence(at, timing, row.due_at(at)) for at in times]


def preview_of(when: dict[str, Any], made: int = 0, anchor: datetime | None = None) -> dict[str, Any]:
    """Describe a validated timing and list its next times.

    For an existing schedule, `made` is its number of occurrences so far and `anchor` is where its intervals start.
    """
    now = clock.now()
    read = timing_of(when, now, anchor)
    return {
        "words": descriptions.describe(read),
        "next": [occurrence(at, read) for at in recurrence.preview(read, now, SHOWN, made)],
    }


def occurrence(at: datetime, when: Timing, due_at: datetime | None = None) -> dict[str, Any]:
    """Return one time for OccurrenceSerializer; `delay_s`, its jitter, is for pages."""
    return {
        "at": at,
        "due_at": due_at or at,
        "delay_s": ((due_at or at) - at).total_seconds(),
        "local": at.astimezone(ZoneInfo(when.zone)).isoformat(),
        "words": descriptions.moment(at, when.zone),
        "moved": recurrence.is_moved(at, when),
    }


def timing_of(when: dict[str, Any], now: datetime, anchor: datetime | None = None) -> Timing:
    """Return the validated fields as a Timing, whose intervals start at `anchor`, `starts_at` or now."""
    fields = {name: when[name] for name in TIMING_FIELDS}
    calendar_ids = fields.pop("exclude_calendars")
    return Timing(
        zone=when["time_zone"],
        anchor=anchor or when["starts_at"] or now,
        exclusions=exclusion_cache.exclusions_of(calendar_ids, when["time_zone"]),
        **fields,
    )
