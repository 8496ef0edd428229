"""Serialize schedules, and validate the input of forms and actions."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.api.base import OwnedSlugRelatedField
from dispatch.core import clock
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.languages import gettext as _
from dispatch.schedules import kinds
from dispatch.schedules.api.payloads import check_scope, checked_payload, sized_payload
from dispatch.schedules.api.run_serializers import RunSerializer
from dispatch.schedules.api.timings import (
    SHOWN,
    TIMING_FIELDS,
    OccurrenceSerializer,
    TimingSerializer,
    occurrences_of,
    timing_of,
)
from dispatch.schedules.models import ConcurrencyLimit, Missed, Overlap, Schedule
from dispatch.schedules.rules import descriptions, recurrence
from dispatch.schedules.rules.jitter import MAX_JITTER_S

MAX_RETRIES, MAX_RETRY_S = 20, 7 * 86_400


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
        if not jitter_s or not attrs.keys() & {"jitter_s", "time_zone", *TIMING_FIELDS}:
            return
        now = clock.now()
        timing = before.timing if before and "trigger_at" not in attrs else timing_of(attrs, now)
        gap_s = recurrence.shortest_gap_s(timing, now)
        if gap_s is not None and jitter_s > gap_s:
            detail = _("Must be at most {most} seconds, the shortest time between two occurrences.")
            detail = detail.format(most=f"{gap_s:g}")
            raise serializers.ValidationError({"jitter_s": detail})


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
        return OccurrenceSerializer(occurrences_of(row), many=True).data

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
