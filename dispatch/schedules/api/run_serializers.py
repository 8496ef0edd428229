"""Serialize runs and the reports of workers."""

from __future__ import annotations

from typing import Any, cast

from django.db.models import Manager
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from dispatch.core.api.serializers import MAX_LATEST, LatestSerializer
from dispatch.jobs.api.serializers import EntrySerializer
from dispatch.schedules.models import Run, RunReport
from dispatch.schedules.services.admission import LimitUse, explain_wait, read_use


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
        list_serializer_class = LatestSerializer
        fields = ["attempt", "outcome", "result", "error", "started_at", "ended_at"]
        read_only_fields = fields


class RunDetailSerializer(RunSerializer):
    """A run with its attempts and its history."""

    reports = RunReportSerializer(
        many=True, read_only=True, help_text=f"The last {MAX_LATEST} reports, oldest first."
    )
    log = serializers.SerializerMethodField()

    class Meta(RunSerializer.Meta):
        fields = [*RunSerializer.Meta.fields, "payload", "reports", "log"]
        read_only_fields = fields

    @extend_schema_field(EntrySerializer(many=True))
    def get_log(self, run: Run) -> Any:
        from dispatch.schedules.timeline import of_run

        return EntrySerializer(of_run(run), many=True).data
