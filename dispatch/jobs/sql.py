"""Hand-written questions about jobs and the technicians they move."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Exists, OuterRef, QuerySet

from dispatch.capacity.models import DispatchPool
from dispatch.core import statements
from dispatch.jobs.models import Candidate, Job
from dispatch.jobs.rules import Ranked
from dispatch.jobs.rules.policy import FIELDS
from dispatch.technicians.models import Technician
from dispatch.technicians.services import Nearby

# A job that waits for a line is looked at every second or so; one that is this late has nobody who does (seconds).
UNATTENDED_S = 5.0

# Technicians whose live offer is not a pending one, whose pending offer is not their live one, or whose count of
# open jobs is not that of the jobs assigned to them.
_DRIFTED = """
SELECT t.id FROM technicians_technician t
WHERE (t.live_offer_id IS NOT NULL OR t.open_jobs > 0)
  AND (t.open_jobs <> (SELECT count(*) FROM jobs_job j WHERE j.technician_id = t.id AND j.status = 'assigned')
       OR (t.live_offer_id IS NOT NULL AND NOT EXISTS (
             SELECT FROM jobs_offer o WHERE o.id = t.live_offer_id AND o.status = 'pending')))
UNION
SELECT o.technician_id FROM jobs_offer o JOIN technicians_technician t ON t.id = o.technician_id
WHERE o.status = 'pending' AND t.live_offer_id IS DISTINCT FROM o.id
UNION
SELECT j.technician_id FROM jobs_job j JOIN technicians_technician t ON t.id = j.technician_id
WHERE j.status = 'assigned' AND t.open_jobs = 0
LIMIT %s
"""

# One start of a submission: the first at once, later ones when they are due. Whoever finds it locked leaves it.
# Its commit need not wait for the disk (`statements.flush_later`).
_CLAIM_START = """
UPDATE jobs_submission SET starts = starts + 1, next_start_at = %(until)s
WHERE id = (
    SELECT id FROM jobs_submission
    WHERE id = %(id)s AND status = 'received' AND (starts = 0 OR next_start_at <= %(now)s)
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING set_config('synchronous_commit', 'off', true)
"""
_PROCESSED = """
UPDATE jobs_submission SET status = 'processed', next_start_at = NULL WHERE id = %s AND status = 'received'
"""


def claim_start(submission_id: int, now: datetime, until: datetime) -> bool:
    """Counts a start of the submission, which is not started again before `until`; False: it is not to be
    started now."""
    return bool(statements.count(_CLAIM_START, {"id": submission_id, "now": now, "until": until}))


def submission_processed(submission_id: int) -> bool:
    """Marks it as made into a job; False: it was already."""
    return bool(statements.count(_PROCESSED, [submission_id]))


_SKILLS = "SELECT skill_id FROM jobs_servicetype_required_skills WHERE servicetype_id = %s ORDER BY skill_id"
# Of the service type, then of the organization; either may be missing.
_POLICIES = f"""
SELECT {", ".join(FIELDS)} FROM jobs_dispatchpolicy
WHERE organization_id = %s AND (service_type_id = %s OR service_type_id IS NULL)
ORDER BY service_type_id NULLS LAST
"""


def ways_of(organization_id: int, service_type_id: int | None) -> tuple[list[dict[str, Any]], list[int]]:
    """The policies that a job of that service type is offered by, the nearest first, and the ids of the skills
    that it takes."""
    with statements.pipelined():
        found = statements.ask(_POLICIES, [organization_id, service_type_id])
        skills = statements.ask(_SKILLS, [service_type_id])
        return [dict(zip(FIELDS, row, strict=True)) for row in found()], [row[0] for row in skills()]


_WRITE_CANDIDATES = """
INSERT INTO jobs_candidate
    (organization_id, job_id, skipped_round, technician_id, rank, verdict, reason, distance_m, score)
SELECT %s::bigint, %s::bigint, 0, *
FROM unnest(%s::bigint[], %s::smallint[], %s::text[], %s::text[], %s::integer[], %s::float8[])
"""


class CandidateRow(NamedTuple):
    """What a step must know of a row of the ranking: there are fifty of them."""

    technician_id: int
    rank: int
    verdict: str
    skipped_round: int
    pk: int
    reason: str
    distance_m: int


class OfferRow(NamedTuple):
    """What a step must know of an earlier offer."""

    technician_id: int
    round: int
    outcome: str
    status: str


_CANDIDATES = """
SELECT technician_id, rank, verdict, skipped_round, id, reason, distance_m FROM jobs_candidate
WHERE job_id = %s ORDER BY rank
"""
_OFFERS = "SELECT technician_id, round, outcome, status FROM jobs_offer WHERE job_id = %s ORDER BY attempt"


# The service type's pool, the organization's, the default one: the first that there is. And whether somebody's
# turn for its lines comes first: the more urgent, then the longer waiting. Only those count that are being looked
# after: not one whose steps fail, and not one that no loop has looked at in time.
_CALL_POOL = f"""
SELECT {", ".join(f"pool.{field.column}" for field in DispatchPool._meta.concrete_fields)}, EXISTS (
    SELECT FROM jobs_job other
    WHERE other.organization_id = %(organization_id)s AND other.status = 'dispatching' AND other.id <> %(id)s
      AND other.waiting_for = 'line' AND other.line_pool_id = pool.id
      AND other.failed_steps = 0 AND other.next_action_at > %(looked_after)s
      AND (other.priority, other.waiting_since, other.id) < (%(priority)s, %(since)s, %(id)s)
      AND NOT EXISTS (SELECT FROM jobs_offer o WHERE o.job_id = other.id AND o.status = 'pending')
)
FROM (
    SELECT pool.* FROM capacity_dispatchpool pool
    LEFT JOIN jobs_dispatchpolicy named
        ON named.call_pool_id = pool.id AND named.organization_id = pool.organization_id
        AND (named.service_type_id = %(service_type_id)s OR named.service_type_id IS NULL)
    WHERE pool.organization_id = %(organization_id)s
        AND (named.id IS NOT NULL OR pool.kind = 'calls' AND pool.is_default)
    ORDER BY named.service_type_id NULLS LAST, named.id NULLS LAST
    LIMIT 1
) pool
"""


class Standing(NamedTuple):
    """What a step goes by. `candidates`: the ranking, the best first; `offers` so far, the first one first;
    `skills`: the ids of those that the job takes; `pool`: whose numbers call for it, if any; `others_first`:
    whether another job's turn for a line of that pool comes before this one's."""

    candidates: list[CandidateRow]
    offers: list[OfferRow]
    skills: list[int]
    pool: DispatchPool | None
    others_first: bool


def standing(job: Job, now: datetime) -> Standing:
    """How the job stands, asked for in one round trip. Nothing is asked of the world before the call's claim is on
    disk, so the step's own commit need not wait for it."""
    waits = job.waiting_for == Job.WaitingFor.LINE and job.waiting_since is not None
    for_pool = {
        "organization_id": job.organization_id,
        "service_type_id": job.service_type_id,
        "id": job.pk,
        "looked_after": now - timedelta(seconds=UNATTENDED_S),
        "priority": job.priority,
        "since": job.waiting_since if waits else now,
    }
    with statements.pipelined():
        statements.flush_later()
        candidates, offers = statements.ask(_CANDIDATES, [job.pk]), statements.ask(_OFFERS, [job.pk])
        skills, pools = statements.ask(_SKILLS, [job.service_type_id]), statements.ask(_CALL_POOL, for_pool)
        found = pools()
        return Standing(
            [CandidateRow(*row) for row in candidates()],
            [OfferRow(*row) for row in offers()],
            [row[0] for row in skills()],
            DispatchPool(*found[0][:-1]) if found else None,
            bool(found and found[0][-1]),
        )


def write_candidates(job: Job, ranked: Sequence[Ranked[Nearby]]) -> None:
    """The ranking of a job that has none; in a pipeline it is not waited for."""
    columns: list[list[Any]] = [
        [one.of.technician_id for one in ranked],
        [one.rank for one in ranked],
        [one.of.verdict for one in ranked],
        [one.of.reason[:160] for one in ranked],
        [one.of.distance_m for one in ranked],
        [one.score for one in ranked],
    ]
    statements.do(_WRITE_CANDIDATES, [job.organization_id, job.pk, *columns])


_REMAINING = """
SELECT technician_id FROM jobs_candidate
WHERE job_id = %(job_id)s AND verdict <> 'out' AND technician_id NOT IN (
    SELECT technician_id FROM jobs_offer WHERE job_id = %(job_id)s AND round >= %(first_round)s
)
ORDER BY rank
"""


def remaining_technicians(job: Job) -> list[int]:
    """Who was not offered the job yet in the present dispatch, by rank."""
    found = statements.rows(_REMAINING, {"job_id": job.pk, "first_round": job.first_round})
    return [row[0] for row in found]


def drifted_technicians(limit: int) -> list[int]:
    """Ids of technicians whose counts do not agree with the jobs, as far as one reading can tell."""
    with connection.cursor() as cursor:
        cursor.execute(_DRIFTED, [limit])
        return [row[0] for row in cursor.fetchall()]


def jobs_whose_technician_is_free() -> QuerySet:
    """Ids of jobs that wait for technicians on another offer, one of whom is on none now."""
    free = Technician.objects.filter(pk=OuterRef("technician_id"), live_offer_id=None)
    deferred = Candidate.objects.filter(Exists(free), job_id=OuterRef("pk"), verdict=Candidate.Verdict.DEFERRED)
    waiting = Job.objects.filter(status=Job.Status.DISPATCHING, waiting_for=Job.WaitingFor.TECHNICIAN)
    return waiting.filter(Exists(deferred)).values("pk")


def first_that_wait_for_a_line(jobs: QuerySet) -> QuerySet:
    """Ids of those of these jobs whose turn it is when a line is free: one of each organization."""
    waiting = jobs.filter(waiting_for=Job.WaitingFor.LINE)
    in_turn = waiting.order_by("organization_id", "priority", "waiting_since", "pk")
    return in_turn.distinct("organization_id").values("pk")


# Conditions on an event `e`: the history of a job that is open is kept whole (see core.own_retention).
_OPEN = "SELECT 1 FROM jobs_job j WHERE j.ended_at IS NULL AND j.organization_id = e.organization_id AND "
EVENTS_OF_OPEN_JOBS = (
    f"e.subject_type = 'job' AND EXISTS ({_OPEN} j.id = e.subject_id)",
    f"e.subject_type = 'submission' AND EXISTS ({_OPEN} j.submission_id = e.subject_id)",
    f"jsonb_typeof(e.data->'job_id') = 'number' AND EXISTS ({_OPEN} j.id = (e.data->>'job_id')::bigint)",
)
