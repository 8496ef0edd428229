"""Provide the admin pages for schedules, runs and bulk imports."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from rest_framework.exceptions import APIException
from unfold.decorators import action, display

from accounts.admin.base import ACT, EVERYTHING, VIEW, OwnedAdmin, OwnedTabularInline
from dispatch.core import clock
from dispatch.schedules import queries, timeline
from dispatch.schedules.api.serializers import occurrence, occurrences_of
from dispatch.schedules.models import BulkImport, Run, RunReport, Schedule, ScheduleFeed
from dispatch.schedules.rules import descriptions
from dispatch.schedules.services import actions as schedule_actions
from dispatch.schedules.services import bulk_import, feeds, schedules

STATUS_LABELS = {
    "active": "success", "failing": "danger", "paused": "warning", "ended": "info", "deleted": "warning",
}  # fmt: skip
RUN_LABELS = {
    "scheduled": "info", "in_progress": "info", "running": "info", "retrying": "warning", "succeeded": "success",
    "failed": "danger", "skipped": "warning", "missed": "warning", "cancelled": "warning",
}  # fmt: skip
SHOWN, SHOWN_OF_MONTH = 20, 200


class FailingFilter(admin.SimpleListFilter):
    """Filter for schedules that need attention."""

    title = "needs attention"
    parameter_name = "needs"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("failing", "Last run failed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(failures__gt=0) if self.value() == "failing" else queryset


class StatusFilter(admin.SimpleListFilter):
    """Filter by status. Deleted schedules are listed only when selected."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(value), str(label)) for value, label in Schedule.Status.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(status=self.value()) if self.value() else queryset.exclude(status="deleted")


