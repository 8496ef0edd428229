"""The pages of schedules and their runs, and the actions on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from rest_framework.exceptions import APIException

from dispatch.console import views_base
from dispatch.console.schedules import calendar
from dispatch.console.views_base import console_view
from dispatch.core.api import idempotency
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.schedules import kinds, timeline
from dispatch.schedules.api.timings import occurrences_of
from dispatch.schedules.models import Run, RunStatus, Schedule
from dispatch.schedules.rules import descriptions
from dispatch.schedules.services import actions, backfill, schedules
from dispatch.schedules.services.admission import explain_wait, read_use

PAGE, REPORTS_SHOWN, FAILING_SHOWN = 50, 50, 10
VIEWS = (
    ("coming", mark("Upcoming")), ("calendar", mark("Calendar")), ("runs", mark("Runs")),
    ("all", mark("All schedules")),
)  # fmt: skip
TONES = {
    "scheduled": "waiting", "in_progress": "calling", "running": "calling", "retrying": "late",
    "succeeded": "good", "failed": "attention", "skipped": "off", "missed": "late", "cancelled": "off",
}  # fmt: skip
# The filter of schedules whose last run failed, and its label.
FAILING = ("failing", mark("Failing"))
_STATES = {"active": "waiting", "paused": "late", "ended": "good", "deleted": "off"}
ACTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "run-now": (schedules.run_now, mark("Run queued.")),
    "pause": (schedules.pause_schedule, mark("Schedule paused. It won't run until you resume it.")),
    "resume": (schedules.resume_schedule, mark("Schedule resumed. Runs that fell within the pause are skipped.")),
    "delete": (schedules.delete_schedule, mark("Schedule deleted. Runs that hadn't started are canceled.")),
}
RUN_ACTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "retry": (actions.retry_run, mark("Retry queued.")),
    "run-missed": (backfill.run_missed, mark("Runs queued.")),
    "cancel": (
        actions.cancel_run,
        mark("Run canceled. If it is in progress, it ends once its worker has stopped."),
    ),
}


@require_GET
@console_view
def overview(request: HttpRequest) -> HttpResponse:
    """Render upcoming runs, the calendar, past runs, or all schedules, by `?view=`."""
    view = request.GET.get("view", "coming")
    if view not in dict(VIEWS):
        view = "coming"
    context: dict[str, Any] = {"current": "schedules", "view": view, "views": VIEWS, "kinds": kinds.all_kinds()}
    failing = _failing(Schedule.objects.of(request.organization))
    context["failing"] = [
        describe_schedule(schedule) for schedule in failing.order_by("-failures", "-pk")[:FAILING_SHOWN]
    ]
    context["failing_count"] = failing.count()
    context["failing_more"] = context["failing_count"] - len(context["failing"])
    if view == "calendar":
        context["month"] = calendar.month_of(request.organization, request.GET.get("month", ""))
    elif view == "runs":
        context |= _runs(request)
    else:
        context |= _schedules(request, view)
    return views_base.render_page(request, "console/schedules/overview.html", context)


@require_GET
@console_view
def detail(request: HttpRequest, schedule_id: int) -> HttpResponse:
    """Render one schedule: timing, next times, runs and history."""
    return _page_of(request, schedule_of(request, schedule_id))


@require_http_methods(["GET", "POST"])
@console_view
def act_on_schedule(request: HttpRequest, schedule_id: int, action: str) -> HttpResponse:
    """Run a schedule now, pause, resume or delete it. Deleting asks for confirmation first."""
    schedule = schedule_of(request, schedule_id)
    if action not in ACTIONS:
        raise Http404
    if request.method == "GET":
        return _page_of(request, schedule, asks=action)
    do, notice = ACTIONS[action]
    return _perform(request, do, schedule.pk, notice, reverse("console:schedule", args=[schedule.pk]))


@require_GET
@console_view
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """Render one run: its attempts and its log."""
    row = _run(request, run_id)
    context = {
        "current": "schedules",
        "nonce": uuid4(),
        "run": row,
        "waiting_reason": explain_wait(
            row, read_use([row.concurrency_limit_id]).get(row.concurrency_limit_id or 0)
        ),
        "tone": TONES[row.status],
        "stands_for": f"{row.stretch_count:,}",
        "most": backfill.MAX_BACKFILL,
        "is_runnable": row.status in ("missed", "skipped")
        and row.stretch_count <= backfill.MAX_BACKFILL
        and row.schedule.status != "deleted",
        "is_cancelable": row.status in ("in_progress", "retrying")
        or (row.status == "scheduled" and row.number is None)
        or (row.status == "running" and row.cancel_requested_at is None),
        "reports": list(row.reports.order_by("-epoch")[:REPORTS_SHOWN]),
        "report_tones": {"succeeded": "good", "failed": "late", "refused": "attention"},
        "entries": list(reversed(timeline.of_run(row))),
        "created": _created(row),
        "payload": "" if row.payload is None else json.dumps(row.payload, indent=2, ensure_ascii=False),
    }
    return views_base.render_page(request, "console/schedules/run.html", context)


@require_POST
@console_view
def act_on_run(request: HttpRequest, run_id: int, action: str) -> HttpResponse:
    """Retry a failed run, or cancel a waiting run."""
    target = _run(request, run_id)
    if action not in RUN_ACTIONS:
        raise Http404
    do, notice = RUN_ACTIONS[action]
    return _perform(request, do, target.pk, notice, reverse("console:schedule_run", args=[target.pk]))


def describe_schedule(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as lists show it."""
    tone = "attention" if schedule.failures and schedule.status == "active" else _STATES[schedule.status]
    state = FAILING[1] if tone == "attention" else schedule.get_status_display()
    return {
        "row": schedule,
        "tone": tone,
        "state": state,
        "when": descriptions.describe(schedule.timing),
        "summary": kinds.get_kind(schedule.kind).summary(schedule.payload)
        if kinds.is_known(schedule.kind)
        else "",
        "next": descriptions.moment(schedule.next_at, schedule.time_zone) if schedule.next_at else "",
    }


