"""The pages of schedules and their runs, and what people do there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from rest_framework.exceptions import APIException

from dispatch.console import web
from dispatch.console.schedules import calendar, forms
from dispatch.console.web import console_view
from dispatch.core.ids import read_id
from dispatch.core.problems import Conflict
from dispatch.schedules import history, kinds
from dispatch.schedules.models import Run, RunStatus, Schedule
from dispatch.schedules.rules import words
from dispatch.schedules.serializers import occurrences_of
from dispatch.schedules.services import by_hand, managing

PAGE = 50
VIEWS = (("coming", "Coming"), ("calendar", "Calendar"), ("runs", "Runs"), ("all", "All schedules"))
TONES = {
    "scheduled": "waiting", "in_progress": "calling", "running": "calling", "retrying": "late",
    "succeeded": "good", "failed": "attention", "skipped": "off", "missed": "late", "cancelled": "off",
}  # fmt: skip
_STATES = {"active": "waiting", "paused": "off", "ended": "good", "deleted": "off"}
ACTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "run-now": (managing.run_now, "It runs now."),
    "pause": (managing.pause, "Paused: nothing runs until it is resumed."),
    "resume": (managing.resume, "Resumed: what fell into the pause is skipped."),
    "delete": (managing.delete, "Deleted: what had not started is cancelled."),
}
RUN_ACTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "retry": (by_hand.retry, "It is tried once more."),
    "cancel": (by_hand.cancel, "Cancelled."),
}


@require_GET
@console_view
def overview(request: HttpRequest) -> HttpResponse:
    """What comes next, the calendar, what ran, and all schedules, by `?view=`."""
    view = request.GET.get("view", "coming")
    if view not in dict(VIEWS):
        view = "coming"
    context: dict[str, Any] = {"current": "schedules", "view": view, "views": VIEWS, "kinds": kinds.all_kinds()}
    context["failing"] = [
        shown(one)
        for one in Schedule.objects.of(request.organization).filter(failures__gt=0, status="active")[:10]
    ]
    if view == "calendar":
        context["month"] = calendar.month_of(request.organization, request.GET.get("month", ""))
    elif view == "runs":
        context |= _runs(request)
    else:
        context |= _schedules(request, view)
    return web.page(request, "console/schedules/overview.html", context)


@require_GET
@console_view
def detail(request: HttpRequest, schedule_id: int) -> HttpResponse:
    """One schedule: when, its next times, its runs, what happened to it."""
    return _page_of(request, _schedule(request, schedule_id))


@require_http_methods(["GET", "POST"])
@console_view
def new(request: HttpRequest) -> HttpResponse:
    """The form; `?kind=` says of what."""
    kind = request.POST.get("kind") or request.GET.get("kind") or "submission"
    if kind not in forms.PAYLOADS:
        raise Http404
    if request.method == "GET":
        return _form(request, forms.empty(request, kind))
    form = forms.posted(request, kind)
    if "preview" in request.POST:
        return _form(request, form, preview=form.preview())
    if not form.is_valid():
        return _form(request, form, status=422)
    made = managing.create(request.organization.pk, form.cleaned, actor=request.actor)
    messages.success(request, "The schedule is made.")
    return web.back_to(request, reverse("console:schedule", args=[made.pk]))


@require_http_methods(["GET", "POST"])
@console_view
def edit(request: HttpRequest, schedule_id: int) -> HttpResponse:
    """The form of a schedule that is there."""
    schedule = _schedule(request, schedule_id)
    if request.method == "GET":
        form = forms.of_schedule(request, schedule)
        return _form(request, form, preview=form.preview())
    form = forms.posted(request, schedule.kind, schedule)
    if "preview" in request.POST:
        return _form(request, form, preview=form.preview())
    if not form.is_valid():
        return _form(request, form, status=422)
    version = read_id(request.POST.get("version", ""))
    try:
        managing.change(schedule.pk, form.cleaned, actor=request.actor, version=version)
    except Conflict as error:
        form.errors[""] = str(error.detail)
        return _form(request, form, status=409)
    messages.success(request, "Changed.")
    return web.back_to(request, reverse("console:schedule", args=[schedule.pk]))


@require_POST
@console_view
def preview(request: HttpRequest) -> HttpResponse:
    """The next ten times of the timing in the form, for htmx."""
    pk = read_id(request.POST.get("schedule", ""))
    schedule = None if pk is None else _schedule(request, pk)
    form = forms.posted(request, request.POST.get("kind", ""), schedule)
    found = form.preview()
    return web.fragment(request, "console/schedules/_preview.html", {"preview": found, "form": form})


@require_http_methods(["GET", "POST"])
@console_view
def act(request: HttpRequest, schedule_id: int, action: str) -> HttpResponse:
    """Run now, pause, resume; delete asks first."""
    schedule = _schedule(request, schedule_id)
    if action not in ACTIONS:
        raise Http404
    if request.method == "GET":
        return _page_of(request, schedule, asks=action)
    do, said = ACTIONS[action]
    return _do(request, do, schedule.pk, said, reverse("console:schedule", args=[schedule.pk]))


@require_GET
@console_view
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """One run: what came of each attempt, and its log."""
    found = _run(request, run_id)
    context = {
        "current": "schedules",
        "run": found,
        "tone": TONES[found.status],
        "is_waiting": found.status in ("in_progress", "retrying"),
        "reports": list(found.reports.order_by("-epoch")),
        "report_tones": {"succeeded": "good", "failed": "late", "refused": "attention"},
        "entries": list(reversed(history.of_run(found))),
        "created": _created(found),
    }
    return web.page(request, "console/schedules/run.html", context)


@require_POST
@console_view
def act_on_run(request: HttpRequest, run_id: int, action: str) -> HttpResponse:
    found = _run(request, run_id)
    if action not in RUN_ACTIONS:
        raise Http404
    do, said = RUN_ACTIONS[action]
    return _do(request, do, found.pk, said, reverse("console:schedule_run", args=[found.pk]))


def shown(schedule: Schedule) -> dict[str, Any]:
    """A schedule as lists show it."""
    tone = "attention" if schedule.failures and schedule.status == "active" else _STATES[schedule.status]
    state = "Failing" if tone == "attention" else schedule.get_status_display()
    return {
        "row": schedule,
        "tone": tone,
        "state": state,
        "when": words.describe(schedule.timing),
        "what": kinds.get(schedule.kind).summary(schedule.payload) if kinds.is_known(schedule.kind) else "",
        "next": words.moment(schedule.next_at, schedule.time_zone) if schedule.next_at else "",
    }


def _do(request: HttpRequest, do: Callable[..., Any], pk: int, said: str, back: str) -> HttpResponse:
    try:
        do(pk, actor=request.actor)
        messages.success(request, said)
    except APIException as error:
        messages.warning(request, str(error.detail))
    return web.back_to(request, back)


def _schedule(request: HttpRequest, schedule_id: int) -> Schedule:
    found: Schedule = get_object_or_404(Schedule.objects.of(request.organization), pk=schedule_id)
    return found


def _run(request: HttpRequest, run_id: int) -> Run:
    found: Run = get_object_or_404(Run.objects.of(request.organization).select_related("schedule"), pk=run_id)
    return found


def _page_of(request: HttpRequest, schedule: Schedule, asks: str = "") -> HttpResponse:
    last = list(schedule.runs.order_by("-id")[:PAGE])
    zone = schedule.time_zone
    context = {
        "current": "schedules",
        "one": shown(schedule),
        "asks": asks,
        "times": occurrences_of(schedule),
        "runs": [
            {"row": one, "tone": TONES[one.status], "at": words.moment(one.trigger_at, zone)} for one in last
        ],
        "entries": list(reversed(history.of_schedule(schedule)))[:PAGE],
        "waiting": schedule.runs.filter(status__in=[RunStatus.IN_PROGRESS, RunStatus.RETRYING]).count(),
        "headers": sorted(schedule.headers or {}),
    }
    return web.page(request, "console/schedules/detail.html", context)


def _form(
    request: HttpRequest, form: forms.ScheduleForm, *, preview: dict[str, Any] | None = None, status: int = 200
) -> HttpResponse:
    context = {"current": "schedules", "form": form, "preview": preview, **forms.offered()}
    return web.page(request, "console/schedules/form.html", context, status=status)


def _schedules(request: HttpRequest, view: str) -> dict[str, Any]:
    """The next to run, by local day; or all, the newest first. Both narrowed by kind and name."""
    rows: QuerySet = Schedule.objects.of(request.organization)
    kind, name, status = (request.GET.get(key, "").strip() for key in ("kind", "name", "status"))
    rows = rows.filter(kind=kind) if kind else rows
    rows = rows.filter(name__icontains=name) if name else rows
    if view == "coming":
        rows = rows.filter(status="active", next_at__isnull=False).order_by("next_at", "pk")
    else:
        rows = rows.filter(status=status) if status else rows.exclude(status="deleted")
        rows = rows.order_by("-pk")
    page = _page_number(request)
    found = list(rows[(page - 1) * PAGE : page * PAGE + 1])
    listed = [shown(one) for one in found[:PAGE]]
    zone = ZoneInfo(request.organization.time_zone)
    days = (
        [
            (day, list(ones))
            for day, ones in groupby(listed, lambda one: one["row"].next_at.astimezone(zone).date())
        ]
        if view == "coming"
        else []
    )
    return {
        "days": days, "schedules": listed, "page": page, "has_more": len(found) > PAGE, "name": name, "kind": kind,
        "status": status, "statuses": Schedule.Status.choices, "filtered": bool(kind or name or status),
    }  # fmt: skip


def _runs(request: HttpRequest) -> dict[str, Any]:
    rows: QuerySet = Run.objects.of(request.organization).select_related("schedule").exclude(status="scheduled")
    kind, status = (request.GET.get(key, "").strip() for key in ("kind", "status"))
    rows = rows.filter(kind=kind) if kind else rows
    rows = rows.filter(status=status) if status in RunStatus.values else rows
    page = _page_number(request)
    found = list(rows.order_by("-pk")[(page - 1) * PAGE : page * PAGE + 1])
    listed = [
        {"row": one, "tone": TONES[one.status], "at": words.moment(one.trigger_at, one.schedule.time_zone)}
        for one in found[:PAGE]
    ]
    return {
        "runs": listed, "page": page, "has_more": len(found) > PAGE, "kind": kind, "status": status,
        "statuses": RunStatus.choices[1:], "filtered": bool(kind or status),
    }  # fmt: skip


def _page_number(request: HttpRequest) -> int:
    return min(max(1, read_id(request.GET.get("page", "")) or 1), 10_000)


def _created(found: Run) -> dict[str, str] | None:
    """What the run made, with its address where there is a page for it."""
    result = found.result if isinstance(found.result, dict) else {}
    pages = {
        "submission": "admin:jobs_submission_change", "message": "admin:outbox_message_change",
        "lead": "admin:leads_lead_change",
    }  # fmt: skip
    for name, address in pages.items():
        if pk := result.get(name):
            return {"words": f"{name} {pk}", "address": reverse(address, args=[pk])}
    return None
