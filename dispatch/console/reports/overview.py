"""The overview: jobs by day and by service, with the previous period beside them, and what calls cost."""

from __future__ import annotations

from collections.abc import Sequence

from accounts.models import Organization
from dispatch.console.reports.pages import Chart, Filters, Report, Series, service_choice
from dispatch.console.reports.periods import Period
from dispatch.console.reports.spend import DayCost, build_spend
from dispatch.console.reports.statistics import Figures, build_report
from dispatch.console.reports.tables import (
    AVERAGE,
    COUNT,
    MONEY,
    SECONDS,
    SHARE,
    TEXT,
    Column,
    Row,
    Table,
    Tile,
    make_tile,
)
from dispatch.console.reports.unserved import build_unserved
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, ngettext

COLUMNS = (
    Column("jobs", mark("Jobs")),
    Column("assigned", mark("Assigned")),
    Column("median_time_to_assign_s", mark("Median time"), SECONDS),
    Column("p90_time_to_assign_s", mark("90th percentile"), SECONDS),
    Column("acceptance_rate", mark("Acceptance"), SHARE),
    Column("tries_per_assignment", mark("Calls per job"), AVERAGE),
    Column("exhaustion_rate", mark("Nobody accepted"), SHARE),
)
SPEND_COLUMNS = (
    Column("currency", mark("Currency"), TEXT),
    Column("calls", mark("Calls"), MONEY),
    Column("texts", mark("Texts"), MONEY),
    Column("total", mark("Total"), MONEY),
)


def build(organization: Organization, period: Period, filters: Filters) -> Report:
    """Build the overview of a period."""
    now = build_report(organization, period.first, period.last, filters.service)
    past = period.previous
    before = build_report(organization, past.first, past.last, filters.service)
    spend = build_spend(organization, period.first, period.last)
    unserved = build_unserved(organization, period, filters.service_id, now.total.jobs)
    return Report(
        tiles=_tiles(now.total, before.total),
        charts=_charts(now.days, before.days),
        tables=[
            Table("service", mark("By service"), mark("Service"), COLUMNS, [_row(one) for one in now.services]),
            unserved,
            Table("day", mark("By day"), mark("Day"), COLUMNS, [_row(one) for one in now.days]),
            Table("spend", mark("Cost of calls and texts by day"), mark("Day"), SPEND_COLUMNS, _costs(spend.days)),
        ],
        is_empty=not now.total.jobs,
        note=mark("A job that was merged into another one does not count."),
        extra={"choices": [service_choice(organization, filters)], "unknown_prices": spend.unknown},
    )


def _tiles(now: Figures, before: Figures) -> list[Tile]:
    assigned = _("{count} assigned").format(count=f"{now.assigned:,}")
    slowest = _("90th percentile {time}").format(time=_words_of(now.p90_s))
    return [
        make_tile(mark("Jobs"), COUNT, now.jobs, before.jobs, assigned),
        make_tile(mark("Time to assign, median"), SECONDS, now.median_s, before.median_s, slowest),
        make_tile(mark("Acceptance rate"), SHARE, now.acceptance, before.acceptance, _("of offers not withdrawn")),
        make_tile(mark("Calls per assigned job"), AVERAGE, now.tries, before.tries, _("offers made, on average")),
        make_tile(mark("Nobody accepted"), SHARE, now.exhaustion, before.exhaustion, _base_of_exhaustion(now)),
        make_tile(mark("Not assigned"), SHARE, now.unassigned, before.unassigned, _("share of jobs")),
    ]


def _base_of_exhaustion(figures: Figures) -> str:
    if figures.known == figures.jobs:
        return _("share of jobs")
    if not figures.known:
        return _("unknown, the history of these jobs was deleted")
    words = ngettext("share of {count} job with history", "share of {count} jobs with history", figures.known)
    return words.format(count=f"{figures.known:,}")


def _words_of(seconds: float | None) -> str:
    return make_tile("", SECONDS, seconds, None).value if seconds is not None else "—"


def _charts(now: Sequence[Figures], before: Sequence[Figures]) -> list[Chart]:
    days, past = [day.name for day in now], [day.name for day in before]

    def line(label: str, tone: str, name: str) -> list[Series]:
        return [
            Series(label, tone, [getattr(day, name) for day in now]),
            Series(_("previous period"), "off", [getattr(day, name) for day in before], dashed=True, names=past),
        ]

    slowest = Series(_("90th percentile"), "late", [day.p90_s for day in now])
    jobs = [
        Series(_("jobs"), "calling", [day.jobs for day in now], bars=True),
        Series(_("previous period"), "off", [day.jobs for day in before], dashed=True, names=past),
    ]
    times = line(_("median"), "calling", "median_s")
    accepted = line(_("accepted"), "good", "acceptance")
    nobody = line(_("nobody"), "attention", "exhaustion")
    return [
        Chart(_("Time to assign"), days, [times[0], slowest, times[1]], SECONDS, is_wide=True),
        Chart(_("Jobs"), days, jobs),
        Chart(_("Acceptance rate"), days, accepted, SHARE, top=1.0),
        Chart(_("Calls per assigned job"), days, line(_("calls"), "calling", "tries"), AVERAGE),
        Chart(_("Nobody accepted"), days, nobody, SHARE, top=1.0),
    ]


def _row(figures: Figures) -> Row:
    values = (
        figures.jobs, figures.assigned, figures.median_s, figures.p90_s, figures.acceptance, figures.tries,
        figures.exhaustion,
    )  # fmt: skip
    keys = [column.key for column in COLUMNS]
    return Row(figures.name, dict(zip(keys, values, strict=True)), key=figures.day)


def _costs(days: Sequence[DayCost]) -> list[Row]:
    return [
        Row(
            f"{cost.day:%a, %b} {cost.day.day}",
            {"currency": cost.currency or "", "calls": cost.calls, "texts": cost.texts, "total": cost.total},
            key=cost.day,
        )
        for cost in days
    ]
