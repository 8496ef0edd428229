"""Serialize schedules, runs and bulk imports for the API, and validate client input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db.models import Manager
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.api.base import OwnedSlugRelatedField
from accounts.models import Organization, validate_time_zone
from dispatch.core import clock
from dispatch.core.api.serializers import BoundedListField, StrictSerializer
from dispatch.core.languages import gettext as _
from dispatch.jobs.api.serializers import EntrySerializer
from dispatch.schedules import exclusion_cache, kinds
from dispatch.schedules.models import (
    BulkError,
    BulkImport,
    ConcurrencyLimit,
    ExclusionCalendar,
    Missed,
    Overlap,
    Run,
    RunReport,
    Schedule,
    Unit,
)
from dispatch.schedules.rules import descriptions, recurrence, rrules
from dispatch.schedules.rules.jitter import MAX_JITTER_S
from dispatch.schedules.rules.recurrence import InvalidTiming, Timing
from dispatch.schedules.services.admission import LimitUse, explain_wait, read_use

MAX_PAYLOAD_BYTES = 256 * 1024
MAX_RETRIES, MAX_RETRY_S = 20, 7 * 86_400
MAX_IN_BULK = 100_000
# A trigger time may be this far in the past, to allow for clock differences and network delay.
JUST_NOW = timedelta(minutes=5)
_TIMINGS = ("trigger_at", "every", "cron", "rrule")
_WHEN = (*_TIMINGS, "unit", "starts_at", "ends_at", "max_occurrences", "exclude_calendars")
MAX_EXCLUDED = 10
SHOWN = 10


class LocalDateTimeField(serializers.DateTimeField):
    """A date and time with an offset, or a wall-clock time in the schedule's time zone."""

    def enforce_timezone(self, value: datetime) -> datetime:
        if not 1 < value.year < 9999:  # in UTC, the year might be out of range
            self.fail("overflow")
        return value


def sized_payload(value: dict[str, Any]) -> dict[str, Any]:
    """Return the payload. Raises ValidationError if it is too large."""
    if len(json.dumps(value)) > MAX_PAYLOAD_BYTES:
        raise serializers.ValidationError(_("Must be at most {most} bytes.").format(most=MAX_PAYLOAD_BYTES))
    return value


