"""The report by hour of day: how many jobs come in at each hour of each weekday, as a heat strip."""

from __future__ import annotations

from typing import Any

from accounts.models import Organization
from dispatch.console.reports.pages import Chart, Choice, Filters, Report, Series, service_choice
from dispatch.console.reports.periods import Period
from dispatch.console.reports.queries import fetch, span_parameters
from dispatch.console.reports.tables import COUNT, DASH, SECONDS, SHARE, Column, Row, Table, Tile, make_tile, share
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
SHORT = (mark("Mon"), mark("Tue"), mark("Wed"), mark("Thu"), mark("Fri"), mark("Sat"), mark("Sun"))
MEASURES = (("", mark("Jobs")), ("unassigned", mark("Jobs not assigned")))
COLUMNS = (
    *(Column(key, title) for key, title in zip(DAYS, SHORT, strict=True)),
    Column("total", mark("All days")),
    Column("not_assigned", mark("Not assigned"), SHARE),
    Column("median_time_to_assign_s", mark("Median time to assign"), SECONDS),
)

# By local hour and weekday, and by hour alone (its weekday is NULL).
_JOBS = """
SELECT extract(hour FROM local)::int AS hour, extract(isodow FROM local)::int AS day, count(*),
    count(*) FILTER (WHERE assigned_at IS NULL),
    percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM assigned_at - began))
        FILTER (WHERE assigned_at IS NOT NULL)
FROM (
    SELECT created_at AT TIME ZONE %(zone)s AS local, assigned_at, CASE WHEN window_start - make_interval(
        secs => coalesce((policy ->> 'window_lead_s')::double precision, 0)) BETWEEN created_at AND assigned_at
        THEN window_start - make_interval(secs => coalesce((policy ->> 'window_lead_s')::double precision, 0))
        ELSE created_at END AS began
    FROM jobs_job
    WHERE organization_id = %(organization_id)s AND created_at >= %(since)s AND created_at < %(until)s
    AND (%(service_id)s::bigint IS NULL OR service_type_id = %(service_id)s) AND duplicate_state <> 'merged'
) j
GROUP BY GROUPING SETS ((hour, day), (hour))
"""
Cells = dict[tuple[int, int | None], tuple[int, int, float | None]]


def build(organization: Organization, period: Period, filters: Filters) -> Report:
    """Build the report of a period. Every hour has a row."""
    now, before = _load(organization, period, filters), _load(organization, period.previous, filters)
    measure = int(filters.measure == "unassigned")
    rows = [_row(hour, now, measure) for hour in range(24)]
    (jobs, unassigned), (past_jobs, past_unassigned) = _sum(now), _sum(before)
    names = [row.name for row in rows]
    past = [before.get((hour, None), (0, 0, None))[measure] for hour in range(24)]
    return Report(
        tiles=[
            make_tile(mark("Jobs"), COUNT, jobs, past_jobs),
            make_tile(
                mark("Not assigned"), SHARE, share(unassigned, jobs), share(past_unassigned, past_jobs),
                _("share of jobs"),
            ),
            _text_tile(mark("Busiest hour"), _busiest(now, of_week=False)),
            _text_tile(mark("Busiest hour of the week"), _busiest(now, of_week=True)),
        ],
        charts=[
            Chart(
                _("Jobs not assigned by hour") if filters.measure else _("Jobs by hour"), names,
                [
                    Series(_("jobs"), "calling", [row.values["total"] for row in rows], bars=True),
                    Series(_("previous period"), "off", past, dashed=True),
                ],
                is_wide=True,
            )
        ],
        tables=[
            Table(
                "hours", mark("By hour and weekday"), mark("Hour"), COLUMNS, rows, heats=frozenset(DAYS)
            )
        ],
        is_empty=not jobs,
        note=mark("An hour counts the jobs that came in during it, in the organization's time zone."),
        extra={
            "choices": [
                service_choice(organization, filters), Choice("measure", mark("Show"), MEASURES, filters.measure)
            ]
        },
    )  # fmt: skip


def _load(organization: Organization, period: Period, filters: Filters) -> Cells:
    given = span_parameters(organization, period, service_id=filters.service_id)
    return {(hour, day): (jobs, none, wait) for hour, day, jobs, none, wait in fetch(_JOBS, given)}


def _row(hour: int, cells: Cells, measure: int) -> Row:
    jobs, unassigned, wait = cells.get((hour, None), (0, 0, None))
    values: dict[str, Any] = {
        key: cells.get((hour, day), (0, 0, None))[measure] for day, key in enumerate(DAYS, start=1)
    }
    values["total"] = (jobs, unassigned)[measure]
    values["not_assigned"] = share(unassigned, jobs)
    values["median_time_to_assign_s"] = None if wait is None else float(wait)
    return Row(f"{hour:02d}:00", values, key=hour)


def _sum(cells: Cells) -> tuple[int, int]:
    of_hours = [counts for (_hour, day), counts in cells.items() if day is None]
    return sum(counts[0] for counts in of_hours), sum(counts[1] for counts in of_hours)


def _text_tile(title: str, words: str | None) -> Tile:
    return Tile(_(title), words or DASH)


def _busiest(cells: Cells, *, of_week: bool) -> str | None:
    """Return the hour with most jobs, of the week or over all days. None without jobs."""
    found = [(counts[0], hour, day or 0) for (hour, day), counts in cells.items() if (day is not None) == of_week]
    if not found:
        return None
    _most, hour, day = max(found, key=lambda one: (one[0], -one[2], -one[1]))
    return f"{_(SHORT[day - 1])} {hour:02d}:00" if of_week else f"{hour:02d}:00"
