"""Upload a CSV file of leads: a header, then one lead per row. Valid rows are added; invalid rows are reported."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_http_methods

from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.core import csv_files
from dispatch.core.api.problems import LimitReached
from dispatch.core.csv_files import BadFile
from dispatch.core.languages import gettext as _
from dispatch.leads import bulk_intake
from dispatch.leads.models import Campaign

MAX_FILE_BYTES = 5 * 1024 * 1024
MAX_SHOWN = 100
MAX_TEXT_SHOWN = 40


@require_http_methods(["GET", "HEAD", "POST"])
@console_view
def upload_view(request: HttpRequest) -> HttpResponse:
    """Show the form, then the result of each row."""
    campaigns = Campaign.objects.of(request.organization).order_by("-id")
    context: dict[str, Any] = {"current": "leads", "campaigns": campaigns, "fields": sorted(bulk_intake.FIELDS)}
    if request.method != "POST":
        return views_base.render_page(
            request, "console/leads/upload.html", {**context, "chosen": request.GET.get("campaign", "")}
        )
    context["chosen"] = request.POST.get("campaign", "")
    try:
        campaign = campaigns.filter(code=context["chosen"]).select_related("organization").first()
        if campaign is None:
            raise BadFile(_("Choose a campaign."))
        lines = read_rows(request.FILES.get("file"), request.organization.time_zone)
        result = bulk_intake.accept_entries(campaign, [line for _, line in lines], actor=request.actor)
    except (BadFile, LimitReached) as error:
        return views_base.render_page(
            request, "console/leads/upload.html", {**context, "wrong": _(str(error))}, status=422
        )
    bad = [row for row in result["results"] if "error" in row]
    context["bad"] = [_bad_line(row, *lines[row["line"] - 1]) for row in bad[:MAX_SHOWN]]
    return views_base.render_page(
        request,
        "console/leads/upload.html",
        {**context, "found": result, "campaign": campaign, "more": len(bad) - MAX_SHOWN},
    )


def _bad_line(row: dict[str, Any], number: int, line: dict[str, Any]) -> dict[str, Any]:
    """Return a rejected row with its number in the file and the rejected text."""
    text = str(line.get(row["field"], ""))
    shown = text if len(text) <= MAX_TEXT_SHOWN else f"{text[:MAX_TEXT_SHOWN]}…"
    return {**row, "line": number, "text": "" if row["field"] == "data" else shown}


def read_rows(file: Any, zone: str) -> list[tuple[int, dict[str, Any]]]:
    """Read the file's rows in the form that `bulk_intake` expects, with their numbers.

    Times without a zone are in the organization's time zone. Raises BadFile.
    """
    rows = csv_files.read_rows(
        csv_files.as_text(file, largest=MAX_FILE_BYTES), needs="phone", most=bulk_intake.MAX_ENTRIES
    )
    return [(number, _parse_row(row, zone)) for number, row in rows]


def _parse_row(row: dict[str, str], zone: str) -> dict[str, Any]:
    """Parse a row: known columns, and all others as its data."""
    fields: dict[str, Any] = {}
    data: dict[str, str] = {}
    for key, text in row.items():
        if not text:
            continue
        if key in ("lat", "lng"):
            fields[key] = _number(text)
        elif key in ("due_at", "consent_at"):
            fields[key] = _moment(text, zone)
        elif key in bulk_intake.FIELDS:
            fields[key] = text
        elif key:
            data[key] = text
    return {**fields, "data": data} if data else fields


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # `bulk_intake` reports the error


def _moment(text: str, zone: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return (moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))).isoformat()