def checked_payload(organization: Organization, kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return the payload, validated by its kind. Raises ValidationError by field."""
    if not kinds.is_known(kind):
        raise serializers.ValidationError(_("This process cannot validate payloads of this kind."))
    kinds.get_kind(kind).check(organization, sized_payload(value))
    return value


def check_scope(context: Mapping[str, Any], kind: str, field: str = "") -> None:
    """Require the scope of the kind's own API: scheduling an action requires the permission for it."""
    scope = kinds.get_kind(kind).scope
    if not context["may"](scope):
        detail = serializers.ErrorDetail(
            _("Also requires the scope {scope}.").format(scope=scope), code="permission_denied"
        )
        raise serializers.ValidationError({field: [detail]} if field else [detail])


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
            recurrence.check_timing(_timing_of(when, now), now, settings.SCHEDULE_SHORTEST_INTERVAL_S)
        except InvalidTiming as error:
            raise serializers.ValidationError({error.field: str(error)}) from None
        return {**attrs, **when}

    def _has_timing(self, attrs: dict[str, Any]) -> bool:
        return self.instance is None or any(name in attrs for name in (*_WHEN, "time_zone"))

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
        when: dict[str, Any] = {name: getattr(before, name) if before else None for name in _WHEN}
        if given:
            when |= dict.fromkeys(_TIMINGS) | {"unit": ""}
        when |= {name: attrs[name] for name in _WHEN if name in attrs}
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


class ScheduleFormSerializer(TimingSerializer):
    """Client input to create or change a schedule.

    `payload` has the format of the kind's own API and is validated in the same way.
    """

    name = serializers.CharField(max_length=120)
    kind = serializers.CharField(max_length=32, help_text="submission, lead, message or http.")
    payload = serializers.DictField()
    headers = serializers.DictField(
        child=serializers.CharField(max_length=2000, allow_blank=True, trim_whitespace=False),
        required=False,
        help_text="Headers for URL calls. Encrypted; responses return header names only.",
    )
    retry_schedule_s = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=MAX_RETRY_S),
        max_length=MAX_RETRIES,
        required=False,
        help_text="Seconds to wait before each retry. The number of values is the number of retries.",
    )
    missed = serializers.ChoiceField(choices=Missed.choices, required=False)
    missed_after_s = serializers.IntegerField(min_value=1, max_value=7 * 86_400, required=False)
    overlap = serializers.ChoiceField(choices=Overlap.choices, required=False)
    concurrency_key = OwnedSlugRelatedField(
        "key",
        queryset=ConcurrencyLimit.objects.all(),
        source="concurrency_limit",
        required=False,
        allow_null=True,
        help_text="The key of a concurrency limit, which limits how many runs with it are in progress at once.",
    )
    jitter_s = serializers.IntegerField(
        min_value=0,
        max_value=MAX_JITTER_S,
        required=False,
        help_text="Delay each occurrence by up to this many seconds, at most the time between two occurrences.",
    )

    def validate_kind(self, value: str) -> str:
        if not kinds.is_known(value):
            names = ", ".join(kind.name for kind in kinds.all_kinds())
            raise serializers.ValidationError(
                _("Must be one of {names}.").format(names=names), code="invalid_choice"
            )
        return value

    def validate_payload(self, value: dict[str, Any]) -> dict[str, Any]:
        return sized_payload(value)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        before = self.instance
        kind = kinds.get_kind(attrs["kind"] if before is None else attrs.get("kind", before.kind))
        if before is None or attrs.keys() & {"kind", "payload", "headers"}:
            check_scope(
                self.context, kind.name, field="kind"
            )  # also required to change the payload of an existing schedule
        if before is None or attrs.keys() & {"kind", "payload"}:
            payload: dict[str, Any] = attrs["payload"] if before is None else attrs.get("payload", before.payload)
            try:
                kind.check(self.context["request"].organization, payload)
            except serializers.ValidationError as error:
                raise serializers.ValidationError({"payload": error.detail}) from None
        if "headers" in attrs:
            kind.check_headers(attrs["headers"])
        elif before is not None and before.headers and "kind" in attrs:
            kind.check_headers(before.headers)
        self._check_jitter(attrs)
        return attrs

    def _check_jitter(self, attrs: dict[str, Any]) -> None:
        """Require that the jitter is not longer than the shortest time between two occurrences."""
        before = self.instance
        jitter_s = attrs.get("jitter_s", before.jitter_s if before else 0)
        if not jitter_s or not attrs.keys() & {"jitter_s", "time_zone", *_WHEN}:
            return
        now = clock.now()
        timing = before.timing if before and "trigger_at" not in attrs else _timing_of(attrs, now)
        gap_s = recurrence.shortest_gap_s(timing, now)
        if gap_s is not None and jitter_s > gap_s:
            detail = _("Must be at most {most} seconds, the shortest time between two occurrences.")
            detail = detail.format(most=f"{gap_s:g}")
            raise serializers.ValidationError({"jitter_s": detail})


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


class RunListSerializer(serializers.ListSerializer):
    """Read the use of the concurrency limits of all runs of a page at once."""

    def to_representation(self, data: Any) -> Any:
        rows, child = list(data.all() if isinstance(data, Manager) else data), cast(Any, self.child)
        child.use = read_use(row.concurrency_limit_id for row in rows)
        return super().to_representation(rows)


