"""Whom to assign: the organization's technicians, the fittest first, each with what speaks against them."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch.core import clock
from dispatch.jobs import policies, rules
from dispatch.jobs.models import Job
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician

MOST = 12
MOST_CONSIDERED = 50


@dataclass(frozen=True)
class Choice:
    """`warning` is empty for one who is fit."""

    technician_id: int
    name: str
    distance_m: int | None
    open_jobs: int
    max_open_jobs: int
    warning: str
    is_in: bool


def choices(job: Job, text: str = "", chosen: int = 0) -> tuple[list[Choice], int]:
    """The first `MOST` (whose names hold `text`), always with the one that is chosen already; and how many more
    there are."""
    crew = Technician.objects.of(job.organization_id).filter(is_active=True)
    if text:
        crew = crew.filter(name__icontains=text)
    count = crew.count()
    found = _near(job, text) if job.lat is not None else []
    known = {one.technician_id for one in found}
    if len(found) < MOST:
        found += [_of(job, row) for row in crew.exclude(pk__in=known).order_by("-on_duty", "name")[:MOST]]
    shown = found[:MOST]
    if chosen and chosen not in {one.technician_id for one in shown}:
        rows = Technician.objects.of(job.organization_id).filter(pk=chosen, is_active=True)
        shown = [*(_of(job, row) for row in rows), *shown[: MOST - 1]]
    return shown, max(0, count - len(shown))


def _near(job: Job, text: str) -> list[Choice]:
    """Those within the radius, in the order in which they would be offered the job now."""
    assert job.lat is not None
    assert job.lng is not None
    policy = policies.frozen(job)
    result = technicians.near(
        job.organization,
        job.lat,
        job.lng,
        radius_m=policy.radius_m,
        skill_ids=_skills(job),
        limit=MOST_CONSIDERED,
    )
    ranked = rules.rank(policy, result.considered, clock.now())
    return [
        Choice(
            one.of.technician_id,
            one.of.name,
            one.of.distance_m,
            one.of.open_jobs,
            one.of.max_open_jobs,
            "they said they cannot make it" if one.of.technician_id in job.not_again
            else "" if one.of.is_in else one.of.reason,
            one.of.is_in and one.of.technician_id not in job.not_again,
        )
        for one in ranked
        if text.casefold() in one.of.name.casefold() and one.of.technician_id != job.technician_id
    ]  # fmt: skip


def _skills(job: Job) -> list[int]:
    return list(job.service_type.required_skills.values_list("pk", flat=True))


def _of(job: Job, row: Technician) -> Choice:
    """One beyond the radius, or for a job whose place is not known."""
    distance, warning = None, "" if row.on_duty else "off duty"
    if job.lat is not None and job.lng is not None:
        policy = policies.frozen(job)
        one = technicians.fitness(row.pk, job.lat, job.lng, radius_m=policy.radius_m, skill_ids=_skills(job))
        distance, warning = one.distance_m, "" if one.is_in else one.reason
    return Choice(row.pk, row.name, distance, row.open_jobs, row.max_open_jobs, warning, not warning)