@admin.register(Schedule)
class ScheduleAdmin(OwnedAdmin):
    """List schedules and offer actions.

    Schedules are created in the console and through the API, which validate payloads.
    """

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
        ("Action", {"fields": ["body", "header_names"]}),
        (
            "Rules",
            {
                "fields": [
                    "retries",
                    "missed",
                    "missed_after_s",
                    "overlap",
                    "jitter_s",
                    "max_occurrences",
                    "ends_at",
                ]
            },
        ),
        ("Next month", {"fields": ["next_month"], "classes": ["collapse"]}),
        ("Counts", {"fields": ["occurrences", "failures", "version", "shard", "created_at", "changed_at"]}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        model = [field.name for field in Schedule._meta.fields if field.name not in ("organization", "headers")]
        return [
            *model,
            "is_now",
            "when",
            "next_times",
            "next_month",
            "last_runs",
            "body",
            "header_names",
            "retries",
        ]

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
        return descriptions.describe(schedule.timing)

    @display(description="next run", ordering="next_at")
    def next_run(self, schedule: Schedule) -> str:
        return descriptions.moment(schedule.next_at, schedule.time_zone) if schedule.next_at else "—"

    @display(description="next runs")
    def next_times(self, schedule: Schedule) -> str:
        occurrences = occurrences_of(schedule)
        return list_occurrences(occurrences) if occurrences else "none"

    @display(description="next 31 days")
    def next_month(self, schedule: Schedule) -> str:
        coming = queries.coming_of_schedule(schedule, clock.now() + timedelta(days=31))
        shown = coming.occurrences[:SHOWN_OF_MONTH]
        if not shown:
            return "none"
        timing = schedule.timing
        more = (
            "" if coming.is_whole and len(coming.occurrences) <= SHOWN_OF_MONTH else f"The first {SHOWN_OF_MONTH}:"
        )
        occurrences = [occurrence(at, timing, schedule.due_at(at)) for at, _ in shown]
        return format_html("{}{}", more, list_occurrences(occurrences))

    @display(description="last runs")
    def last_runs(self, schedule: Schedule) -> str:
        runs = list(schedule.runs.order_by("-id")[:SHOWN])
        rows = (
            (
                link(self, run, descriptions.moment(run.trigger_at, schedule.time_zone)),
                run.get_status_display(),
                run.error,
            )
            for run in runs
        )
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{}: {} {}</li>", rows)) if runs else "none"

    @display(description="payload")
    def body(self, schedule: Schedule) -> str:
        return pretty(schedule.payload)

    @display(description="retries")
    def retries(self, schedule: Schedule) -> str:
        return ", ".join(f"after {delay} s" for delay in schedule.retry_schedule_s) or "none"

    @display(description="headers")
    def header_names(self, schedule: Schedule) -> str:
        return ", ".join(sorted(schedule.headers or {})) or "—"

    # --- On several schedules ---
    @admin.action(description="Pause (no runs until resumed)", permissions=["act"])
    def pause(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedules.pause_schedule, queryset, "paused")

    @admin.action(description="Resume (runs during the pause are skipped)", permissions=["act"])
    def resume(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedules.resume_schedule, queryset, "resumed")

    @admin.action(description="Run now (adds one run)", permissions=["act"])
    def run_now(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedules.run_now, queryset, "queued to run now")

    @admin.action(description="Delete (cancels runs that haven't started)", permissions=["act"])
    def remove(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedules.delete_schedule, queryset, "deleted")

    # --- On one schedule ---
    @action(
        description="Pause",
        permissions=["act"],
        dialog={"title": "Pause this schedule?", "description": "It won't run until you resume it."},
    )
    def pause_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedules.pause_schedule(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description="Resume",
        permissions=["act"],
        dialog={"title": "Resume this schedule?", "description": "Runs that fell within the pause are skipped."},
    )
    def resume_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedules.resume_schedule(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description="Run now",
        permissions=["act"],
        dialog={"title": "Run now?", "description": "Adds one run. Its regular times don't change."},
    )
    def run_this_now(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedules.run_now(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description="Delete",
        permissions=["act"],
        dialog={"title": "Delete this schedule?", "description": "Runs that haven't started are canceled."},
    )
    def remove_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedules.delete_schedule(int(object_id), actor=request.actor)
        return HttpResponse(headers={"HX-Redirect": reverse("admin:schedules_schedule_changelist")})


class ReportInline(OwnedTabularInline):
    """List a run's attempts, newest first, read-only."""

    model = RunReport
    admin_may = VIEW
    dispatcher_may = VIEW
    fields = ["attempt", "outcome", "ended_at", "error", "answered"]
    readonly_fields = fields
    ordering = ["-id"]
    per_page = 20
    verbose_name_plural = "attempts, newest first"

    @display(description="result")
    def answered(self, report: RunReport) -> str:
        return pretty(report.result) if report.result is not None else "—"


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
        "schedule", "status", "number", "trigger", "attempt", "due_at", "taken_at", "started_at",
        "cancel_requested_at", "ended_at", "error",
        "answer", "log",
    ]  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*self.fields, *(field.name for field in Run._meta.fields if field.name != "organization")]

    @display(description="status", ordering="status", label=RUN_LABELS)
    def state(self, run: Run) -> tuple[str, str]:
        return run.status, run.get_status_display()

    @display(description="trigger time", ordering="trigger_at")
    def trigger(self, run: Run) -> str:
        return descriptions.moment(run.trigger_at, run.schedule.time_zone)

    @display(description="result")
    def answer(self, run: Run) -> str:
        return pretty(run.result) if run.result is not None else "—"

    @display(description="log")
    def log(self, run: Run) -> str:
        zone = run.organization.time_zone
        rows = ((exact(entry.at, zone), entry.text) for entry in timeline.of_run(run))
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{} {}</li>", rows))

    @admin.action(description="Cancel (running ones are asked to stop)", permissions=["act"])
    def cancel(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedule_actions.cancel_run, queryset, "canceled")

    @admin.action(description="Retry failed runs", permissions=["act"])
    def retry(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedule_actions.retry_run, queryset, "queued to retry")

    @action(
        description="Cancel",
        permissions=["act"],
        dialog={
            "title": "Cancel this run?",
            "description": "A running run is asked to stop. It ends as canceled, unless it succeeds before.",
        },
    )
    def cancel_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedule_actions.cancel_run(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description="Retry",
        permissions=["act"],
        dialog={
            "title": "Retry this run?",
            "description": ("The retry uses the same idempotency key, so nothing is created twice."),
        },
    )
    def retry_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedule_actions.retry_run(int(object_id), actor=request.actor)
        return self.back_to(object_id)


