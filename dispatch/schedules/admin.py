"""Schedules, runs and bulk creations in the admin: what comes next, what came of it, and what may be done about
it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from rest_framework.exceptions import APIException
from unfold.decorators import action, display

from accounts.admin_base import ACT, VIEW, OwnedAdmin, OwnedTabularInline
from dispatch.schedules import history
from dispatch.schedules.models import BulkImport, Run, RunReport, Schedule
from dispatch.schedules.rules import words
from dispatch.schedules.serializers import occurrences_of
from dispatch.schedules.services import bulk, by_hand, managing

STATUS_LABELS = {
    "active": "success", "failing": "danger", "paused": "warning", "ended": "info", "deleted": "warning",
}  # fmt: skip
RUN_LABELS = {
    "scheduled": "info", "in_progress": "info", "running": "info", "retrying": "warning", "succeeded": "success",
    "failed": "danger", "skipped": "warning", "missed": "warning", "cancelled": "warning",
}  # fmt: skip
SHOWN = 20


class FailingFilter(admin.SimpleListFilter):
    """What needs a person, one click away."""

    title = "needs a hand"
    parameter_name = "needs"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("failing", "Last run failed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(failures__gt=0) if self.value() == "failing" else queryset


class StatusFilter(admin.SimpleListFilter):
    """Deleted ones are listed when they are asked for."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(value), str(label)) for value, label in Schedule.Status.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(status=self.value()) if self.value() else queryset.exclude(status="deleted")


