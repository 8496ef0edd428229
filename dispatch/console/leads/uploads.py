"""A file of leads: CSV with a head, a line each. Bad lines are named, and the good ones kept."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_http_methods

from dispatch.console import web
from dispatch.console.web import console_view
from dispatch.core import spreadsheets
from dispatch.core.spreadsheets import BadFile
from dispatch.leads import bulk
from dispatch.leads.models import Campaign

LARGEST = 5 * 1024 * 1024
SHOWN = 100


@require_http_methods(["GET", "HEAD", "POST"])
@console_view
def upload(request: HttpRequest) -> HttpResponse:
    """Asks for the file; then says what became of each line."""
    campaigns = Campaign.objects.of(request.organization).order_by("-id")
    context: dict[str, Any] = {"current": "leads", "campaigns": campaigns, "fields": sorted(bulk.FIELDS)}
    if request.method != "POST":
        return web.page(
            request, "console/leads/upload.html", {**context, "chosen": request.GET.get("campaign", "")}
        )
    context["chosen"] = request.POST.get("campaign", "")
    try:
        campaign = campaigns.filter(code=context["chosen"]).select_related("organization").first()
        if campaign is None:
            raise BadFile("Choose a campaign.")
        lines = read(request.FILES.get("file"), request.organization.time_zone)
    except BadFile as error:
        return web.page(request, "console/leads/upload.html", {**context, "wrong": str(error)}, status=422)
    found = bulk.accept(campaign, [line for _, line in lines], actor=request.actor)
    bad = [row for row in found["results"] if "error" in row]
    context["bad"] = [{**row, "line": lines[row["line"] - 1][0]} for row in bad[:SHOWN]]
    return web.page(
        request,
        "console/leads/upload.html",
        {**context, "found": found, "campaign": campaign, "more": len(bad) - SHOWN},
    )


def read(file: Any, zone: str) -> list[tuple[int, dict[str, Any]]]:
    """The file's lines as `bulk` takes them, with their numbers. Times without a zone are the organization's.
    Raises BadFile."""
    rows = spreadsheets.rows_of(spreadsheets.as_text(file, largest=LARGEST), needs="phone", most=bulk.MOST)
    return [(number, _line(row, zone)) for number, row in rows]


def _line(row: dict[str, str], zone: str) -> dict[str, Any]:
    """A line: the columns we know, all others as its data."""
    found: dict[str, Any] = {}
    data: dict[str, str] = {}
    for key, text in row.items():
        if not text:
            continue
        if key in ("lat", "lng"):
            found[key] = _number(text)
        elif key == "due_at":
            found[key] = _moment(text, zone)
        elif key in bulk.FIELDS:
            found[key] = text
        elif key:
            data[key] = text
    return {**found, "data": data} if data else found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # `bulk` says what is wrong with it


def _moment(text: str, zone: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return (moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))).isoformat()
