"""The jobs of a period to which nobody has been assigned, by the reason why."""

from __future__ import annotations

from accounts.models import Organization
from dispatch.console.reports.periods import Period
from dispatch.console.reports.queries import fetch, span_parameters
from dispatch.console.reports.tables import SHARE, Column, Row, Table, share
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.jobs.models import Job

COLUMNS = (
    Column("jobs", mark("Jobs")),
    Column("jobs_before", mark("Period before")),
    Column("share", mark("Share of all jobs"), SHARE),
    Column("open", mark("Still open")),
    Column("canceled", mark("Canceled")),
)
# The reason is that of the last time the job became pending: it stays known after the job is canceled, until
# retention deletes its events. The oldest goes first.
_BY_REASON = """
SELECT COALESCE(pending.reason, CASE WHEN j.status <> 'cancelled' OR is_whole THEN j.status ELSE 'unknown' END),
    count(*), count(*) FILTER (WHERE j.status = 'cancelled')
FROM jobs_job j
LEFT JOIN LATERAL (
    -- With ORDER BY and LIMIT 1, the planner may read the whole log backward.
    SELECT (array_agg(e.data ->> 'reason' ORDER BY e.id DESC) FILTER (WHERE e.kind = 'job.pending'))[1] AS reason,
        coalesce(bool_or(e.kind = 'job.created'), false) AS is_whole
    FROM core_event e
    WHERE e.subject_type = 'job' AND e.subject_id = j.id AND e.kind IN ('job.created', 'job.pending')
) pending ON true
WHERE j.organization_id = %(organization_id)s AND j.created_at >= %(since)s AND j.created_at < %(until)s
AND j.assigned_at IS NULL AND (%(service_id)s::bigint IS NULL OR j.service_type_id = %(service_id)s)
AND j.duplicate_state <> 'merged'
GROUP BY 1
"""
_NEVER_PENDING = {
    Job.Status.CANCELLED.value: mark("Canceled while technicians were called"),
    Job.Status.DISPATCHING.value: mark("Technicians are still being called"),
    "unknown": mark("No longer known, the job's history was deleted"),
}


def build_unserved(organization: Organization, period: Period, service_id: int | None, jobs: int) -> Table:
    """Build the table by reason, the most frequent first. `jobs` is the number of all jobs of the period."""
    now = _load(organization, period, service_id)
    before = _load(organization, period.previous, service_id)
    rows = []
    for reason in sorted({*now, *before}, key=lambda reason: (-now.get(reason, (0, 0))[0], reason)):
        count, canceled = now.get(reason, (0, 0))
        values = {
            "jobs": count, "jobs_before": before.get(reason, (0, 0))[0], "share": share(count, jobs),
            "open": count - canceled, "canceled": canceled,
        }  # fmt: skip
        rows.append(Row(_words_of(reason), values))
    return Table("unserved", mark("Not assigned, by reason"), mark("Reason"), COLUMNS, rows)


def _load(organization: Organization, period: Period, service_id: int | None) -> dict[str, tuple[int, int]]:
    """Return reason or status → number of jobs, and of canceled ones among them."""
    found = fetch(_BY_REASON, span_parameters(organization, period, service_id=service_id))
    return {reason: (count, canceled) for reason, count, canceled in found}


def _words_of(reason: str) -> str:
    if reason in _NEVER_PENDING:
        return _(_NEVER_PENDING[reason])
    return _(dict(Job.PendingReason.choices).get(reason, reason))
