"""The candidates of a dispatch: who is near, ranked, with the reason they are in or out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatch.core import clock, statements
from dispatch.jobs import policies, rules, sql
from dispatch.jobs.models import Job
from dispatch.jobs.services import state
from dispatch.technicians import services as technicians
from dispatch.technicians.services import Nearby

CONSIDERED = 50


@dataclass(frozen=True)
class Found:
    """Who is near: ranked, and how many of them may be offered the job. None are ranked without a position."""

    ranked: Sequence[rules.Ranked[Nearby]]
    fit: int
    radius_m: int


def begin_dispatch(job: Job) -> None:
    """Ranks who is near anew, in place of earlier candidates; the job's next step is due at once, or it is
    `pending` with the reason. The job is locked, `dispatching`, and has no live offer."""
    found = look_around(job)
    job.candidates.all().delete()
    state.save(job)
    write(job, found)


def look_around(job: Job) -> Found:
    """Freezes the policy as it is now into the job and finds who is near; writes nothing, so that a new job need
    not be written twice."""
    policy, skills = policies.and_skills(job.organization_id, job.service_type_id)
    job.policy = policy.to_json()
    job.line_wait_until = job.technician_wait_until = None
    state.wait_for(job, state.Waiting.START, clock.now())
    if job.lat is None or job.lng is None:
        return Found((), 0, policy.radius_m)
    near = technicians.near(
        job.organization,
        job.lat,
        job.lng,
        radius_m=policy.radius_m,
        skill_ids=skills,
        limit=CONSIDERED,
    )
    job.out_of_reach = near.rest
    fit = sum(one.verdict != "out" and one.technician_id not in job.not_again for one in near.considered)
    return Found(rules.rank(policy, near.considered, clock.now()), fit, policy.radius_m)


def write(job: Job, found: Found) -> None:
    """Writes the candidates of a job that was looked around for and saved; without any that is fit it is
    `pending`."""
    if job.lat is None:
        state.give_up(job, Job.PendingReason.NO_POSITION, address=job.address)
        return
    said: dict[str, Any] = {"considered": len(found.ranked), "radius_m": found.radius_m}
    with statements.pipelined():
        sql.write_candidates(job, found.ranked)
        if found.fit:
            state.note(job, "job.offering", fit=found.fit, **said)
    if not found.fit:
        state.give_up(job, Job.PendingReason.NOBODY_NEAR, **said)
