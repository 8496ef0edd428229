"""The timeline: technicians by time, with their shifts and jobs, and the unassigned jobs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET

from dispatch.console import views_base
from dispatch.console.board import job_panel, technician_picker
from dispatch.console.timeline import plan
from dispatch.console.views_base import console_view
from dispatch.core import clock
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.jobs.reasons import translate_reason

# Days from today that can be shown.
FARTHEST = 366


@require_GET
@console_view
def show_timeline(request: HttpRequest) -> HttpResponse:
    """Render one day (`day`, default today) or the week that begins with it (`days=7`).

    `who` is part of the technicians' names. For htmx, render only the chart.
    """
    organization = request.organization
    today = clock.now().astimezone(ZoneInfo(organization.time_zone)).date()
    first = _read_day(request.GET.get("day", ""), today)
    count = 7 if request.GET.get("days") == "7" else 1
    who = request.GET.get("who", "").strip()[:80]
    days, hidden = plan.load_days(organization, first, count, who)
    context: dict[str, Any] = {
        "current": "board",
        "days": days,
        "one": days[0] if count == 1 else None,
        "week": _by_technician(days) if count > 1 else [],
        "unassigned": plan.load_unassigned(organization, first, first + timedelta(days=count)),
        "nothing_unassigned": _describe_no_unassigned(count, has_today=any(day.is_today for day in days)),
        "hidden": hidden,
        "who": who,
        "first": first,
        "last": first + timedelta(days=count - 1),
        "today": today,
        "before": first - timedelta(days=count),
        "after": first + timedelta(days=count),
        "count": count,
    }
    if views_base.is_fragment(request):
        return views_base.render_fragment(request, "console/timeline/_chart.html", context)
    if (job_id := read_id(request.GET.get("job"))) is not None:
        context |= job_panel.build_panel(request, job_panel.job_of(request, job_id))
    return views_base.render_page(request, "console/timeline/timeline.html", context)


@require_GET
@console_view
def check_drop(request: HttpRequest, job_id: int) -> HttpResponse:
    """Return as JSON why technicians should not get the job: `DropWarnings`.

    `others` is for technicians who are too far away to be considered, or "" if the job has no position.
    """
    found = technician_picker.find_warnings(job_panel.job_of(request, job_id))
    warnings = {technician: translate_reason(words) for technician, words in found.warnings.items()}
    return JsonResponse({**asdict(found), "warnings": warnings, "others": translate_reason(found.others)})


def _describe_no_unassigned(count: int, *, has_today: bool) -> str:
    """Say what an empty list of unassigned jobs means. Jobs without an arrival window are only listed today."""
    if count == 1:
        if has_today:
            return _("Every job for today has a technician.")
        return _("No unassigned job has an arrival window on this day.")
    if has_today:
        return _("Every job for this week has a technician.")
    return _("No unassigned job has an arrival window in this week.")


def _read_day(given: str, today: date) -> date:
    """Return the day of the query. An invalid one, or one too far away, is today."""
    try:
        day = date.fromisoformat(given)
    except ValueError:
        return today
    return day if abs((day - today).days) <= FARTHEST else today


def _by_technician(days: list[plan.Day]) -> list[dict[str, Any]]:
    """Return for each technician the rows of all days."""
    return [
        {"technician": row.technician, "cells": [(day, day.rows[nth]) for day in days]}
        for nth, row in enumerate(days[0].rows)
    ]
