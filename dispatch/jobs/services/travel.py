"""Ask for the drives by road before a ranking, outside the transaction that ranks."""

from __future__ import annotations

from dispatch.jobs import policies
from dispatch.jobs.geocoding import Location
from dispatch.jobs.models import Job, Submission
from dispatch.jobs.services.ranking import CONSIDERED, HELD
from dispatch.technicians import road_times
from dispatch.technicians import services as technicians


def is_loadable(job: Job) -> bool:
    """Return whether `load_road_times` would ask the server about the job."""
    return job.lat is not None and job.lng is not None and road_times.may_ask()


def load_road_times(job: Job, radius_m: int | None = None) -> None:
    """Ask the OSRM server, if there is one, for the drives to the job, so that the next ranking knows them.

    `radius_m`: the radius that will be searched (default: that of a new dispatch). Call it outside any
    transaction. It waits for the server once, for OSRM_TIMEOUT_S at most. If the server does not answer, the
    ranking uses straight lines.
    """
    if not is_loadable(job):
        return
    assert job.lat is not None
    assert job.lng is not None
    chain = policies.load_chain(job.organization_id, job.service_type_id)
    technicians.load_road_times(
        job.organization,
        job.lat,
        job.lng,
        radius_m=chain.cascade.radius_in_round(1) if radius_m is None else radius_m,
        skill_ids=chain.skills.required,
        limit=CONSIDERED,
        also=job.preferred_technician_id,
        during=policies.time_of(job, chain.skills.minutes),
    )


def load_before_start(submission: Submission, lat: float, lng: float) -> None:
    """Do the same for the job that a submission becomes at this position."""
    load_road_times(
        Job(
            organization=submission.organization,
            service_type_id=submission.service_type_id,
            preferred_technician_id=submission.preferred_technician_id,
            lat=lat,
            lng=lng,
            window_start=submission.window_start,
            window_end=submission.window_end,
            expected_minutes=submission.expected_minutes,
        )
    )


def load_before_action(job_id: int, location: Location | None = None, *, is_held: bool = False) -> None:
    """Do the same before a person's action that may rank again. `location`: the job's new one, if it is moved.

    `is_held`: the action ranks only a job that is held back.
    """
    if not road_times.may_ask():
        return
    job = Job.objects.select_related("organization").filter(pk=job_id).first()
    if job is None or (is_held and job.waiting_for not in HELD):
        return
    if location is not None:
        job.lat, job.lng = location.lat, location.lng
    load_road_times(job)
