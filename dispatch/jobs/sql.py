"""Hand-written SQL for jobs and their technicians."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef, QuerySet

from dispatch.capacity.models import DispatchPool
from dispatch.core.db import prepared
from dispatch.jobs.models import Candidate, Job
from dispatch.jobs.rules import Ranked
from dispatch.jobs.rules.policy import FIELDS
from dispatch.jobs.rules.quiet_hours import FIELDS as QUIET_FIELDS
from dispatch.jobs.rules.quiet_hours import QuietHours
from dispatch.technicians.models import Technician
from dispatch.technicians.services import Nearby

# Whether a report on the offer's call has nothing to change. An offer that was closed is never pending again.
_UNAFFECTED = """
o.status <> 'pending'
    OR ({is_in_progress} AND o.ringing_since IS NOT NULL AND j.line_wait_until IS NULL
        AND (o.answered_at IS NOT NULL OR NOT {is_answered}))
"""
_IS_UNAFFECTED = f"""
SELECT {_UNAFFECTED.format(is_in_progress="%s::boolean", is_answered="%s::boolean")}
FROM jobs_offer o JOIN jobs_job j ON j.id = o.job_id WHERE o.id = %s
"""
_UNAFFECTED_OFFERS = f"""
SELECT v.place
FROM unnest(%(offers)s::bigint[], %(in_progress)s::boolean[], %(answered)s::boolean[])
     WITH ORDINALITY AS v (offer_id, is_in_progress, is_answered, place)
JOIN jobs_offer o ON o.id = v.offer_id JOIN jobs_job j ON j.id = o.job_id
WHERE {_UNAFFECTED.format(is_in_progress="v.is_in_progress", is_answered="v.is_answered")}
"""
# Those of these jobs that have had one offer.
WITH_ONE_OFFER = """
SELECT job_id FROM jobs_offer WHERE job_id = ANY(%s::bigint[]) GROUP BY job_id HAVING count(*) = 1
"""
# A job that waits for a line is polled about every second; a job overdue by this much (seconds) is not polled.
UNATTENDED_S = 5.0
# For a job that has no id yet: after those of all others.
_LAST_ID = 2**63 - 1

# Technicians whose live offer is not pending, whose pending offer is not their live one, whose count of open jobs
# differs from their assigned jobs, or whose planned times differ from those of these jobs.
_DRIFTED = """
SELECT id FROM (
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
UNION
SELECT t.id FROM technicians_technician t
WHERE t.planned_times IS NOT NULL AND t.planned_times IS DISTINCT FROM jobs_planned_times(t.id)
UNION
SELECT t.id FROM (
    SELECT DISTINCT technician_id FROM jobs_job WHERE status = 'assigned' AND window_start IS NOT NULL
) j JOIN technicians_technician t ON t.id = j.technician_id
WHERE t.planned_times IS NULL
) drifted WHERE NOT id = ANY(%(but)s::bigint[])
LIMIT %(limit)s
"""

_PLANNED_TIMES = "SELECT jobs_planned_times(%s)"

# Calls of pending offers whose end, progress or answer the offer does not show, oldest first.
_SILENT_CALLS = """
WITH pending AS MATERIALIZED (
    SELECT id, missed_at, ringing_since, answered_at FROM jobs_offer WHERE status = 'pending'
)
SELECT c.id FROM pending o CROSS JOIN LATERAL (
    SELECT id, status, ended_at FROM telephony_call WHERE purpose = 'offer' AND subject_id = o.id OFFSET 0
) c
WHERE ((c.ended_at IS NOT NULL AND o.missed_at IS NULL)
       OR (c.status IN ('submitted', 'unknown') AND o.ringing_since IS NULL)
       OR (c.status = 'answered' AND o.answered_at IS NULL))
  AND NOT c.id = ANY(%(but)s::bigint[])