class RunSerializer(serializers.ModelSerializer):
    """A run in a list. `number` is null for a manual run.

    Consecutive occurrences that were missed or skipped for the same reason are one run: there are
    `stretch_count`, from `trigger_at` to `stretch_last_at`, and `number` is the first one's.
    """

    schedule_name = serializers.CharField(source="schedule.name", read_only=True)
    has_own_payload = serializers.SerializerMethodField(
        help_text="Whether it was started with a changed payload, which the run shows."
    )
    waiting_reason = serializers.SerializerMethodField(help_text="`waiting_for` in words.")
    concurrency_key = serializers.SerializerMethodField(
        help_text="The key of the concurrency limit that it waited for or has passed."
    )
    use: dict[int, LimitUse] | None = None

    class Meta:
        model = Run
        list_serializer_class = RunListSerializer
        fields = [
            "id", "schedule", "schedule_name", "kind", "number", "trigger_at", "stretch_count", "stretch_last_at",
            "due_at", "status", "attempt", "has_own_payload",
            "waiting_for", "waiting_reason", "concurrency_key", "started_at", "cancel_requested_at", "ended_at",
            "result", "error", "created_at",
        ]  # fmt: skip
        read_only_fields = fields

    def get_has_own_payload(self, run: Run) -> bool:
        return run.payload is not None

    def get_waiting_reason(self, run: Run) -> str:
        return explain_wait(run, self._use_of(run))

    def get_concurrency_key(self, run: Run) -> str | None:
        use = self._use_of(run)
        return use.key if use else None

    def _use_of(self, run: Run) -> LimitUse | None:
        if run.concurrency_limit_id is None:
            return None
        if self.use is None:
            self.use = read_use([run.concurrency_limit_id])
        return self.use.get(run.concurrency_limit_id)


class RunReportSerializer(serializers.ModelSerializer):
    """A worker's report on one attempt."""

    class Meta:
        model = RunReport
        fields = ["attempt", "outcome", "result", "error", "started_at", "ended_at"]
        read_only_fields = fields


class RunDetailSerializer(RunSerializer):
    """A run with its attempts and its history."""

    reports = RunReportSerializer(many=True, read_only=True)
    log = serializers.SerializerMethodField()

    class Meta(RunSerializer.Meta):
        fields = [*RunSerializer.Meta.fields, "payload", "reports", "log"]
        read_only_fields = fields

    @extend_schema_field(EntrySerializer(many=True))
    def get_log(self, run: Run) -> Any:
        from dispatch.schedules.timeline import of_run

        return EntrySerializer(of_run(run), many=True).data


