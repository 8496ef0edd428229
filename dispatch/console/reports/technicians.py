"""The report by technician: offers, answers, time to answer, and the jobs they were assigned."""

from __future__ import annotations

from typing import Any

from accounts.models import Organization
from dispatch.console.reports.pages import MAX_ROWS, Filters, Report, bar_chart, service_choice
from dispatch.console.reports.periods import Period
from dispatch.console.reports.queries import fetch, span_parameters
from dispatch.console.reports.tables import SECONDS, SHARE, Column, Row, Table, make_tile, share
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.technicians.models import Technician

COLUMNS = (
    Column("offers", mark("Offers")),
    Column("answered", mark("Answered")),
    Column("accepted", mark("Accepted")),
    Column("declined", mark("Declined")),
    Column("missed", mark("Missed")),
    Column("acceptance_rate", mark("Acceptance"), SHARE),
    Column("median_time_to_answer_s", mark("Median time to answer"), SECONDS),
    Column("jobs", mark("Jobs")),
    Column("completed", mark("Completed")),
)
TOTAL = mark("All technicians")

# Offers of the jobs of the span by technician, and in total (its technician is NULL). Offers that were withdrawn
# count as offers only. An offer that was answered by text or link counts as answered, without a time. OFFSET 0
# makes the planner look up each job's offers: without statistics, it would read all offers for each job.
_OFFERS = """
WITH offered AS (
    SELECT o.technician_id, o.status, o.answered_at, o.ringing_since
    FROM jobs_job j CROSS JOIN LATERAL (SELECT * FROM jobs_offer WHERE job_id = j.id OFFSET 0) o
    WHERE j.organization_id = %(organization_id)s AND j.created_at >= %(since)s AND j.created_at < %(until)s
    AND (%(service_id)s::bigint IS NULL OR j.service_type_id = %(service_id)s)
)
SELECT technician_id, count(*),
    count(*) FILTER (WHERE answered_at IS NOT NULL OR status IN ('accepted', 'declined')),
    count(*) FILTER (WHERE status = 'accepted'), count(*) FILTER (WHERE status = 'declined'),
    count(*) FILTER (WHERE status IN ('timed_out', 'failed')),
    percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM answered_at - ringing_since))
        FILTER (WHERE answered_at >= ringing_since)
FROM offered GROUP BY GROUPING SETS ((technician_id), ())
"""
_JOBS = """
SELECT technician_id, count(*), count(*) FILTER (WHERE status = 'completed')
FROM jobs_job WHERE organization_id = %(organization_id)s AND created_at >= %(since)s AND created_at < %(until)s
AND (%(service_id)s::bigint IS NULL OR service_type_id = %(service_id)s) AND technician_id IS NOT NULL
GROUP BY technician_id
"""


def build(organization: Organization, period: Period, filters: Filters) -> Report:
    """Build the report of a period, technicians with most offers first."""
    rows, total = _load(organization, period, filters)
    past_rows, past = _load(organization, period.previous, filters)
    now, before = total.values, past.values
    return Report(
        tiles=[
            make_tile(mark("Offers"), "count", now["offers"], before["offers"]),
            make_tile(mark("Answered"), SHARE, _answered(now), _answered(before), _("share of offers")),
            make_tile(
                mark("Acceptance rate"), SHARE, now["acceptance_rate"], before["acceptance_rate"],
                _("of offers not withdrawn"),
            ),
            make_tile(
                mark("Median time to answer"), SECONDS, now["median_time_to_answer_s"],
                before["median_time_to_answer_s"], _("from the first ring"),
            ),
            make_tile(mark("Jobs"), "count", now["jobs"], before["jobs"], _("assigned to a technician")),
        ],
        charts=[
            bar_chart(
                _("Offers and acceptances"), rows, past_rows, ("offers", _("offers"), "calling"),
                ("accepted", _("accepted"), "good"),
            )
        ],
        tables=[
            Table(
                "technicians", mark("By technician"), mark("Technician"), COLUMNS, rows, total,
                most=MAX_ROWS,
            )
        ],
        is_empty=not rows,
        note=mark(
            "Figures count toward the day the job came in. A withdrawn offer counts as an offer only. Time to "
            "answer runs from the first ring."
        ),
        extra={"choices": [service_choice(organization, filters)]},
    )  # fmt: skip


def _load(organization: Organization, period: Period, filters: Filters) -> tuple[list[Row], Row]:
    given = span_parameters(organization, period, service_id=filters.service_id)
    offers = {row[0]: row[1:] for row in fetch(_OFFERS, given)}
    jobs = {row[0]: row[1:] for row in fetch(_JOBS, given)}
    total = _values(offers.pop(None), tuple(map(sum, zip(*jobs.values(), strict=True))) or (0, 0))
    ids = {*offers, *jobs}
    names = dict(Technician.objects.of(organization).filter(pk__in=ids).values_list("pk", "name"))
    nothing = (0, 0, 0, 0, 0, None)
    rows = [Row(names.get(pk, "?"), _values(offers.get(pk, nothing), jobs.get(pk, (0, 0))), key=pk) for pk in ids]
    rows.sort(key=lambda row: (-row.values["offers"], -row.values["jobs"], row.name, row.key))
    return rows, Row(_(TOTAL), total)


def _values(offers: tuple[Any, ...], jobs: tuple[int, ...]) -> dict[str, Any]:
    count, answered, accepted, declined, missed, median = offers
    return {
        "offers": count,
        "answered": answered,
        "accepted": accepted,
        "declined": declined,
        "missed": missed,
        "acceptance_rate": share(accepted, accepted + declined + missed),
        "median_time_to_answer_s": None if median is None else float(median),
        "jobs": jobs[0],
        "completed": jobs[1],
    }


def _answered(values: Any) -> float | None:
    return share(values["answered"], values["offers"])
