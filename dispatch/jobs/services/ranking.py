"""Rank the technicians near a job, and begin its dispatch: now, or when quiet hours or its window allow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from django.db import OperationalError
from django.db.models import Q
from psycopg.errors import LockNotAvailable

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import policies, rules, sql
from dispatch.jobs.models import Job
from dispatch.jobs.policies import PolicyChain
from dispatch.jobs.rules import CascadePolicy
from dispatch.jobs.rules.arrival_window import local_moment
from dispatch.jobs.rules.quiet_hours import QuietHours
from dispatch.jobs.services import slots, transitions
from dispatch.jobs.services.transitions import Waiting
from dispatch.jobs.sql import CandidateRow, DispatchReadiness, Skills
from dispatch.technicians import road_times
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import distance_words
from dispatch.technicians.services import Nearby

# Number of technicians nearby that are ranked.
MAX_REASON = 160  # characters
CONSIDERED = 50
# Part of a candidate's reason.
PREFERRED = "the customer's preferred technician"
# What holds back a job that could call technicians.
HELD = frozenset({Waiting.QUIET_HOURS, Waiting.WINDOW})


@dataclass(frozen=True)
class RankedTechnicians:
    """The ranked technicians nearby and the number of eligible ones. Empty for a job without a position.

    `may_widen`: a later round searches a wider radius.
    """

    ranked: Sequence[rules.Ranked[Nearby]]
    fit: int
    radius_m: int
    may_widen: bool = False


def begin_dispatch(job: Job) -> None:
    """Replace the candidates by a new ranking.

    Then the job's next step is due immediately, or the job is `pending` with the reason. The job must be locked,
    `dispatching`, and without a live offer.
    """
    slots.release_holds(job)  # by the policy under which they were made
    ranking = find_candidates(job)
    job.candidates.all().delete()
    transitions.save_job(job)
    write_ranking(job, ranking)


def replace_candidates(job: Job) -> None:
    """Replace the candidates of a locked job by a new ranking, for a dispatcher who decides. Nobody is called."""
    ranking = find_candidates(job)
    job.candidates.all().delete()
    sql.write_candidates(job, ranking.ranked)


def find_candidates(job: Job, chain: PolicyChain | None = None) -> RankedTechnicians:
    """Freeze the current policy into the job and find the technicians nearby.

    Writes nothing, so that a new job is written only once. `chain`: what applies now, if the transaction has
    loaded it.
    """
    chain = chain or policies.load_chain(job.organization_id, job.service_type_id)
    policy, skills = chain.cascade, chain.skills
    job.policy = policy.to_json()
    job.line_wait_until = job.technician_wait_until = job.fill_at = None
    if (hold := hold_of(job, chain.quiet)) is not None:
        hold_job(job, hold)
    else:
        transitions.wait_for(job, transitions.Waiting.START, clock.now())
    radius_m = policies.search_radius(job)
    if job.lat is None or job.lng is None:
        return RankedTechnicians((), 0, radius_m)
    ranked = _rank_technicians(job, policy, skills, radius_m)
    fit = sum(_is_eligible(candidate, job.not_again) for candidate in ranked)
    return RankedTechnicians(ranked, fit, radius_m, policy.widens_after(job.round - job.first_round + 1))


def _rank_technicians(
    job: Job, policy: CascadePolicy, skills: Skills, radius_m: int
) -> list[rules.Ranked[Nearby]]:
    """Search the radius, rank the technicians found, and count the others in `job.out_of_reach`."""
    assert job.lat is not None
    assert job.lng is not None
    nearby = technicians.find_nearby(
        job.organization,
        job.lat,
        job.lng,
        radius_m=radius_m,
        skill_ids=skills.required,
        limit=CONSIDERED,
        during=policies.time_of(job, skills.minutes),
    )
    job.out_of_reach = nearby.rest
    preferences = policies.preferences_of(job, skills)
    considered = [
        describe_reason(job, policy, technician, preferences)
        for technician in _with_preferred(job, skills, radius_m, nearby.considered)
    ]
    return rules.rank_candidates(policy, considered, clock.now(), preferences)


def _with_preferred(job: Job, skills: Skills, radius_m: int, considered: list[Nearby]) -> list[Nearby]:
    """Add the customer's preferred technician to those found, eligible or not, so that the reason is shown."""
    preferred_id = job.preferred_technician_id
    if preferred_id is None or any(technician.technician_id == preferred_id for technician in considered):
        return considered
    assert job.lat is not None
    assert job.lng is not None
    try:
        preferred = technicians.check_fitness(
            preferred_id,
            job.lat,
            job.lng,
            radius_m=radius_m,
            skill_ids=skills.required,
            organization=job.organization,
            during=policies.time_of(job, skills.minutes),
        )
    except Technician.DoesNotExist:
        return considered
    if preferred.organization_id != job.organization_id:
        return considered
    if preferred.distance_m <= radius_m:  # beyond the limit of the search
        rest = Counter(job.out_of_reach)
        rest[preferred.code] -= 1
        job.out_of_reach = dict(+rest)
    return [*considered, preferred]


