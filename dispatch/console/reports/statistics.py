"""Compute dispatching statistics for a span of days in the organization's time zone: by day, by service, total."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from accounts.models import Organization
from dispatch.console.reports.periods import Period
from dispatch.console.reports.queries import fetch, span_parameters
from dispatch.jobs.models import ServiceType

# Each job of the span once, with its offers aggregated; then by day, by service, and total. A merged duplicate is
# no job in any report: the customer asked once.
_FIGURES = """
WITH job AS (
    SELECT (j.created_at AT TIME ZONE %(zone)s)::date AS day, j.service_type_id,
        j.assigned_at IS NOT NULL AS assigned,
        extract(epoch FROM j.assigned_at - CASE WHEN calls.begin BETWEEN j.created_at AND j.assigned_at
            THEN calls.begin ELSE j.created_at END) AS wait_s, o.offers, o.accepted, o.settled,
        history.is_whole, history.is_whole AND history.exhausted AS exhausted
    FROM jobs_job j
    CROSS JOIN LATERAL (  -- when technicians are called for the arrival window
        SELECT j.window_start - make_interval(
            secs => coalesce((j.policy ->> 'window_lead_s')::double precision, 0)) AS begin
    ) calls
    CROSS JOIN LATERAL (
        SELECT count(*) AS offers, count(*) FILTER (WHERE status = 'accepted') AS accepted,
            count(*) FILTER (WHERE status IN ('accepted', 'declined', 'timed_out', 'failed')) AS settled
        FROM jobs_offer WHERE job_id = j.id
    ) o
    CROSS JOIN LATERAL (  -- retention deletes the oldest event first, and may delete it before the job
        SELECT coalesce(bool_or(e.kind = 'job.created'), false) AS is_whole,
            coalesce(bool_or(e.kind = 'job.pending' AND e.data ->> 'reason' = 'exhausted'), false) AS exhausted
        FROM core_event e
        WHERE e.subject_type = 'job' AND e.subject_id = j.id AND e.kind IN ('job.created', 'job.pending')
    ) history
    WHERE j.organization_id = %(organization_id)s AND j.created_at >= %(since)s AND j.created_at < %(until)s
    AND (%(service_id)s::bigint IS NULL OR j.service_type_id = %(service_id)s) AND j.duplicate_state <> 'merged'
)
SELECT day, service_type_id, grouping(day), grouping(service_type_id), count(*), count(*) FILTER (WHERE assigned),
    percentile_cont(0.5) WITHIN GROUP (ORDER BY wait_s), percentile_cont(0.9) WITHIN GROUP (ORDER BY wait_s),
    sum(accepted), sum(settled), sum(offers) FILTER (WHERE assigned), count(*) FILTER (WHERE exhausted),
    count(*) FILTER (WHERE is_whole)
FROM job GROUP BY GROUPING SETS ((day), (service_type_id), ())
"""


@dataclass(frozen=True)
class Figures:
    """Statistics of the jobs received on a day, for a service, or in total.

    Times are in seconds; rates are from 0 to 1; None if there is nothing to count.

    `acceptance`: share of accepted offers among the offers that ended without being withdrawn. `tries`: offers per
    assigned job. `exhaustion`: share of jobs that ran out of candidates at least once, among the `known` jobs:
    those whose events retention has not deleted.
    """

    name: str
    day: date | None = None
    jobs: int = 0
    assigned: int = 0
    median_s: float | None = None
    p90_s: float | None = None
    acceptance: float | None = None
    tries: float | None = None
    exhaustion: float | None = None
    known: int = 0

    @property
    def unassigned(self) -> float | None:
        """Return the share of jobs that nobody has been assigned to."""
        return (self.jobs - self.assigned) / self.jobs if self.jobs else None


@dataclass(frozen=True)
class Report:
    """The statistics from the first to the last day, inclusive."""

    first: date
    last: date
    zone: str
    total: Figures
    days: list[Figures]
    services: list[Figures]


def build_report(
    organization: Organization, first: date, last: date, service: ServiceType | None = None
) -> Report:
    """Build the statistics from `first` to `last`. Every day has a row, including days without jobs."""
    period = Period(first, last, organization.time_zone)
    rows = fetch(_FIGURES, span_parameters(organization, period, service_id=service.pk if service else None))
    names = dict(ServiceType.objects.of(organization).values_list("pk", "name"))
    days = {row[0]: row for row in rows if not row[2]}
    services = [_figures(names.get(row[1], "?"), None, row) for row in rows if not row[3]]
    total = next(row for row in rows if row[2] and row[3])
    return Report(
        first,
        last,
        organization.time_zone,
        _figures("All", None, total),
        [_of_day(day, days.get(day)) for day in period.days],
        sorted(services, key=lambda figures: (-figures.jobs, figures.name)),
    )


def _of_day(day: date, row: tuple[Any, ...] | None) -> Figures:
    name = f"{day:%a, %b} {day.day}"
    return _figures(name, day, row) if row else Figures(name, day)


def _figures(name: str, day: date | None, row: tuple[Any, ...]) -> Figures:
    jobs, assigned, median, p90, accepted, settled, offers, exhausted, known = row[4:]
    return Figures(
        name=name,
        day=day,
        jobs=jobs,
        assigned=assigned,
        median_s=None if median is None else float(median),
        p90_s=None if p90 is None else float(p90),
        acceptance=float(accepted) / float(settled) if settled else None,
        tries=float(offers or 0) / assigned if assigned else None,
        exhaustion=exhausted / known if known else None,
        known=known,
    )
