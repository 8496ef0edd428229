"""Query jobs for the loops, at a cost that does not depend on PostgreSQL's statistics."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from dispatch.jobs.models import Job

# Jobs that are pending for any of these reasons, of the organizations between two ids. A row comparison can be
# looked up in one index only, job_pending_for: without statistics, each index of the organization costs the same.
_PENDING_FOR = """
WITH found AS MATERIALIZED (
    SELECT j.* FROM unnest(%s::varchar[]) reason CROSS JOIN LATERAL (
        SELECT id, organization_id, waiting_since FROM jobs_job
        WHERE status = 'pending' AND (pending_reason, organization_id) >= (reason, %s::bigint)
          AND (pending_reason, organization_id) <= (reason, %s::bigint)
        OFFSET 0
    ) j
)
SELECT id FROM found
"""
_OUTAGE_ENDED = """
WHERE EXISTS (
    SELECT FROM capacity_provideraccount a
    WHERE a.organization_id = found.organization_id AND a.outage = '' AND a.outage_ended_at > found.waiting_since
)
"""
_ALL_ORGANIZATIONS = (0, 2**63 - 1)


def find_pending_jobs(
    reasons: Sequence[str], organization_id: int | None = None, *, outage_ended: bool = False
) -> QuerySet[Job]:
    """Return the jobs that are pending for one of these reasons: the most urgent first, then the longest waiting.

    With `outage_ended`, only those of organizations with an account whose outage ended after they became pending.
    """
    first, last = (organization_id, organization_id) if organization_id else _ALL_ORGANIZATIONS
    statement = _PENDING_FOR + (_OUTAGE_ENDED if outage_ended else "")
    found = RawSQL(statement, [list(reasons), first, last])  # noqa: S611
    jobs: QuerySet[Job] = Job.objects.filter(pk__in=found)
    return jobs.order_by("priority", "waiting_since", "pk")
