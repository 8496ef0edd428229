"""A file of leads: CSV with a head, a line each. Bad lines are named, and the good ones kept."""

from __future__ import annotations

import csv
import io
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_http_methods

from dispatch.console import web
from dispatch.console.web import console_view
from dispatch.leads import bulk
from dispatch.leads.models import Campaign

LARGEST = 5 * 1024 * 1024
SHOWN = 100


class BadFile(ValueError):
    """What is wrong with the file as a whole, for a person to read."""


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
    found = bulk.accept(campaign, lines, actor=request.actor)
    bad = [row for row in found["results"] if "error" in row]
    # a line of the file counts its head
    context["bad"] = [{**row, "line": row["line"] + 1} for row in bad[:SHOWN]]
    return web.page(
        request,
        "console/leads/upload.html",
        {**context, "found": found, "campaign": campaign, "more": len(bad) - SHOWN},
    )


def read(file: Any, zone: str) -> list[dict[str, Any]]:
    """The file's lines as `bulk` takes them. Times without a zone are the organization's. Raises BadFile."""
    if file is None:
        raise BadFile("Choose a file.")
    if file.size > LARGEST:
        raise BadFile(f"The file is larger than {LARGEST // 1024 // 1024} MB. Split it.")
    try:
        text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadFile("The file is not UTF-8 text. Save it as CSV in UTF-8.") from None
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        if "phone" not in [(name or "").strip().lower() for name in rows.fieldnames or ()]:
            raise BadFile("The first line names the columns, and one of them must be phone.")
        lines = [_line(row, zone) for row in rows]
    except csv.Error as error:
        raise BadFile(f"The file is no CSV (line {rows.line_num}): {error}.") from None
    if not lines:
        raise BadFile("The file has no line below its head.")
    if len(lines) > bulk.MOST:
        raise BadFile(f"The file has {len(lines):,} lines; {bulk.MOST:,} are taken at once. Split it.")
    return lines


def _line(row: dict[Any, Any], zone: str) -> dict[str, Any]:
    """A line: the columns we know, all others as its data."""
    found: dict[str, Any] = {}
    data: dict[str, str] = {}
    for name, value in row.items():
        key = str(name or "").strip().lower()
        text = value.strip() if isinstance(value, str) else ""
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
