"""List the technicians who can be assigned, best match first; ineligible technicians have a warning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

from django.db.models import F

from dispatch.core import clock
from dispatch.jobs import policies, rules, services
from dispatch.jobs.models import Job
from dispatch.jobs.services import notices
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import AT_LIMIT, USUAL_SPEED, distance_words

MAX_CHOICES = 12
MAX_CONSIDERED, MAX_CHECKED = 50, 200


@dataclass(frozen=True)
class Choice:
    """One technician. `warning` is empty for an eligible one; `open_jobs`: those at the time of the job."""

    technician_id: int
    name: str
    distance_m: int | None
    travel_s: int | None
    open_jobs: int
    max_open_jobs: int
    warning: str
    is_in: bool
    is_at_limit: bool = False


def find_choices(job: Job, text: str = "", chosen: int = 0) -> tuple[list[Choice], int]:
    """Return the first `MAX_CHOICES` technicians whose names contain `text`, and the number of further matches.

    The chosen technician is always included. The one who has the job is left out.
    """
    others = Technician.objects.of(job.organization_id).filter(is_active=True)
    if job.technician_id is not None:
        others = others.exclude(pk=job.technician_id)
    matching = others.filter(name__icontains=text) if text else others
    count = matching.count()
    services.load_road_times(job, policies.search_radius(job))
    choices = _technicians_nearby(job, text) if job.lat is not None else []
    known = {choice.technician_id for choice in choices}
    if len(choices) < MAX_CHOICES:
        choices += [
            _choice_of(job, row)
            for row in matching.exclude(pk__in=known).order_by("-on_duty", "name")[:MAX_CHOICES]
        ]
    shown = choices[:MAX_CHOICES]
    if chosen and chosen not in {choice.technician_id for choice in shown}:
        rows = others.filter(pk=chosen)
        shown = [*(_choice_of(job, row) for row in rows), *shown[: MAX_CHOICES - 1]]
    return _warn_unreachable(job, _with_refusals(job, shown)), max(0, count - len(shown))


def _warn_unreachable(job: Job, shown: list[Choice]) -> list[Choice]:
    """Add a warning to technicians who can be neither texted nor called."""
    rows = Technician.objects.filter(pk__in=[choice.technician_id for choice in shown]).values_list("pk", "phone")
    phones = {pk: str(phone) for pk, phone in rows}
    mute = notices.unreachable_phones(job, list(phones.values()))
    said = "can't be texted or called"
    return [
        replace(choice, warning=f"{choice.warning}, {said}" if choice.warning else said, is_in=False)
        if phones.get(choice.technician_id) in mute
        else choice
        for choice in shown
    ]


def _technicians_nearby(job: Job, text: str, limit: int = MAX_CONSIDERED) -> list[Choice]:
    """Return technicians within the radius, in the order in which they would be offered the job now."""
    assert job.lat is not None
    assert job.lng is not None
    policy = policies.frozen_policy(job)
    skills = policies.load_chain(job.organization_id, job.service_type_id).skills
    result = technicians.find_nearby(
        job.organization,
        job.lat,
        job.lng,
        radius_m=policies.search_radius(job),
        skill_ids=skills.required,
        limit=limit,
        during=policies.time_of(job, skills.minutes),
    )
    preferences = policies.preferences_of(job, skills)
    ranked = rules.rank_candidates(policy, result.considered, clock.now(), preferences)
    return [
        Choice(
            candidate.technician.technician_id,
            candidate.technician.name,
            candidate.technician.distance_m,
            candidate.technician.travel_s,
            candidate.technician.open_jobs,
            candidate.technician.max_open_jobs,
            "" if candidate.technician.is_in else candidate.technician.reason,
            candidate.technician.is_in,
            candidate.technician.code == AT_LIMIT,
        )
        for candidate in ranked
        if text.casefold() in candidate.technician.name.casefold()
        and candidate.technician.technician_id != job.technician_id
    ]


def _with_refusals(job: Job, choices: list[Choice]) -> list[Choice]:
    """Warn of technicians who get no further offer of this job. The refusal replaces every other warning."""
    declined = job.offers.filter(outcome=rules.Outcome.DECLINED).values_list("technician_id", flat=True)
    refused = dict.fromkeys(declined, "declined this job")
    refused |= dict.fromkeys(job.not_again, "said they can't make it")
    return [
        replace(choice, warning=refused[choice.technician_id], is_in=False, is_at_limit=False)
        if choice.technician_id in refused
        else choice
        for choice in choices
    ]


def _skills(job: Job) -> list[int]:
    return list(job.service_type.required_skills.values_list("pk", flat=True))


def _choice_of(job: Job, row: Technician) -> Choice:
    """Return the choice for a technician beyond the radius, or for a job without a position."""
    distance, travel_s, warning = None, None, "" if row.on_duty else "off duty"
    open_jobs = row.open_jobs
    if job.lat is not None and job.lng is not None:
        fitness = technicians.check_fitness(
            row.pk,
            job.lat,
            job.lng,
            radius_m=policies.search_radius(job),
            skill_ids=_skills(job),
            during=policies.time_of(job, job.service_type.expected_minutes),
        )
        distance, travel_s, open_jobs = fitness.distance_m, fitness.travel_s, fitness.open_jobs
        warning = "" if fitness.is_in else fitness.reason
    return Choice(row.pk, row.name, distance, travel_s, open_jobs, row.max_open_jobs, warning, not warning)


@dataclass(frozen=True)
class DropWarnings:
    """What speaks against dropping a job on a technician.

    `warnings`: the text by technician, empty for an eligible one. `others`: the text for all other technicians.
    `limits`: the workload of the technicians whose limit depends on the time of the drop.
    """

    warnings: dict[int, str]
    others: str
    limits: dict[int, Workload]


class Workload(TypedDict):
    """The open jobs of a technician, times in seconds since 1970. `drive_s`: before and after the dropped job."""

    open: int
    max: int
    drive_s: int
    planned: list[tuple[int, int]]


def find_warnings(job: Job) -> DropWarnings:
    """Return what speaks against dropping the job on technicians. Nothing is known of a job without a position."""
    if job.lat is None:
        return DropWarnings({}, "", {})
    choices = _with_refusals(job, _technicians_nearby(job, "", limit=MAX_CHECKED))
    warnings = {choice.technician_id: "" if choice.is_at_limit else choice.warning for choice in choices}
    if job.technician_id is not None:
        warnings[job.technician_id] = ""
    radius = distance_words(policies.search_radius(job), job.organization.distance_unit)
    return DropWarnings(warnings, f"more than {radius} away", _workloads(choices))


def _workloads(choices: list[Choice]) -> dict[int, Workload]:
    distances = {choice.technician_id: choice.distance_m or 0 for choice in choices}
    loaded = Technician.objects.filter(pk__in=distances, open_jobs__gte=F("max_open_jobs"))
    now = clock.now()
    return {
        row.pk: Workload(
            open=row.open_jobs,
            max=row.max_open_jobs,
            drive_s=round(distances[row.pk] / USUAL_SPEED),
            planned=[
                (int(span.lower.timestamp()), int(max(span.upper, now).timestamp()))
                for span in row.planned_times or ()
            ],
        )
        for row in loaded
    }