def perform_once(request: HttpRequest, do: Callable[[], int]) -> tuple[int, bool]:
    """Do what the form asks, once per nonce of the form. Return the id from `do`, and whether it was done before.

    Without a nonce (a page of an earlier release), it is done each time. Raises KeyReused if the form was sent
    before with other values.
    """
    nonce = request.POST.get("nonce", "")
    key = nonce if idempotency.is_valid_key(nonce) else ""
    values = {name: given for name, given in request.POST.lists() if name not in ("nonce", "csrfmiddlewaretoken")}
    _code, answer, is_repeat = idempotency.run_once(
        request.organization.pk, request.path, key, values, lambda: (200, {"id": do()})
    )
    return answer["id"], is_repeat


def _perform(request: HttpRequest, do: Callable[..., Any], pk: int, notice: str, back: str) -> HttpResponse:
    def act() -> int:
        do(pk, actor=request.actor)
        return pk

    try:
        _pk, is_repeat = perform_once(request, act)
        messages.success(
            request, _("Already queued. To run it again, press the button again.") if is_repeat else _(notice)
        )
    except APIException as error:
        messages.warning(request, _(str(error.detail)))
    return views_base.back_to(request, back)


def schedule_of(request: HttpRequest, schedule_id: int) -> Schedule:
    """Return the organization's schedule. Raise Http404 for one of another organization."""
    schedule: Schedule = get_object_or_404(Schedule.objects.of(request.organization), pk=schedule_id)
    return schedule


def _run(request: HttpRequest, run_id: int) -> Run:
    run: Run = get_object_or_404(Run.objects.of(request.organization).select_related("schedule"), pk=run_id)
    return run


def _page_of(request: HttpRequest, schedule: Schedule, asks: str = "") -> HttpResponse:
    last = list(schedule.runs.order_by("-id")[:PAGE])
    zone = schedule.time_zone
    context = {
        "current": "schedules",
        "nonce": uuid4(),
        "schedule": describe_schedule(schedule),
        "asks": asks,
        "times": occurrences_of(schedule),
        "runs": [_describe_run(run, zone) for run in last],
        "entries": list(reversed(timeline.of_schedule(schedule)))[:PAGE],
        "waiting": schedule.runs.filter(status__in=[RunStatus.IN_PROGRESS, RunStatus.RETRYING]).count(),
        "headers": sorted(schedule.headers or {}),
    }
    return views_base.render_page(request, "console/schedules/detail.html", context)


