"""Provide the admin page for runs."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from accounts.admin.base import ACT, VIEW, OwnedAdmin, OwnedTabularInline
from accounts.admin.stored_values import list_values
from dispatch.core.labels import label
from dispatch.schedules import timeline
from dispatch.schedules.admin.formats import apply_to_each, exact
from dispatch.schedules.models import Run, RunReport
from dispatch.schedules.rules import descriptions
from dispatch.schedules.services import actions as schedule_actions
from dispatch.schedules.services.admission import explain_wait, read_use

RUN_LABELS = {
    "scheduled": "info", "in_progress": "info", "running": "info", "retrying": "warning", "succeeded": "success",
    "failed": "danger", "skipped": "warning", "missed": "warning", "cancelled": "warning",
}  # fmt: skip


class ReportInline(OwnedTabularInline):
    """List a run's attempts, newest first, read-only."""

    model = RunReport
    admin_may = VIEW
    dispatcher_may = VIEW
    fields = ["attempt", "outcome", "ended_at", "error", "answered"]
    readonly_fields = fields
    ordering = ["-id"]
    per_page = 20
    verbose_name_plural = label("attempts, newest first")

    @display(description=label("result"))
    def answered(self, report: RunReport) -> str:
        return list_values(report.result, Run)


@admin.register(Run)
class RunAdmin(OwnedAdmin):
    """List runs and offer actions; only actions change runs."""

    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["id", "schedule", "state", "trigger", "attempt", "error"]
    list_filter = ["status", "kind"]
    list_select_related = ["schedule", "organization"]
    search_fields = ["=id", "schedule__name"]
    ordering = ["-id"]
    show_full_result_count = False
    inlines = [ReportInline]
    actions = ["cancel", "retry"]
    actions_detail = ["cancel_this", "retry_this"]
    fields = [
        "schedule", "status", "number", "trigger", "stretch_count", "stretch_last_at", "attempt",
        "due_at", "waits_for", "taken_at", "started_at",
        "cancel_requested_at", "ended_at", "error",
        "answer", "log",
    ]  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*self.fields, *(field.name for field in Run._meta.fields if field.name != "organization")]

    @display(description=label("status"), ordering="status", label=RUN_LABELS)
    def state(self, run: Run) -> tuple[str, str]:
        return run.status, run.state_label

    @display(description=label("trigger time"), ordering="trigger_at")
    def trigger(self, run: Run) -> str:
        first = descriptions.moment(run.trigger_at, run.schedule.time_zone)
        return (
            gettext("{first} and {more:,} more").format(first=first, more=run.stretch_count - 1)
            if run.stretch_count > 1
            else first
        )

    @display(description=label("why it waits"))
    def waits_for(self, run: Run) -> str:
        use = read_use([run.concurrency_limit_id]).get(run.concurrency_limit_id or 0)
        return explain_wait(run, use) or "—"

    @display(description=label("result"))
    def answer(self, run: Run) -> str:
        return list_values(run.result, Run)

    @display(description=label("log"))
    def log(self, run: Run) -> str:
        zone = run.organization.time_zone
        rows = ((exact(entry.at, zone), entry.text) for entry in timeline.of_run(run))
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{} {}</li>", rows))

    @admin.action(description=_("Cancel (running ones are asked to stop)"), permissions=["act"])
    def cancel(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedule_actions.cancel_run, queryset, gettext("{count:,} canceled."))

    @admin.action(description=_("Retry failed runs"), permissions=["act"])
    def retry(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedule_actions.retry_run, queryset, gettext("{count:,} queued to retry."))

    @action(
        description=_("Cancel"),
        permissions=["act"],
        dialog={
            "title": _("Cancel this run?"),
            "description": _(
                "A run in progress is asked to stop. It ends as canceled, unless it succeeds before."
            ),
        },
    )
    def cancel_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedule_actions.cancel_run(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description=_("Retry"),
        permissions=["act"],
        dialog={
            "title": _("Retry this run?"),
            "description": (_("The retry uses the same idempotency key, so nothing is created twice.")),
        },
    )
    def retry_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedule_actions.retry_run(int(object_id), actor=request.actor)
        return self.back_to(object_id)