class ScheduleSerializer(serializers.ModelSerializer):
    """A schedule in a list. `version` is for optimistic locking."""

    unit = serializers.CharField(read_only=True, help_text="Only with `every`; otherwise empty.")
    header_names = serializers.SerializerMethodField()
    concurrency_key = serializers.CharField(source="concurrency_limit.key", read_only=True, allow_null=True)
    when = serializers.SerializerMethodField(help_text="The timing in words.")
    summary = serializers.SerializerMethodField(help_text="A one-line summary of the payload.")

    class Meta:
        model = Schedule
        fields = [
            "id", "name", "kind", "summary", "payload", "header_names", "status", "when", "time_zone",
            "trigger_at",
            "every", "unit", "cron", "rrule", "starts_at", "ends_at", "max_occurrences", "exclude_calendars",
            "retry_schedule_s",
            "missed", "missed_after_s", "overlap", "jitter_s", "concurrency_key", "next_at", "occurrences",
            "failures", "version", "created_at", "changed_at",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_header_names(self, row: Schedule) -> list[str]:
        return sorted(row.headers or {})

    def get_when(self, row: Schedule) -> str:
        return descriptions.describe(row.timing)

    def get_summary(self, row: Schedule) -> str:
        return kinds.get_kind(row.kind).summary(row.payload) if kinds.is_known(row.kind) else ""


class ScheduleDetailSerializer(ScheduleSerializer):
    """A schedule with its next times and most recent runs."""

    next = serializers.SerializerMethodField()
    runs = serializers.SerializerMethodField(
        help_text=("The ten most recent runs, newest first, and any that are open.")
    )

    class Meta(ScheduleSerializer.Meta):
        fields = [*ScheduleSerializer.Meta.fields, "next", "runs"]
        read_only_fields = fields

    @extend_schema_field(OccurrenceSerializer(many=True))
    def get_next(self, row: Schedule) -> Any:
        return occurrences_of(row)

    @extend_schema_field(RunSerializer(many=True))
    def get_runs(self, row: Schedule) -> Any:
        return RunSerializer(row.runs.select_related("schedule").order_by("-id")[:SHOWN], many=True).data


class ScheduleDecisionSerializer(StrictSerializer):
    """Input of an action. With `version` or If-Match, it is rejected if the schedule has changed since."""

    version = serializers.IntegerField(min_value=1, required=False)
    note = serializers.CharField(max_length=500, required=False, allow_blank=True, default="")


class RunNowSerializer(ScheduleDecisionSerializer):
    """A manual run, with the schedule's payload or another one for this run only."""

    payload = serializers.DictField(
        required=False, help_text="Replaces the schedule's payload in this run. Requires the scope of its kind."
    )
    concurrency_key = OwnedSlugRelatedField(
        "key",
        queryset=ConcurrencyLimit.objects.all(),
        source="concurrency_limit",
        required=False,
        help_text="Replaces the schedule's concurrency limit in this run.",
    )

    def validate_payload(self, value: dict[str, Any]) -> dict[str, Any]:
        schedule: Schedule = self.context["schedule"]
        check_scope(self.context, schedule.kind)
        return checked_payload(self.context["request"].organization, schedule.kind, value)


class BackfillSerializer(ScheduleDecisionSerializer):
    """The range of past occurrences to run, both ends included. With `preview`, nothing is run."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField(required=False, help_text="Now, unless set.")
    preview = serializers.BooleanField(default=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "until" in attrs and attrs["until"] < attrs["since"]:
            raise serializers.ValidationError({"until": _("Must not be before since.")})
        return attrs


class BackfilledSerializer(serializers.Serializer):
    """The number of occurrences, the first and the last, and whether all of the range are counted.

    `run_ids` are the new runs, in order; empty for a preview.
    """

    count = serializers.IntegerField()
    first_at = serializers.DateTimeField(allow_null=True)
    last_at = serializers.DateTimeField(allow_null=True)
    is_whole = serializers.BooleanField()
    run_ids = serializers.ListField(child=serializers.IntegerField())


class BulkFormSerializer(StrictSerializer):
    """Up to 100,000 schedules. `defaults` applies to each row, unless the row overrides it."""

    defaults = serializers.DictField(required=False, default=dict)
    schedules = BoundedListField(
        child=serializers.DictField(),
        allow_empty=False,
        max_length=MAX_IN_BULK,
        help_text=("The fields of a single schedule."),
    )


class BulkSerializer(serializers.ModelSerializer):
    """The progress of a bulk import. It is `done` when created + refused = total."""

    class Meta:
        model = BulkImport
        fields = ["id", "status", "total", "created", "refused", "created_at", "ended_at"]
        read_only_fields = fields


class BulkErrorSerializer(serializers.ModelSerializer):
    """The reasons why a row was rejected. Rows are counted from 0."""

    class Meta:
        model = BulkError
        fields = ["row", "errors"]
        read_only_fields = fields


class BulkDetailSerializer(BulkSerializer):
    """A bulk import with its first 100 rejected rows."""

    row_errors = serializers.SerializerMethodField()

    class Meta(BulkSerializer.Meta):
        fields = [*BulkSerializer.Meta.fields, "row_errors"]
        read_only_fields = fields

    @extend_schema_field(BulkErrorSerializer(many=True))
    def get_row_errors(self, row: BulkImport) -> Any:
        return BulkErrorSerializer(row.row_errors.all()[:100], many=True).data


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
    read = _timing_of(when, now, anchor)
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


def _timing_of(when: dict[str, Any], now: datetime, anchor: datetime | None = None) -> Timing:
    fields = {name: when[name] for name in _WHEN}
    calendar_ids = fields.pop("exclude_calendars")
    return Timing(
        zone=when["time_zone"],
        anchor=anchor or when["starts_at"] or now,
        exclusions=exclusion_cache.exclusions_of(calendar_ids, when["time_zone"]),
        **fields,
    )
