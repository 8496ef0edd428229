"""Refusing what no longer fits, and saying who did what when."""

from __future__ import annotations

from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from dispatch.core.events import Actor
from dispatch.core.problems import Conflict
from dispatch.jobs import timeline
from dispatch.jobs.models import Job
from dispatch.jobs.rules import DONE_TO, Action, status_after


class IllegalTransition(Conflict):
    """409: the job's status does not allow this action; says how it came to have that status."""

    default_code = "illegal_transition"


def check_version(job: Job, version: int | None) -> None:
    """Raises Conflict when the person decided on another version than this; None decides on whatever is there."""
    if version is not None and version != job.version:
        raise _refusal(Conflict, job, "This job has changed.")


def check_legal(job: Job, action: Action) -> None:
    """Raises IllegalTransition unless the table allows `action` now."""
    if status_after(job.status, action) is None:
        refuse(job, f"This job is {job.get_status_display().lower()}, so it cannot be {DONE_TO[action]}.")
    if action is Action.RESUME and job.paused_at is None:
        refuse(job, "This job is not paused, so it cannot be resumed.")
    if action in (Action.PAUSE, Action.CALL_NEXT, Action.EXTEND) and job.paused_at is not None:
        refuse(job, f"This job is paused, so it cannot be {DONE_TO[action]}. Resume it first.")


def refuse(job: Job, why: str) -> NoReturn:
    """Raises IllegalTransition with the reason and the last thing that happened."""
    raise _refusal(IllegalTransition, job, why)


def _refusal(refusal: type[Conflict], job: Job, why: str) -> Conflict:
    """With the last thing that happened, asked for once: who, did what, when."""
    found: dict[str, Any] = {"version": job.version, "job_status": str(job.status)}
    if (last := timeline.last_change(job)) is not None:
        at = last.at.astimezone(ZoneInfo(job.organization.time_zone))
        why = f"{why} {last.actor_label} {last.did} at {at:%H:%M:%S %Z on %Y-%m-%d}."
        found |= {"by": Actor(last.actor_type, last.actor_id, last.actor_label), "did": last.did, "at": last.at}
    return refusal(why, **found)