def describe_reason(job: Job, policy: CascadePolicy, technician: Nearby, preferences: rules.Preferences) -> Nearby:
    """Return the technician with the complete reason for dispatchers.

    Besides the eligibility, it names the round that reaches the technician, their preferred skills, and the
    customer's preference.
    """
    parts = [technician.reason]
    if technician.verdict != "out":
        if (nth := policy.first_round_within(technician.distance_m)) > 1:
            radius = distance_words(policy.radius_in_round(nth), job.organization.distance_unit)
            parts.append(f"within the {radius} of round {nth}")
        skills = [name for pk, name in preferences.skills.items() if pk in technician.skill_ids]
        if skills:
            parts.append(f"preferred skill{'' if len(skills) == 1 else 's'}: {', '.join(skills)}")
    if technician.technician_id == preferences.technician_id:
        parts.insert(1, PREFERRED)
    if len(parts) == 1 and len(technician.reason) <= MAX_REASON:
        return technician
    reason = ", ".join(parts)
    return technician._replace(reason=reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 1] + "…")


def _is_eligible(candidate: rules.Ranked[Nearby], not_again: Sequence[int]) -> bool:
    return candidate.technician.verdict != "out" and candidate.technician.technician_id not in not_again


def widen_search(job: Job, policy: CascadePolicy, readiness: DispatchReadiness) -> dict[str, Any]:
    """Add the technicians within the wider radius of the job's new round to its candidates.

    Earlier candidates keep their rank. Those who were not eligible are checked again. Return the facts for the
    Event. Raises a lock timeout if nobody else can be called and the rows of all new technicians are locked.
    """
    radius_m = policies.search_radius(job)
    known = {row.technician_id: row for row in readiness.candidates}
    ranked = _rank_technicians(job, policy, readiness.skills, radius_m)
    found = [candidate for candidate in ranked if candidate.technician.technician_id not in known]
    free = technicians.find_unlocked([candidate.technician.technician_id for candidate in found])
    last = max((row.rank for row in readiness.candidates), default=0)
    added = [
        candidate._replace(rank=rank)
        for rank, candidate in enumerate((one for one in found if one.technician.technician_id in free), last + 1)
    ]
    checked = [
        candidate._replace(rank=row.rank)
        for candidate in ranked
        if (row := known.get(candidate.technician.technician_id))
        and row.verdict == "out"
        and not row.skipped_round
    ]
    locked = [one for one in found if one.technician.technician_id not in free]
    if any(_is_eligible(candidate, job.not_again) for candidate in locked):
        _require_somebody(job, policy, readiness, [*added, *checked])
    sql.write_candidates(job, added)
    sql.update_candidates(job, checked)
    fit = sum(_is_eligible(candidate, job.not_again) for candidate in [*added, *checked])
    facts = {"fit": fit, "considered": len(known) + len(added), **_radius_facts(job, radius_m)}
    return facts | _measure_facts(added)