def _failing(schedules: QuerySet[Schedule]) -> QuerySet[Schedule]:
    """Return the active schedules whose last run failed."""
    return schedules.filter(failures__gt=0, status="active")


def _schedules(request: HttpRequest, view: str) -> dict[str, Any]:
    """Return the context of the upcoming schedules by local day, or of all, newest first; filtered."""
    rows: QuerySet = Schedule.objects.of(request.organization)
    kind, name, status = (request.GET.get(key, "").strip() for key in ("kind", "name", "status"))
    rows = rows.filter(kind=kind) if kind else rows
    rows = rows.filter(name__icontains=name) if name else rows
    if view == "coming":
        rows = rows.filter(status="active", next_at__isnull=False).order_by("next_at", "pk")
    elif status == FAILING[0]:
        rows = _failing(rows).order_by("-pk")
    else:
        rows = rows.filter(status=status) if status else rows.exclude(status="deleted")
        rows = rows.order_by("-pk")
    page = _page_number(request)
    page_rows = list(rows[(page - 1) * PAGE : page * PAGE + 1])
    listed = [describe_schedule(schedule) for schedule in page_rows[:PAGE]]
    zone = ZoneInfo(request.organization.time_zone)
    days = (
        [
            (day, list(group))
            for day, group in groupby(listed, lambda schedule: schedule["row"].next_at.astimezone(zone).date())
        ]
        if view == "coming"
        else []
    )
    return {
        "days": days, "schedules": listed, "page": page, "has_more": len(page_rows) > PAGE, "name": name,
        "kind": kind, "status": status, "statuses": [FAILING, *Schedule.Status.choices],
        "filtered": bool(kind or name or status),
    }  # fmt: skip


def _runs(request: HttpRequest) -> dict[str, Any]:
    rows: QuerySet = Run.objects.of(request.organization).select_related("schedule").exclude(status="scheduled")
    kind, status = (request.GET.get(key, "").strip() for key in ("kind", "status"))
    rows = rows.filter(kind=kind) if kind else rows
    rows = rows.filter(status=status) if status in RunStatus.values else rows
    page = _page_number(request)
    page_rows = list(rows.order_by("-pk")[(page - 1) * PAGE : page * PAGE + 1])
    listed = [_describe_run(run, run.schedule.time_zone) for run in page_rows[:PAGE]]
    return {
        "runs": listed, "page": page, "has_more": len(page_rows) > PAGE, "kind": kind, "status": status,
        "statuses": RunStatus.choices[1:], "filtered": bool(kind or status),
    }  # fmt: skip


def _describe_run(run: Run, zone: str) -> dict[str, Any]:
    """Return a run as lists show it; `more` occurrences until `last` belong to its stretch."""
    last = descriptions.moment(run.stretch_last_at, zone) if run.stretch_last_at else ""
    return {
        "row": run,
        "tone": TONES[run.status],
        "at": descriptions.moment(run.trigger_at, zone),
        "last": last,
        "more": f"{run.stretch_count - 1:,}",
    }


def _page_number(request: HttpRequest) -> int:
    return min(max(1, read_id(request.GET.get("page", "")) or 1), 10_000)


_CREATED = {
    "submission": mark("submission {id}"), "message": mark("message {id}"), "lead": mark("lead {id}"),
}  # fmt: skip


def _created(row: Run) -> dict[str, str] | None:
    """Return the row that the run created and the URL of its page, or None if it created none."""
    result = row.result if isinstance(row.result, dict) else {}
    pages = {
        "submission": "admin:jobs_submission_change", "message": "admin:outbox_message_change",
        "lead": "admin:leads_lead_change",
    }  # fmt: skip
    for name, address in pages.items():
        if pk := result.get(name):
            return {"words": _(_CREATED[name]).format(id=pk), "address": reverse(address, args=[pk])}
    return None
