"""Rank the technicians near a job, and begin its dispatch: now, or after quiet hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.db import OperationalError
from psycopg.errors import LockNotAvailable

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.jobs import policies, rules, sql
from dispatch.jobs.models import Job
from dispatch.jobs.rules.quiet_hours import QuietHours
from dispatch.jobs.services import transitions
from dispatch.jobs.services.transitions import Waiting
from dispatch.technicians import services as technicians
from dispatch.technicians.services import Nearby

# Number of technicians nearby that are ranked.
CONSIDERED = 50


@dataclass(frozen=True)
class RankedTechnicians:
    """The ranked technicians nearby and the number of eligible ones. Empty for a job without a position."""

    ranked: Sequence[rules.Ranked[Nearby]]
    fit: int
    radius_m: int


def begin_dispatch(job: Job) -> None:
    """Replace the candidates by a new ranking.

    Then the job's next step is due immediately, or the job is `pending` with the reason. The job must be locked,
    `dispatching`, and without a live offer.
    """
    ranking = find_candidates(job)
    job.candidates.all().delete()
    transitions.save_job(job)
    write_ranking(job, ranking)


def find_candidates(job: Job) -> RankedTechnicians:
    """Freeze the current policy into the job and find the technicians nearby.

    Writes nothing, so that a new job is written only once.
    """
    policy, skills, quiet = policies.for_new_job(job.organization_id, job.service_type_id)
    job.policy = policy.to_json()
    job.line_wait_until = job.technician_wait_until = None
    if (quiet_end := quiet_end_of(job, quiet)) is not None:
        hold_for_quiet_hours(job, quiet_end)
    else:
        transitions.wait_for(job, transitions.Waiting.START, clock.now())
    if job.lat is None or job.lng is None:
        return RankedTechnicians((), 0, policy.radius_m)
    nearby = technicians.find_nearby(
        job.organization,
        job.lat,
        job.lng,
        radius_m=policy.radius_m,
        skill_ids=skills,
        limit=CONSIDERED,
    )
    job.out_of_reach = nearby.rest
    fit = sum(
        technician.verdict != "out" and technician.technician_id not in job.not_again
        for technician in nearby.considered
    )
    return RankedTechnicians(rules.rank_candidates(policy, nearby.considered, clock.now()), fit, policy.radius_m)


def without_locked(ranking: RankedTechnicians, not_again: Sequence[int]) -> RankedTechnicians:
    """Leave out technicians whose rows another session has locked.

    Raises a lock timeout if no eligible technician remains.
    """
    free = technicians.find_unlocked([candidate.technician.technician_id for candidate in ranking.ranked])
    ranked = [candidate for candidate in ranking.ranked if candidate.technician.technician_id in free]
    fit = sum(
        candidate.technician.verdict != "out" and candidate.technician.technician_id not in not_again
        for candidate in ranked
    )
    if ranking.fit and not fit:
        raise OperationalError("The rows of all eligible technicians are locked.") from LockNotAvailable()
    return replace(ranking, ranked=ranked, fit=fit)


def write_ranking(job: Job, ranking: RankedTechnicians) -> None:
    """Write the candidates of a saved job. If none is eligible, the job becomes `pending`.

    A job that waits for the end of quiet hours is ranked again at their end, so it never becomes `pending` here.
    """
    if job.lat is None:
        transitions.mark_pending(job, Job.PendingReason.NO_POSITION, address=job.address)
        return
    facts: dict[str, Any] = {"considered": len(ranking.ranked), "radius_m": ranking.radius_m}
    is_held = job.waiting_for == Waiting.QUIET_HOURS
    with prepared.pipeline():
        sql.write_candidates(job, ranking.ranked)
        if ranking.fit and not is_held:
            transitions.append_job_event(job, "job.offering", fit=ranking.fit, **facts)
    if is_held:
        announce_quiet_hours(job)
    elif not ranking.fit:
        transitions.mark_pending(job, Job.PendingReason.NOBODY_NEAR, **facts)


def quiet_end_of(job: Job, quiet: QuietHours) -> datetime | None:
    """Return until when quiet hours hold back the job now, or None."""
    if job.calls_at_any_hour:
        return None
    return quiet.end_for(job.priority, clock.now(), job.organization.time_zone)


def quiet_end_words(job: Job) -> str:
    """Return the local time, "7:00", until which quiet hours would hold the job back if it were dispatched again.

    Empty if they would not.
    """
    quiet = policies.quiet_hours(job.organization_id, job.service_type_id)
    quiet_end = quiet_end_of(job, quiet)
    return _local_time(job, quiet_end) if quiet_end else ""


def _local_time(job: Job, moment: datetime) -> str:
    local = moment.astimezone(ZoneInfo(job.organization.time_zone))
    return f"{local.hour}:{local.minute:02d}"


def hold_for_quiet_hours(job: Job, until: datetime) -> None:
    """Make an unsaved or locked job wait for the end of quiet hours."""
    job.line_wait_until = job.technician_wait_until = None
    transitions.wait_for(job, Waiting.QUIET_HOURS, until)


def announce_quiet_hours(job: Job) -> None:
    """Append the Event, and set the timer of a job that waits for the end of quiet hours."""
    assert job.next_action_at is not None
    transitions.append_job_event(
        job, "job.waiting", waiting_for=str(Waiting.QUIET_HOURS), until=job.next_action_at.isoformat(),
        until_words=_local_time(job, job.next_action_at),
    )  # fmt: skip
    transitions.set_timer(job)