ORDER BY c.id LIMIT %(limit)s
"""

# Conditions of the loops, which rest while they are false: what waits for a line or a technician, and what the
# auditor finds, is about a job in progress, a trial, or a pending job that an outage or the spending cap stopped.
IS_JOB_DISPATCHING = """(
    EXISTS (SELECT FROM jobs_job WHERE status = 'dispatching')
    OR EXISTS (SELECT FROM jobs_offer WHERE status = 'pending')
)"""
_STOPPED = (Job.PendingReason.PROVIDER_DOWN, Job.PendingReason.ACCOUNT_REFUSED, Job.PendingReason.SPEND_CAP)
_RESUMABLE = ", ".join(f"'{reason}'" for reason in _STOPPED)
MAY_NEED_AUDIT = f"""(
    EXISTS (SELECT FROM jobs_submission WHERE status = 'received' AND next_start_at <= %(now)s)
    OR EXISTS (SELECT FROM jobs_job WHERE status = 'dispatching')
    OR EXISTS (SELECT FROM jobs_offer WHERE status = 'pending')
    OR EXISTS (SELECT FROM jobs_job WHERE is_trial)
    OR EXISTS (SELECT FROM jobs_job WHERE status = 'pending' AND pending_reason IN ({_RESUMABLE}))
)"""
IS_NOTICE_DUE = "EXISTS (SELECT FROM jobs_techniciannotice WHERE next_action_at <= %(now)s)"
IS_REMINDER_DUE = "EXISTS (SELECT FROM jobs_job WHERE attention_at <= %(now)s AND reminded_at IS NULL)"


def is_unaffected(offer_id: int, *, is_in_progress: bool, is_answered: bool) -> bool:
    """Return whether the state of the offer's call has nothing to change.

    The offer is closed, or the call is in progress and its deadline has started (once more if answered).
    """
    rows = prepared.fetch_all(_IS_UNAFFECTED, [is_in_progress, is_answered, offer_id])
    return bool(rows and rows[0][0])


def unaffected_offers(states: Sequence[tuple[int, bool, bool]]) -> list[bool]:
    """Return for each (offer, call is in progress, call is answered) what `is_unaffected` returns."""
    if not states:
        return []
    given = {
        "offers": prepared.integers(offer_id for offer_id, _, _ in states),
        "in_progress": prepared.booleans(is_in_progress for _, is_in_progress, _ in states),
        "answered": prepared.booleans(is_answered for _, _, is_answered in states),
    }
    places = {place for (place,) in prepared.fetch_all(_UNAFFECTED_OFFERS, given)}
    return [place in places for place in range(1, len(states) + 1)]


# The skills that a service type requires (without name), and those that it prefers.
_SKILLS = """
SELECT skill_id, NULL, NULL FROM jobs_servicetype_required_skills WHERE servicetype_id = %(id)s
UNION ALL
SELECT NULL, NULL, expected_minutes FROM jobs_servicetype WHERE id = %(id)s
UNION ALL
SELECT preferred.skill_id, skill.name, NULL FROM jobs_servicetype_preferred_skills preferred
JOIN technicians_skill skill ON skill.id = preferred.skill_id WHERE preferred.servicetype_id = %(id)s
ORDER BY 1
"""
_POLICY_FIELDS = (*FIELDS, *QUIET_FIELDS, "duplicate_hours")
# The policies of the service type and of the organization, in this order; either may be missing.
_POLICIES = f"""
SELECT {", ".join(_POLICY_FIELDS)} FROM jobs_dispatchpolicy
WHERE organization_id = %s AND (service_type_id = %s OR service_type_id IS NULL)
ORDER BY service_type_id NULLS LAST
"""


def planned_times(technician_id: int) -> list[Any] | None:
    """Return when the technician's open jobs with an arrival window take place, as the trigger determines it."""
    ranges: list[Any] | None = prepared.fetch_all(_PLANNED_TIMES, [technician_id])[0][0]
    return ranges


class Skills(NamedTuple):
    """The skills of a service type: ids of the required ones, and id → name of the preferred ones.

    `minutes`: how long its work usually takes, if known.
    """

    required: list[int]
    preferred: dict[int, str]
    minutes: int | None = None


def policy_chain(
    organization_id: int, service_type_id: int | None
) -> Callable[[], tuple[list[dict[str, Any]], Skills]]:
    """Return a function for the policies for a service type, most specific first, and its skills."""
    with prepared.pipeline():
        policies = prepared.fetch_later(_POLICIES, [organization_id, service_type_id])
        skills = prepared.fetch_later(_SKILLS, {"id": service_type_id})
    return lambda: (_policy_rows(policies()), _skills_of(skills()))


def _skills_of(rows: Sequence[Sequence[Any]]) -> Skills:
    return Skills(
        [skill_id for skill_id, name, _ in rows if skill_id is not None and name is None],
        {skill_id: name for skill_id, name, _ in rows if name is not None},
        next((minutes for skill_id, _, minutes in rows if skill_id is None), None),
    )


def _policy_rows(rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(_POLICY_FIELDS, row, strict=True)) for row in rows]


