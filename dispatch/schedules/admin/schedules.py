"""Provide the admin page for schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from accounts.admin.base import ACT, OwnedAdmin
from accounts.admin.stored_values import list_values, show_json
from dispatch.core import clock
from dispatch.core.labels import label, translate_label
from dispatch.jobs.models import Submission
from dispatch.leads.models import Lead
from dispatch.schedules import kinds, queries
from dispatch.schedules.admin.formats import apply_to_each, link, list_occurrences
from dispatch.schedules.api.timings import occurrence, occurrences_of
from dispatch.schedules.models import Schedule
from dispatch.schedules.rules import descriptions
from dispatch.schedules.services import schedules

STATUS_LABELS = {
    "active": "success", "failing": "danger", "paused": "warning", "ended": "info", "deleted": "warning",
}  # fmt: skip
SHOWN, SHOWN_OF_MONTH = 20, 200
# Kinds whose payload is what a person enters in a form → the model whose labels name its values.
FORMS: dict[str, type[Model]] = {"submission": Submission, "lead": Lead}


class FailingFilter(admin.SimpleListFilter):
    """Filter for schedules that need attention."""

    title = label("needs attention")
    parameter_name = "needs"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("failing", gettext("Last run failed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(failures__gt=0) if self.value() == "failing" else queryset


class StatusFilter(admin.SimpleListFilter):
    """Filter by status. Deleted schedules are listed only when selected."""

    title = label("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, translate_label(words, "schedules.schedule")) for value, words in Schedule.Status.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(status=self.value()) if self.value() else queryset.exclude(status="deleted")


@admin.register(Schedule)
class ScheduleAdmin(OwnedAdmin):
    """List schedules and offer actions.

    Schedules are created in the console and through the API, which validate payloads.
    """

    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["name", "kind_name", "state", "when", "next_run", "failures"]
    list_filter = [FailingFilter, StatusFilter, "kind"]
    list_select_related = ["organization"]
    search_fields = ["name", "=id"]
    search_help_text = _("Name or number")
    ordering = ["-id"]
    show_full_result_count = False
    actions = ["pause", "resume", "run_now", "remove"]
    actions_detail = ["pause_this", "resume_this", "run_this_now", "remove_this"]
    fieldsets = [
        (None, {"fields": ["name", "kind_name", "is_now", "when", "next_times", "last_runs"]}),
        (_("Action"), {"fields": ["body", "header_names"]}),
        (
            _("Rules"),
            {
                "fields": [
                    "retries",
                    "missed",
                    "missed_after_s",
                    "overlap",
                    "jitter_s",
                    "concurrency_limit",
                    "max_occurrences",
                    "ends_at",
                    "excluded",
                ]
            },
        ),
        (_("Next month"), {"fields": ["next_month"], "classes": ["collapse"]}),
        (_("Counts"), {"fields": ["occurrences", "failures", "version", "shard", "created_at", "changed_at"]}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        model = [field.name for field in Schedule._meta.fields if field.name not in ("organization", "headers")]
        return [
            *model,
            "kind_name",
            "is_now",
            "when",
            "next_times",
            "next_month",
            "last_runs",
            "body",
            "header_names",
            "retries",
            "excluded",
        ]

    @admin.display(description=label("kind"), ordering="kind")
    def kind_name(self, schedule: Schedule) -> str:
        return (
            translate_label(kinds.get_kind(schedule.kind).label)
            if kinds.is_known(schedule.kind)
            else schedule.kind
        )

    @display(description=label("status"), ordering="status", label=STATUS_LABELS)
    def state(self, schedule: Schedule) -> tuple[str, str]:
        failing = schedule.failures and schedule.status == Schedule.Status.ACTIVE
        return "failing" if failing else schedule.status, self.is_now(schedule)

    @display(description=label("status"))
    def is_now(self, schedule: Schedule) -> str:
        words = schedule.get_status_display()
        return gettext("{status}, failing").format(status=words) if schedule.failures else words

    @display(description=label("when"))
    def when(self, schedule: Schedule) -> str:
        return descriptions.describe(schedule.timing)

    @display(description=label("next run"), ordering="next_at")
    def next_run(self, schedule: Schedule) -> str:
        return descriptions.moment(schedule.next_at, schedule.time_zone) if schedule.next_at else "—"

    @display(description=label("next runs"))
    def next_times(self, schedule: Schedule) -> str:
        occurrences = occurrences_of(schedule)
        return list_occurrences(occurrences) if occurrences else gettext("none")

    @display(description=label("next 31 days"))
    def next_month(self, schedule: Schedule) -> str:
        coming = queries.coming_of_schedule(schedule, clock.now() + timedelta(days=31))
        shown = coming.occurrences[:SHOWN_OF_MONTH]
        if not shown:
            return gettext("none")
        timing = schedule.timing
        more = (
            ""
            if coming.is_whole and len(coming.occurrences) <= SHOWN_OF_MONTH
            else gettext("The first {count}:").format(count=SHOWN_OF_MONTH)
        )
        occurrences = [occurrence(at, timing, schedule.due_at(at)) for at, _ in shown]
        return format_html("{}{}", more, list_occurrences(occurrences))

    @display(description=label("last runs"))
    def last_runs(self, schedule: Schedule) -> str:
        runs = list(schedule.runs.order_by("-id")[:SHOWN])
        rows = (
            (
                link(self, run, descriptions.moment(run.trigger_at, schedule.time_zone)),
                run.state_label,
                run.error,
            )
            for run in runs
        )
        return (
            format_html("<ul>{}</ul>", format_html_join("", "<li>{}: {} {}</li>", rows))
            if runs
            else gettext("none")
        )

    @display(description=label("payload"))
    def body(self, schedule: Schedule) -> str:
        """List the values of a job or a lead. The body of a request or a message is shown as it is sent."""
        form = FORMS.get(schedule.kind)
        return list_values(schedule.payload, form) if form else show_json(schedule.payload)

    @display(description=label("retries"))
    def retries(self, schedule: Schedule) -> str:
        return ", ".join(
            gettext("after {seconds} s").format(seconds=delay) for delay in schedule.retry_schedule_s
        ) or gettext("none")

    @display(description=label("excluded"))
    def excluded(self, schedule: Schedule) -> str:
        return ", ".join(schedule.timing.exclusions.names) or "—"

    @display(description=label("headers"))
    def header_names(self, schedule: Schedule) -> str:
        return ", ".join(sorted(schedule.headers or {})) or "—"

    # --- On several schedules ---
    @admin.action(description=_("Pause (no runs until resumed)"), permissions=["act"])
    def pause(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedules.pause_schedule, queryset, gettext("{count:,} paused."))

    @admin.action(description=_("Resume (runs during the pause are skipped)"), permissions=["act"])
    def resume(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedules.resume_schedule, queryset, gettext("{count:,} resumed."))

    @admin.action(description=_("Run now (adds one run)"), permissions=["act"])
    def run_now(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedules.run_now, queryset, gettext("{count:,} queued to run now."))

    @admin.action(description=_("Delete (cancels runs that haven't started)"), permissions=["act"])
    def remove(self, request: Any, queryset: QuerySet) -> None:
        apply_to_each(request, schedules.delete_schedule, queryset, gettext("{count:,} deleted."))

    # --- On one schedule ---
    @action(
        description=_("Pause"),
        permissions=["act"],
        dialog={"title": _("Pause this schedule?"), "description": _("It won't run until you resume it.")},
    )
    def pause_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedules.pause_schedule(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description=_("Resume"),
        permissions=["act"],
        dialog={
            "title": _("Resume this schedule?"),
            "description": _("Runs that fell within the pause are skipped."),
        },
    )
    def resume_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedules.resume_schedule(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description=_("Run now"),
        permissions=["act"],
        dialog={"title": _("Run now?"), "description": _("Adds one run. Its regular times don't change.")},
    )
    def run_this_now(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedules.run_now(int(object_id), actor=request.actor)
        return self.back_to(object_id)

    @action(
        description=_("Delete"),
        permissions=["act"],
        dialog={"title": _("Delete this schedule?"), "description": _("Runs that haven't started are canceled.")},
    )
    def remove_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        schedules.delete_schedule(int(object_id), actor=request.actor)
        return HttpResponse(headers={"HX-Redirect": reverse("admin:schedules_schedule_changelist")})
