"""The admin's home page: today's figures, each with a link to its list."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext

from accounts.models import Membership, Organization
from dispatch.console.admin_charts import Chart, bar_chart, line_chart
from dispatch.console.health import count_lines
from dispatch.console.reports.statistics import build_report
from dispatch.console.templatetags.console import percent, seconds
from dispatch.core import clock, languages
from dispatch.jobs.models import Job
from dispatch.leads.models import Lead
from dispatch.outbox.models import Message
from dispatch.schedules.models import Run
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call

DAYS = 7


@dataclass(frozen=True)
class Card:
    """One figure: value, caption, link and tone. A tone marks a figure that needs attention."""

    title: str
    figure: str
    below: str
    link: str
    tone: str = ""


def dashboard_context(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add today's cards and the week's charts for members of an organization. Unfold's callback."""
    organization = getattr(request, "organization", None)
    if organization is None or getattr(request, "role", "") not in Membership.Role.values:
        return context
    return {**context, "cards": cards(organization), "charts": charts(organization), "home_of": organization}


def cards(organization: Organization) -> list[Card]:
    """Return today's cards, in the organization's time zone."""
    zone = ZoneInfo(organization.time_zone)
    today = clock.now().astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    day = build_report(organization, today.date(), today.date()).total
    attention = Job.objects.of(organization).needing_attention().count()
    calls = Call.objects.of(organization)
    lines, in_use = count_lines(organization)
    trouble = calls.filter(requested_at__gte=today, status__in=["lost", "failed", "rejected", "unknown"]).count()
    errors = Message.objects.of(organization).filter(status="ERROR").count()
    failed = Run.objects.of(organization).filter(status="failed", ended_at__gte=today - timedelta(days=1)).count()
    leads = Lead.objects.of(organization).filter(status="backlog", reason="", due_at__lte=clock.now()).count()
    active = Technician.objects.of(organization).filter(is_active=True)
    on_duty = active.filter(on_duty=True).count()
    return [
        Card(
            gettext("Jobs today"),
            f"{day.jobs:,}",
            gettext("{assigned:,} assigned").format(assigned=day.assigned),
            _list("jobs_job"),
        ),
        Card(
            gettext("Needs attention"),
            f"{attention:,}",
            gettext("pending, late or paused"),
            _list("jobs_job", needs="attention"),
            "attention" if attention else "",
        ),
        Card(
            gettext("Time to assign"), seconds(day.median_s), gettext("today's median"), reverse("console:reports")
        ),
        Card(
            gettext("Acceptance"),
            percent(day.acceptance),
            gettext("of today's offers"),
            reverse("console:reports"),
        ),
        Card(
            gettext("Technicians on duty"),
            f"{on_duty:,}",
            gettext("of {count:,}").format(count=active.count()),
            _list("technicians_technician"),
        ),
        Card(
            gettext("Lines in use"),
            gettext("{in_use:,} of {lines:,}").format(in_use=in_use, lines=lines),
            gettext("{trouble:,} failed calls today").format(trouble=trouble),
            _list("telephony_call"),
            "late" if trouble else "",
        ),
        Card(gettext("Leads due"), f"{leads:,}", gettext("waiting for a line"), reverse("console:leads")),
        Card(
            gettext("Failed messages"),
            f"{errors:,}",
            gettext("{failed:,} failed runs since yesterday").format(failed=failed),
            _list("outbox_message", status__exact="ERROR"),
            "attention" if errors or failed else "",
        ),
    ]


def charts(organization: Organization) -> list[Chart]:
    """Return the charts of the last seven days."""
    today = clock.now().astimezone(ZoneInfo(organization.time_zone)).date()
    days = build_report(organization, today - timedelta(days=DAYS - 1), today).days
    names = [languages.date_words(figures.day) if figures.day else figures.name for figures in days]
    waits = [
        (gettext("median"), "calling", [figures.median_s for figures in days]),
        (gettext("90th pct."), "late", [figures.p90_s for figures in days]),
    ]
    return [
        bar_chart(gettext("Jobs"), names, [figures.jobs for figures in days], lambda value: f"{value:g}"),
        line_chart(gettext("Time to assign"), names, waits, lambda value: seconds(value), times=True),
    ]


def _list(name: str, **query: str) -> str:
    address = reverse(f"admin:{name}_changelist")
    return f"{address}?{urlencode(query)}" if query else address