def rows_are_locked() -> OperationalError:
    """Return the lock timeout of a cascade that would go on without technicians whose rows are locked.

    The step, or the start of the job, is repeated.
    """
    error = OperationalError("The rows of eligible technicians are locked.")
    error.__cause__ = LockNotAvailable()
    return error


def _require_somebody(
    job: Job, policy: CascadePolicy, readiness: DispatchReadiness, newly: Sequence[rules.Ranked[Nearby]]
) -> None:
    """Raise a lock timeout if the cascade would end now although eligible technicians are locked."""
    rows = {row.technician_id: row for row in readiness.candidates}
    rows |= {one.technician.technician_id: CandidateRow.new(one) for one in newly}
    if next_step(job, policy, rows.values(), readiness).kind == "exhausted":
        raise rows_are_locked()


def next_step(
    job: Job,
    policy: CascadePolicy,
    candidates: Iterable[CandidateRow],
    readiness: DispatchReadiness,
    *,
    busy: Collection[int] = (),
    may_wait: bool = True,
) -> rules.NextStep:
    """Choose the next step of the cascade from the loaded facts, as `rules.next_step` does."""
    return rules.next_step(
        [rules.CandidateRow(row.technician_id, row.rank, row.verdict, row.skipped_round) for row in candidates],
        [rules.OfferRow(offer.technician_id, offer.round, offer.outcome) for offer in readiness.offers],
        policy=policy,
        round_=job.round,
        first_round=job.first_round,
        busy=busy,
        may_wait=may_wait,
        not_again=job.not_again,
        ringing=[offer.technician_id for offer in readiness.offers if offer.status == "pending"],
    )


def _radius_facts(job: Job, radius_m: int) -> dict[str, Any]:
    """Return a radius for an Event, in meters and in the organization's unit."""
    return {"radius_m": radius_m, "radius_words": distance_words(radius_m, job.organization.distance_unit)}


def _measure_facts(ranked: Sequence[rules.Ranked[Nearby]]) -> dict[str, Any]:
    """Return for an Event how many eligible technicians are ranked by their drive. Empty without a server."""
    eligible = [one.technician for one in ranked if one.technician.verdict != "out"]
    if not eligible or not road_times.is_configured():
        return {}
    return {"by_road": sum(one.travel_s is not None for one in eligible), "ranked": len(eligible)}


def without_locked(ranking: RankedTechnicians, not_again: Sequence[int]) -> RankedTechnicians:
    """Leave out technicians whose rows another session has locked.

    Raises a lock timeout if no eligible technician remains.
    """
    free = technicians.find_unlocked([candidate.technician.technician_id for candidate in ranking.ranked])
    ranked = [candidate for candidate in ranking.ranked if candidate.technician.technician_id in free]
    fit = sum(_is_eligible(candidate, not_again) for candidate in ranked)
    if ranking.fit and not fit:
        raise rows_are_locked()
    return replace(ranking, ranked=ranked, fit=fit)


def write_ranking(job: Job, ranking: RankedTechnicians) -> None:
    """Write the candidates of a saved job. If none is eligible in any round, the job becomes `pending`.

    A job that is held, by quiet hours or until its arrival window, is ranked again at the end, so it never becomes
    `pending` here. A job whose later rounds search a wider radius goes on to them.
    """
    if job.lat is None:
        transitions.mark_pending(job, Job.PendingReason.NO_POSITION, address=job.address)
        return
    facts: dict[str, Any] = {"considered": len(ranking.ranked), **_radius_facts(job, ranking.radius_m)}
    facts |= _measure_facts(ranking.ranked)
    goes_on = ranking.fit > 0 or ranking.may_widen
    is_held = job.waiting_for in HELD
    sql.write_candidates(job, ranking.ranked)
    if is_held:
        announce_hold(job)
    elif goes_on:
        preferred = _describe_preferred(job, ranking)
        at_once = slots.describe_at_once(job, ranking.fit)
        transitions.append_job_event(job, "job.offering", fit=ranking.fit, **facts, **preferred, **at_once)
    else:
        transitions.mark_pending(job, Job.PendingReason.NOBODY_NEAR, **facts)