# Serializes the creation of jobs with the same phone or address, so that one of two at once sees the other.
_LOCK_DUPLICATES = """
SELECT pg_advisory_xact_lock(lock_key) FROM (
    SELECT DISTINCT hashtextextended(key, 0) AS lock_key FROM unnest(%s::text[]) AS wanted (key)
    ORDER BY lock_key OFFSET 0
) AS locks
"""
_DUPLICATE = """
SELECT id FROM jobs_job
WHERE organization_id = %(organization_id)s AND ended_at IS NULL AND created_at > %(since)s
  AND (customer_phone = %(phone)s OR (address_key = %(address_key)s AND address_key <> ''))
ORDER BY id LIMIT 1
"""


def find_duplicate(job: Job, since: datetime) -> Callable[[], int | None]:
    """Return a function for the oldest open job, created after `since`, with this unsaved job's phone or address.

    Waits for concurrent transactions that create such a job, until the end of the transaction.
    """
    phone, organization_id = str(job.customer_phone), job.organization_id
    keys = [f"job:{organization_id}:{key}" for key in (phone, job.address_key) if key]
    parameters = {
        "organization_id": organization_id,
        "since": since,
        "phone": phone,
        "address_key": job.address_key,
    }
    with prepared.pipeline():
        prepared.execute(_LOCK_DUPLICATES, [prepared.texts(keys)])
        answer = prepared.fetch_later(_DUPLICATE, parameters)
    return lambda: next((pk for (pk,) in answer()), None)


_WRITE_CANDIDATES = """
INSERT INTO jobs_candidate
    (organization_id, job_id, skipped_round, technician_id, rank, verdict, reason, distance_m, score, travel_s)
SELECT %(organization_id)s::bigint, %(job_id)s::bigint, 0, *
FROM unnest(%(technicians)s::bigint[], %(ranks)s::smallint[], %(verdicts)s::text[], %(reasons)s::text[],
            %(distances_m)s::integer[], %(scores)s::float8[], %(travels_s)s::integer[])
"""


class CandidateRow(NamedTuple):
    """The columns of a candidate that a step reads. A job has up to fifty candidates."""

    technician_id: int
    rank: int
    verdict: str
    skipped_round: int
    reason: str
    distance_m: int
    travel_s: int | None = None

    @classmethod
    def new(cls, candidate: Ranked[Nearby]) -> CandidateRow:
        """Return the columns of a new candidate."""
        found = candidate.technician
        return cls(
            technician_id=found.technician_id,
            rank=candidate.rank,
            verdict=found.verdict,
            skipped_round=0,
            reason=found.reason[:160],
            distance_m=found.distance_m,
            travel_s=found.travel_s,
        )


class OfferRow(NamedTuple):
    """The columns of an offer that a step reads."""

    technician_id: int
    round: int
    outcome: str
    status: str
    reason: str
    settled_at: datetime | None
    created_at: datetime
    slot: int
    holds_until: datetime | None
    expires_at: datetime


_CANDIDATES = """
SELECT technician_id, rank, verdict, skipped_round, reason, distance_m, travel_s FROM jobs_candidate
WHERE job_id = %s ORDER BY rank
"""
_OFFERS = """
SELECT technician_id, round, outcome, status, reason, settled_at, created_at, slot, holds_until, expires_at
FROM jobs_offer WHERE job_id = %s ORDER BY attempt
"""