@admin.register(Schedule)
class ScheduleAdmin(OwnedAdmin):
    """Schedules are made in the console and over the API, where payloads are checked; here people act on them."""

    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["name", "kind", "state", "when", "next_run", "failures"]
    list_filter = [FailingFilter, StatusFilter, "kind"]
    list_select_related = ["organization"]
    search_fields = ["name", "=id"]
    search_help_text = "Name or number"
    ordering = ["-id"]
    show_full_result_count = False
    actions = ["pause", "resume", "run_now", "remove"]
    actions_detail = ["pause_this", "resume_this", "run_this_now", "remove_this"]
    fieldsets = [
        (None, {"fields": ["name", "kind", "is_now", "when", "next_times", "last_runs"]}),
        ("What", {"fields": ["body", "header_names"]}),
        (
            "Rules",
            {"fields": ["retries", "missed", "missed_after_s", "overlap", "max_occurrences", "ends_at"]},
        ),
        ("Counts", {"fields": ["occurrences", "failures", "version", "shard", "created_at", "changed_at"]}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        model = [field.name for field in Schedule._meta.fields if field.name not in ("organization", "headers")]
        return [*model, "is_now", "when", "next_times", "last_runs", "body", "header_names", "retries"]

    @display(description="status", ordering="status", label=STATUS_LABELS)
    def state(self, schedule: Schedule) -> tuple[str, str]:
        failing = schedule.failures and schedule.status == Schedule.Status.ACTIVE
        return "failing" if failing else schedule.status, self.is_now(schedule)

    @display(description="status")
    def is_now(self, schedule: Schedule) -> str:
        failing = ", failing" if schedule.failures else ""
        return f"{schedule.get_status_display()}{failing}"

    @display(description="when")
    def when(self, schedule: Schedule) -> str:
        return words.describe(schedule.timing)

    @display(description="next run", ordering="next_at")
    def next_run(self, schedule: Schedule) -> str:
        return words.moment(schedule.next_at, schedule.time_zone) if schedule.next_at else "—"

    @display(description="next times")
    def next_times(self, schedule: Schedule) -> str:
        found = occurrences_of(schedule)
        rows = ((one["words"], ", moved: the clocks go forward" if one["moved"] else "") for one in found)
        return format_html("<ol>{}</ol>", format_html_join("", "<li>{}{}</li>", rows)) if found else "none"

    @display(description="last runs")
    def last_runs(self, schedule: Schedule) -> str:
        found = list(schedule.runs.order_by("-id")[:SHOWN])
        rows = (
            (
                link(self, run, words.moment(run.trigger_at, schedule.time_zone)),
                run.get_status_display(),
                run.error,
            )
            for run in found
        )
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{}: {} {}</li>", rows)) if found else "none"

    @display(description="payload")
    def body(self, schedule: Schedule) -> str:
        return pretty(schedule.payload)

    @display(description="retries")
    def retries(self, schedule: Schedule) -> str:
        return ", ".join(f"after {delay} s" for delay in schedule.retry_schedule_s) or "none"

    @display(description="headers")
    def header_names(self, schedule: Schedule) -> str:
        return ", ".join(sorted(schedule.headers or {})) or "—"

    # --- on many
    @admin.action(description="Pause: no run until it is resumed", permissions=["act"])
    def pause(self, request: Any, queryset: QuerySet) -> None:
        done_to(request, managing.pause, queryset, "paused")

    @admin.action(description="Resume: what fell into the pause is skipped", permissions=["act"])
    def resume(self, request: Any, queryset: QuerySet) -> None:
        done_to(request, managing.resume, queryset, "resumed")

    @admin.action(description="Run now: one run more", permissions=["act"])
    def run_now(self, request: Any, queryset: QuerySet) -> None:
        done_to(request, managing.run_now, queryset, "asked to run now")

    @admin.action(description="Delete: what has not started is cancelled", permissions=["act"])
    def remove(self, request: Any, queryset: QuerySet) -> None:
        done_to(request, managing.delete, queryset, "deleted")

    # --- on one
    @action(
        description="Pause",
        permissions=["act"],
        dialog={"title": "Pause the schedule?", "description": "Nothing is run until it is resumed."},
    )
    def pause_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        managing.pause(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description="Resume",
        permissions=["act"],
        dialog={"title": "Resume the schedule?", "description": "What fell into the pause is skipped."},
    )
    def resume_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        managing.resume(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description="Run now",
        permissions=["act"],
        dialog={"title": "Run it now?", "description": "One run more; its next times stay as they are."},
    )
    def run_this_now(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        managing.run_now(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description="Delete",
        permissions=["act"],
        dialog={"title": "Delete the schedule?", "description": "What has not started is cancelled."},
    )
    def remove_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        managing.delete(int(object_id), actor=request.actor)
        return HttpResponse(headers={"HX-Redirect": reverse("admin:schedules_schedule_changelist")})


class ReportInline(OwnedTabularInline):
    model = RunReport
    admin_may = VIEW
    dispatcher_may = VIEW
    fields = ["attempt", "outcome", "ended_at", "error", "answered"]
    readonly_fields = fields
    ordering = ["-id"]
    per_page = 20
    verbose_name_plural = "attempts, the last one first"

    @display(description="result")
    def answered(self, report: RunReport) -> str:
        return pretty(report.result) if report.result is not None else "—"


@admin.register(Run)
class RunAdmin(OwnedAdmin):
    """Nobody edits a run: people act on it."""

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
        "schedule", "status", "number", "trigger", "attempt", "due_at", "taken_at", "started_at", "ended_at",
        "error",
        "answer", "log",
    ]  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*self.fields, *(field.name for field in Run._meta.fields if field.name != "organization")]

    @display(description="status", ordering="status", label=RUN_LABELS)
    def state(self, run: Run) -> tuple[str, str]:
        return run.status, run.get_status_display()

    @display(description="trigger time", ordering="trigger_at")
    def trigger(self, run: Run) -> str:
        return words.moment(run.trigger_at, run.schedule.time_zone)

    @display(description="result")
    def answer(self, run: Run) -> str:
        return pretty(run.result) if run.result is not None else "—"

    @display(description="log")
    def log(self, run: Run) -> str:
        zone = run.organization.time_zone
        rows = ((exact(entry.at, zone), entry.text) for entry in history.of_run(run))
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{} {}</li>", rows))

    @admin.action(description="Cancel, unless a worker has begun", permissions=["act"])
    def cancel(self, request: Any, queryset: QuerySet) -> None:
        done_to(request, by_hand.cancel, queryset, "cancelled")

    @admin.action(description="Try once more: from failed", permissions=["act"])
    def retry(self, request: Any, queryset: QuerySet) -> None:
        done_to(request, by_hand.retry, queryset, "tried again")

    @action(
        description="Cancel",
        permissions=["act"],
        dialog={"title": "Cancel this run?", "description": "Unless a worker has begun."},
    )
    def cancel_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        by_hand.cancel(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description="Try once more",
        permissions=["act"],
        dialog={"title": "Try it once more?", "description": "What it created stays the same thing."},
    )
    def retry_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        by_hand.retry(int(object_id), actor=request.actor)
        return self.back_to(object_id)


@admin.register(BulkImport)
class BulkImportAdmin(OwnedAdmin):
    """How far bulk creations have come, and which rows were refused."""

    subject = "bulk"
    admin_may = ACT
    dispatcher_may = VIEW
    list_display = ["id", "status", "total", "created", "refused", "created_at"]
    list_filter = ["status"]
    ordering = ["-id"]
    actions_detail = ["cancel_this"]
    fields = ["status", "total", "created", "refused", "created_at", "ended_at", "refusals"]
    readonly_fields = fields

    @display(description="rows that were refused")
    def refusals(self, row: BulkImport) -> str:
        found = list(row.row_errors.all()[:SHOWN])
        told = ((one.row, "; ".join(str(error.get("detail")) for error in one.errors)) for one in found)
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{}: {}</li>", told)) if found else "none"

    @action(
        description="Cancel",
        permissions=["act"],
        dialog={"title": "Create no more?", "description": "What was created stays."},
    )
    def cancel_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        bulk.cancel(int(object_id), actor=request.actor)
        return self.back_to(object_id)


def pretty(value: Any) -> str:
    """JSON, to be read."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return format_html('<pre class="whitespace-pre-wrap break-all">{}</pre>', text)


def link(own: OwnedAdmin, row: Any, text: str) -> str:
    """A link to the row's page."""
    name = f"{own.admin_site.name}:{row._meta.app_label}_{row._meta.model_name}_change"
    at = reverse(name, args=[row.pk])
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', at, text)


def exact(moment: datetime, zone: str) -> str:
    """The local date and time, to the second, with the zone's name."""
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %Z}"


def done_to(request: Any, do: Any, rows: QuerySet, words_for_it: str) -> None:
    """Does it to each of these, and says to how many, and why not to the others."""
    done, refused = 0, set()
    for pk in rows.order_by("pk").values_list("pk", flat=True):
        try:
            do(pk, actor=request.actor)
            done += 1
        except APIException as error:
            refused.add(str(error.detail))
    if done:
        messages.success(request, f"{done:,} {words_for_it}.")
    if refused:
        messages.warning(request, " ".join(sorted(refused)))