def _describe_preferred(job: Job, ranking: RankedTechnicians) -> dict[str, Any]:
    """Return why the customer's preferred technician is not called first, for the Event. Empty if they are."""
    if not ranking.ranked or ranking.ranked[0].technician.technician_id != job.preferred_technician_id:
        return {}
    preferred = ranking.ranked[0].technician
    if preferred.is_in:
        return {}
    return {"preferred": preferred.name, "preferred_reason": preferred.reason.replace(f", {PREFERRED}", "")}


def end_cascade(job: Job, readiness: DispatchReadiness) -> None:
    """Make the job `pending` after its last round: nobody accepted, or nobody eligible was near in any round."""
    eligible = [
        row
        for row in readiness.candidates
        if (row.verdict != "out" or row.skipped_round) and row.technician_id not in job.not_again
    ]
    if eligible:
        transitions.mark_pending(job, Job.PendingReason.EXHAUSTED, offers=len(readiness.offers))
        return
    facts: dict[str, Any] = {
        "considered": len(readiness.candidates),
        **_radius_facts(job, policies.search_radius(job)),
    }
    transitions.mark_pending(job, Job.PendingReason.NOBODY_NEAR, **facts)


class Hold(NamedTuple):
    """What holds back a job that could call technicians, and until when."""

    waiting_for: Waiting
    until: datetime


def hold_of(job: Job, quiet: QuietHours) -> Hold | None:
    """Return what holds back the job now: its arrival window, or else quiet hours.

    None if nothing does, or if a dispatcher decided to call now.
    """
    if job.calls_at_any_hour:
        return None
    now = clock.now()
    if job.arrival_window is not None:
        begin = job.arrival_window.calls_begin(policies.frozen_policy(job).window_lead_s)
        if begin > now:
            return Hold(Waiting.WINDOW, begin)
    quiet_end = quiet.end_for(job.priority, now, job.organization.time_zone)
    return Hold(Waiting.QUIET_HOURS, quiet_end) if quiet_end is not None else None


def freeze_and_check_hold(job: Job) -> bool:
    """Freeze the current policy into the job, and return whether the job is held back now by it.

    An earlier decision to call at once no longer counts.
    """
    chain = policies.load_chain(job.organization_id, job.service_type_id)
    job.policy, job.calls_at_any_hour = chain.cascade.to_json(), False
    return hold_of(job, chain.quiet) is not None


def was_held(job: Job) -> bool:
    """Return whether the job was held back when its cascade was last in progress, and has called nobody since."""
    ranked = Q(kind="job.offering") | Q(kind="job.waiting", data__waiting_for__in=sorted(HELD))
    events = Event.objects.filter(ranked, subject_type="job", subject_id=job.pk)
    return bool(events.order_by("-id").values_list("kind", flat=True).first() == "job.waiting")


def describe_hold(job: Job) -> tuple[str, str]:
    """Return what would hold the job back if it were dispatched again, and until when in local time.

    Such as ("quiet_hours", "7:00"); two empty strings if nothing would.
    """
    hold = hold_of(job, policies.quiet_hours(job.organization_id, job.service_type_id))
    return (
        (str(hold.waiting_for), local_moment(hold.until, job.organization.time_zone, clock.now()))
        if hold
        else ("", "")
    )


def hold_job(job: Job, hold: Hold) -> None:
    """Make an unsaved or locked job wait for the end of what holds it back."""
    job.line_wait_until = job.technician_wait_until = None
    transitions.wait_for(job, hold.waiting_for, hold.until)


def announce_hold(job: Job) -> None:
    """Append the Event, and set the timer of a job that is held back."""
    assert job.next_action_at is not None
    transitions.append_job_event(
        job, "job.waiting", waiting_for=job.waiting_for, until=job.next_action_at.isoformat(),
        until_words=local_moment(job.next_action_at, job.organization.time_zone, clock.now()),
    )  # fmt: skip
    transitions.set_timer(job)