# The call pool: the service type's, else the organization's, else the default pool. Also whether another job comes
# first for its lines: a more urgent job, or an equally urgent job that has waited longer. Jobs that are not being
# polled don't count: those whose steps fail, and those that are overdue. A job that is calling somebody already
# comes last of its priority. Only the index on the pool and the time can be used (see `services.transitions`): an
# organization may have 100,000 waiting jobs, of which the loop polls 200.
_CALL_POOL = f"""
SELECT {", ".join(f"pool.{field.column}" for field in DispatchPool._meta.concrete_fields)}, EXISTS (
    SELECT FROM jobs_job other
    WHERE other.organization_id + 0 = %(organization_id)s AND other.status || '' = 'dispatching'
      AND other.id <> %(id)s AND other.waiting_for = 'line' AND other.line_pool_id = pool.id
      AND other.failed_steps = 0 AND other.next_action_at > %(looked_after)s
      AND (other.priority, other.waiting_since, other.id) < (%(priority)s, CASE WHEN EXISTS (
          SELECT FROM jobs_offer own WHERE own.job_id = %(id)s AND own.status = 'pending'
      ) THEN %(now)s ELSE %(since)s END, %(id)s)
      AND NOT EXISTS (SELECT FROM jobs_offer o WHERE o.job_id = other.id + 0 AND o.status = 'pending')
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


class DispatchReadiness(NamedTuple):
    """The facts for one step of the cascade.

    `candidates`: best first. `offers`: oldest first. `pool`: the pool of caller numbers, if any. `others_first`:
    another job comes first for a line of that pool. `quiet`: the quiet hours.
    """

    candidates: list[CandidateRow]
    offers: list[OfferRow]
    skills: Skills
    pool: DispatchPool | None
    others_first: bool
    quiet: QuietHours


def load_readiness(job: Job, now: datetime) -> DispatchReadiness:
    """Load the facts for the job's next step in one round trip.

    Sets synchronous_commit to off: nothing external happens before the call's claim is on disk.
    """
    for_pool = _pool_parameters(job, now)
    with prepared.pipeline():
        prepared.defer_fsync()
        candidates, offers = prepared.fetch_later(_CANDIDATES, [job.pk]), prepared.fetch_later(_OFFERS, [job.pk])
        skills, pools = (
            prepared.fetch_later(_SKILLS, {"id": job.service_type_id}),
            prepared.fetch_later(_CALL_POOL, for_pool),
        )
        policies = prepared.fetch_later(_POLICIES, [job.organization_id, job.service_type_id])
        pool, others_first = _pool_of(pools())
        return DispatchReadiness(
            [CandidateRow(*row) for row in candidates()],
            [OfferRow(*row) for row in offers()],
            _skills_of(skills()),
            pool,
            others_first,
            QuietHours.of(_policy_rows(policies())),
        )


# The pool for a job, if there is one, and whether another job comes first for its lines.
_PoolFacts = tuple[DispatchPool | None, bool]


def find_pool_of_new_job(job: Job, now: datetime) -> Callable[[], _PoolFacts]:
    """Return a function for the pool for a job that is not written yet, and has no id before those of others."""
    find_rows = prepared.fetch_later(_CALL_POOL, {**_pool_parameters(job, now), "id": _LAST_ID})
    return lambda: _pool_of(find_rows())


def readiness_of_new_job(
    pool_facts: _PoolFacts, ranked: Sequence[Ranked[Nearby]], skills: Skills, quiet: QuietHours
) -> DispatchReadiness:
    """Return the facts for the first step of a job that this transaction has created."""
    pool, others_first = pool_facts
    return DispatchReadiness([CandidateRow.new(one) for one in ranked], [], skills, pool, others_first, quiet)


def find_call_pool(job: Job, now: datetime) -> DispatchPool | None:
    """Return the pool of caller numbers for calls about the job, or None."""
    return _pool_of(prepared.fetch_all(_CALL_POOL, _pool_parameters(job, now)))[0]


def _pool_of(rows: list[Any]) -> _PoolFacts:
    return (DispatchPool(*rows[0][:-1]), rows[0][-1]) if rows else (None, False)


def _pool_parameters(job: Job, now: datetime) -> dict[str, Any]:
    waits = job.waiting_for == Job.WaitingFor.LINE and job.waiting_since is not None
    return {
        "organization_id": job.organization_id,
        "service_type_id": job.service_type_id,
        "id": job.pk,
        "looked_after": now - timedelta(seconds=UNATTENDED_S),
        "priority": job.priority,
        "since": job.waiting_since if waits else now,
        "now": now,
    }


def write_candidates(job: Job, ranked: Sequence[Ranked[Nearby]]) -> None:
    """Write new candidates of a job, with the next statement."""
    given = {"organization_id": job.organization_id, "job_id": job.pk}
    prepared.change_later(_WRITE_CANDIDATES, {**given, **_candidate_arrays(ranked)})


_UPDATE_CANDIDATES = """
UPDATE jobs_candidate c
SET verdict = v.verdict, reason = v.reason, distance_m = v.distance_m, score = v.score, travel_s = v.travel_s
FROM unnest(%(technicians)s::bigint[], %(verdicts)s::text[], %(reasons)s::text[], %(distances_m)s::integer[],
            %(scores)s::float8[], %(travels_s)s::integer[])
    AS v (technician_id, verdict, reason, distance_m, score, travel_s)