@admin.register(ScheduleFeed)
class ScheduleFeedAdmin(OwnedAdmin):
    """Create and revoke links to the calendar feed of an organization's coming runs."""

    admin_may = EVERYTHING - {"change"}
    list_display = ["name", "created_at"]
    search_fields = ["name"]
    ordering = ["-id"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["name"] if obj is None else ["name", "link", "created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["link", "created_at"]

    @display(description="link (anyone who has it can read the names and times of runs)")
    def link(self, feed: ScheduleFeed) -> str:
        return feeds.feed_url(feed)

    def save_model(self, request: Any, obj: ScheduleFeed, form: Any, change: bool) -> None:
        obj.pk = feeds.create_feed(obj.organization_id, obj.name, actor=request.actor).pk

    def delete_model(self, request: Any, obj: ScheduleFeed) -> None:
        feeds.revoke_feed(obj, actor=request.actor)

    def delete_queryset(self, request: Any, queryset: QuerySet) -> None:
        for feed in queryset:
            feeds.revoke_feed(feed, actor=request.actor)


@admin.register(BulkImport)
class BulkImportAdmin(OwnedAdmin):
    """Show the progress of bulk imports and their rejected rows."""

    subject = "bulk"
    admin_may = ACT
    dispatcher_may = VIEW
    list_display = ["id", "status", "total", "created", "refused", "created_at"]
    list_filter = ["status"]
    ordering = ["-id"]
    actions_detail = ["cancel_this"]
    fields = ["status", "total", "created", "refused", "created_at", "ended_at", "refusals"]
    readonly_fields = fields

    @display(description="rejected rows")
    def refusals(self, row: BulkImport) -> str:
        rejected = list(row.row_errors.all()[:SHOWN])
        items = ((entry.row, "; ".join(str(error.get("detail")) for error in entry.errors)) for entry in rejected)
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{}: {}</li>", items)) if rejected else "none"

    @action(
        description="Cancel",
        permissions=["act"],
        dialog={"title": "Cancel this import?", "description": "Schedules created so far are kept."},
    )
    def cancel_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        bulk_import.cancel_import(int(object_id), actor=request.actor)
        return self.back_to(object_id)


def list_occurrences(occurrences: list[dict[str, Any]]) -> str:
    """List occurrences with the notes that explain their times."""
    rows = (
        (
            time["words"],
            ", moved: clocks go forward" if time["moved"] else "",
            f", runs {time['delay_s']:g} s later" if time["delay_s"] else "",
        )
        for time in occurrences
    )
    return format_html("<ol>{}</ol>", format_html_join("", "<li>{}{}{}</li>", rows))


def pretty(value: Any) -> str:
    """Format JSON for reading."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return format_html('<pre class="whitespace-pre-wrap break-all">{}</pre>', text)


def link(own: OwnedAdmin, row: Any, text: str) -> str:
    """Link to the row's admin page."""
    name = f"{own.admin_site.name}:{row._meta.app_label}_{row._meta.model_name}_change"
    at = reverse(name, args=[row.pk])
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', at, text)


def exact(moment: datetime, zone: str) -> str:
    """Format the local date and time to the second, with the zone's name."""
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %Z}"


def apply_to_each(request: Any, do: Any, rows: QuerySet, outcome: str) -> None:
    """Apply the action to each row, and report how many succeeded and why the others did not."""
    done, refused = 0, set()
    for pk in rows.order_by("pk").values_list("pk", flat=True):
        try:
            do(pk, actor=request.actor)
            done += 1
        except APIException as error:
            refused.add(str(error.detail))
    if done:
        messages.success(request, f"{done:,} {outcome}.")
    if refused:
        messages.warning(request, " ".join(sorted(refused)))
