"""The kinds of reports: their address, their title, and the function that builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accounts.models import Organization
from dispatch.console.reports import calls, customers, hours, overview, technicians
from dispatch.console.reports.pages import Filters, Report
from dispatch.console.reports.periods import Period
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.jobs.models import ServiceType
from dispatch.telephony.models import Call

OVERVIEW = "overview"


@dataclass(frozen=True)
class ReportKind:
    """A kind of report. `slug` is its address, and its name in subscriptions. `tab`: its label among the others.

    `nothing` is the heading of the page without data, and `hint` says what would be there.
    """

    slug: str
    title: str
    tab: str
    build: Callable[[Organization, Period, Filters], Report]
    nothing: str
    hint: str

    @property
    def heading(self) -> str:
        """The title in the active language."""
        return _(self.title)

    @property
    def is_overview(self) -> bool:
        return self.slug == OVERVIEW


_JOBS = mark("Choose a longer period or another service. Figures appear once the first job comes in.")
KINDS = {
    kind.slug: kind
    for kind in (
        ReportKind(
            OVERVIEW, mark("Overview of jobs"), mark("Overview"), overview.build, mark("No jobs in this period"),
            _JOBS,
        ),
        ReportKind(
            "technicians", mark("Technicians"), "Technicians", technicians.build,
            mark("No offers in this period"),
            mark("Choose a longer period or another service. Figures appear once technicians are called."),
        ),
        ReportKind(
            "campaigns", mark("Campaigns"), "Campaigns", calls.build_campaigns,
            mark("No calls of campaigns in this period"),
            mark("Choose a longer period. Figures appear once a campaign calls its leads."),
        ),
        ReportKind(
            "numbers", mark("Numbers"), "Numbers", calls.build_numbers, mark("No calls in this period"),
            mark("Choose a longer period or all calls. Figures appear once a number makes or gets calls."),
        ),
        ReportKind(
            "customers", mark("Customers"), "Customers", customers.build, mark("No customers in this period"),
            _JOBS,
        ),
        ReportKind(
            "hours", mark("Hours of the day"), mark("Hours"), hours.build, mark("No jobs in this period"), _JOBS
        ),
    )
}  # fmt: skip


def read_filters(organization: Organization, query: Mapping[str, Any]) -> Filters:
    """Return the filters in the URL. Values that do not exist count as none."""
    code = query.get("service", "")[:64]
    purpose, measure = query.get("purpose", ""), query.get("measure", "")
    return Filters(
        service=ServiceType.objects.of(organization).filter(code=code).first() if code else None,
        purpose=purpose if purpose in Call.Purpose.values else "",
        measure=measure if measure in dict(hours.MEASURES) else "",
    )