WHERE c.job_id = %(job_id)s::bigint AND c.technician_id = v.technician_id
"""


def update_candidates(job: Job, checked: Sequence[Ranked[Nearby]]) -> None:
    """Update the eligibility and the score of existing candidates, who keep their rank."""
    prepared.change_later(_UPDATE_CANDIDATES, {"job_id": job.pk, **_candidate_arrays(checked)})


_DEFER_CANDIDATES = """
UPDATE jobs_candidate c SET verdict = 'deferred', reason = v.reason
FROM unnest(%(technicians)s::bigint[], %(reasons)s::text[]) AS v (technician_id, reason)
WHERE c.job_id = %(job_id)s::bigint AND c.technician_id = v.technician_id
"""


def defer_candidates(job: Job, reasons: Mapping[int, str]) -> None:
    """Defer these technicians, each with the reason for dispatchers, with the next statement."""
    if reasons:
        given = {"technicians": prepared.integers(reasons), "reasons": prepared.texts(reasons.values())}
        prepared.change_later(_DEFER_CANDIDATES, {"job_id": job.pk, **given})


def _candidate_arrays(candidates: Sequence[Ranked[Nearby]]) -> dict[str, str]:
    """Return each column of the candidates as an array literal."""
    rows = [(*CandidateRow.new(candidate), candidate.score) for candidate in candidates]
    return prepared.arrays(
        rows, technicians=prepared.integers, ranks=prepared.integers, verdicts=prepared.texts,
        skipped_rounds=prepared.integers, reasons=prepared.texts, distances_m=prepared.integers,
        travels_s=prepared.integers, scores=prepared.floats,
    )  # fmt: skip


_REMAINING = """
SELECT technician_id FROM jobs_candidate
WHERE job_id = %(job_id)s AND verdict <> 'out' AND technician_id NOT IN (
    SELECT technician_id FROM jobs_offer
    WHERE job_id = %(job_id)s AND (round >= %(first_round)s OR outcome = 'declined')
)
ORDER BY rank
"""


def remaining_technicians(job: Job) -> list[int]:
    """Return the technicians without an offer in the current dispatch who never declined, by rank.

    The list is filled with the next statement of the transaction, or its commit.
    """
    remaining: list[int] = []
    given = {"job_id": job.pk, "first_round": job.first_round}
    prepared.change_later(_REMAINING, given, then=lambda found: remaining.extend(pk for (pk,) in found.fetchall()))
    return remaining


def silent_offer_calls(limit: int, but: Collection[int] = ()) -> list[int]:
    """Return ids of calls, but not these, that ended or progressed without their pending offer (unlocked read).

    Offers that stay open after a missed call are already handled.
    """
    rows = prepared.fetch_by_index(_SILENT_CALLS, {"limit": limit, "but": list(but)})
    return [row[0] for row in rows]


def drifted_technicians(limit: int, but: Collection[int] = ()) -> list[int]:
    """Return ids of technicians, but not these, whose counts seem to differ from the jobs (one unlocked read)."""
    rows = prepared.fetch_by_index(_DRIFTED, {"limit": limit, "but": list(but)})
    return [row[0] for row in rows]


def jobs_whose_technician_is_free(but: Collection[int] = ()) -> QuerySet:
    """Select ids of jobs that wait for technicians with another offer, one of whom, not in `but`, is now free."""
    free = Technician.objects.filter(pk=OuterRef("technician_id"), live_offer_id=None).exclude(pk__in=but)
    deferred = Candidate.objects.filter(Exists(free), job_id=OuterRef("pk"), verdict=Candidate.Verdict.DEFERRED)
    waiting = Job.objects.filter(status=Job.Status.DISPATCHING, waiting_for=Job.WaitingFor.TECHNICIAN)
    return waiting.filter(Exists(deferred)).values("pk")


def first_jobs_waiting_for_a_line(jobs: QuerySet) -> QuerySet:
    """Select ids of the jobs that get the next free line: one per organization."""
    waiting = jobs.filter(waiting_for=Job.WaitingFor.LINE)
    in_turn = waiting.order_by("organization_id", "priority", "waiting_since", "pk")
    return in_turn.distinct("organization_id").values("pk")


# Conditions on an event `e`: retention keeps the complete history of open jobs (see core.privacy.event_retention).
_OPEN = "SELECT 1 FROM jobs_job j WHERE j.ended_at IS NULL AND j.organization_id = e.organization_id AND "
EVENTS_OF_OPEN_JOBS = (
    f"e.subject_type = 'job' AND EXISTS ({_OPEN} j.id = e.subject_id)",
    f"e.subject_type = 'submission' AND EXISTS ({_OPEN} j.submission_id = e.subject_id)",
    f"jsonb_typeof(e.data->'job_id') = 'number' AND EXISTS ({_OPEN} j.id = (e.data->>'job_id')::bigint)",
)
