"""Set the arrival window of a job that a dispatcher assigns for a time."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.jobs.models import Job
from dispatch.jobs.rules.arrival_window import ArrivalWindow
from dispatch.jobs.services import transitions


def set_window(job: Job, window: ArrivalWindow | None, actor: Actor) -> None:
    """Set the window of the locked job, and append the Event. None keeps the present one.

    Raises ValidationError {arrival_window} if the new window can't be promised.
    """
    if window is None or window == job.arrival_window:
        return
    if problem := window.problem(clock.now()):
        raise ValidationError({"arrival_window": _(problem)})
    job.window_start, job.window_end = window.start, window.end
    Job.objects.filter(pk=job.pk).update(window_start=window.start, window_end=window.end)
    transitions.append_job_event(
        job, "job.corrected", actor=actor, changed=["arrival window"], window_words=job.window_words
    )
