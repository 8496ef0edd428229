"""Perform people's actions after a job's assignment: on the way, started, late, correct, reopen, technician told.

The rules of `actions` apply.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.core.exceptions import ValidationError

from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.jobs.models import CustomerTextKind, Job
from dispatch.jobs.rules import Action
from dispatch.jobs.rules.customer_phrases import local_time
from dispatch.jobs.rules.on_the_way import MAX_ETA_MINUTES, MAX_LATE_MINUTES, attention_while_on_the_way
from dispatch.jobs.services import customer_texts, notices, transitions
from dispatch.jobs.services.actions import (
    locked_for_action,
    raise_illegal_transition,
)
from dispatch.jobs.services.notices import News
from dispatch.technicians import services as technicians


def report_on_the_way(
    job_id: int,
    *,
    actor: Actor,
    eta_minutes: int | None = None,
    said_at: datetime | None = None,
    version: int | None = None,
    note: str = "",
) -> Job:
    """Record that the technician is on the way, and the arrival expected in `eta_minutes`; inform the customer.

    `said_at`: when they said so (default: now). A later report changes the ETA; without minutes, it keeps one that
    has not passed. The reminder that the job was not started is postponed until after the arrival.
    Raises ValidationError {eta_minutes} outside 1…480.
    """
    if eta_minutes is not None and not 1 <= eta_minutes <= MAX_ETA_MINUTES:
        raise ValidationError(
            {"eta_minutes": _("Must be between 1 and {most} minutes.").format(most=MAX_ETA_MINUTES)}
        )
    with locked_for_action(job_id, Action.ON_THE_WAY, version) as job:
        assert job.technician is not None
        now = clock.now()
        job.on_the_way_at = job.on_the_way_at or said_at or now
        if eta_minutes is not None:
            job.eta_at = (said_at or now) + timedelta(minutes=eta_minutes)
        elif job.eta_at is not None and job.eta_at <= now:
            job.eta_at = None
        if job.attention_at is not None:
            job.attention_at = attention_while_on_the_way(job.attention_at, job.eta_at, now)
            job.reminded_at = None
        transitions.save_job(job)
        eta = local_time(job.eta_at, job.organization.time_zone)
        transitions.append_job_event(
            job, "job.on_the_way", actor=actor, technician_id=job.technician_id, technician=job.technician.name,
            by=actor.type, eta_minutes=eta_minutes, eta=eta, note=note,
        )  # fmt: skip
        customer_texts.inform_customer(job, CustomerTextKind.ON_THE_WAY)
        notices.end_known(job, actor)
    return job


def mark_started(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Record that the technician has started the work."""
    with locked_for_action(job_id, Action.MARK_STARTED, version) as job:
        job.started_at = clock.now()
        transitions.expect_end(job)
        transitions.save_job(job)
        transitions.append_job_event(job, "job.started", actor=actor, technician_id=job.technician_id, note=note)
        customer_texts.withdraw(job, *customer_texts.ABOUT_COMING)
        notices.end_known(job, actor)
    return job


def report_late(
    job_id: int,
    minutes: int,
    *,
    actor: Actor,
    version: int | None = None,
    note: str = "",
    by: str = "",
) -> Job:
    """Record that the technician will be `minutes` late; inform the customer, and the dispatchers unless one acts.

    The time by which the work must be started is not before that. `by`: the technician's channel. Raises
    ValidationError {minutes} outside 1…MAX_LATE_MINUTES.
    """
    if not 1 <= minutes <= MAX_LATE_MINUTES:
        raise ValidationError(
            {"minutes": _("Must be between 1 and {most} minutes.").format(most=MAX_LATE_MINUTES)}
        )
    with locked_for_action(job_id, Action.REPORT_LATE, version) as job:
        assert job.technician is not None
        job.late_minutes, job.late_reported_at = minutes, clock.now()
        arrives_at = job.late_reported_at + timedelta(minutes=minutes)
        if job.attention_at is not None and job.attention_at < arrives_at:
            job.attention_at, job.reminded_at = arrives_at, None
        transitions.save_job(job)
        transitions.append_job_event(
            job, "job.running_late", actor=actor, technician_id=job.technician_id, technician=job.technician.name,
            minutes=minutes, by=by or actor.type, note=note,
        )  # fmt: skip
        customer_texts.inform_customer(job, CustomerTextKind.RUNNING_LATE)
        notices.end_known(job, actor)
    return job


def reopen(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Undo the completion of a job: its technician has it again, and is informed."""
    with locked_for_action(job_id, Action.REOPEN, version) as job:
        assert job.technician_id is not None
        technicians.add_open_job(job.technician_id)
        customer_texts.withdraw(job, CustomerTextKind.COMPLETED)
        job.status, job.ended_at = Job.Status.ASSIGNED, None
        job.late_minutes = job.late_reported_at = None
        if job.started_at is None:
            if job.eta_at is None or job.eta_at <= clock.now():  # a later ETA is that of a trip in progress
                job.on_the_way_at = job.eta_at = None
            transitions.expect_start(job)
        else:
            transitions.expect_end(job)
        transitions.save_job(job)
        transitions.append_job_event(job, "job.reopened", actor=actor, technician_id=job.technician_id, note=note)
        notices.inform(job, job.technician_id, News.REOPENED)
    return job


def mark_technician_told(
    job_id: int,
    technician_id: int | None = None,
    *,
    actor: Actor,
    version: int | None = None,
    note: str = "",
) -> Job:
    """Record that a person told the technician of the change that no text or call has delivered; end the alert.

    `technician_id`: None means all technicians of the job who were not reached, or who would be notified after
    quiet hours. The job itself does not change. Raises ValidationError {technician} if all of them are others.
    """
    with locked_for_action(job_id, Action.TECHNICIAN_TOLD, version) as job:
        uninformed = notices.find_uninformed(job)
        if not uninformed:
            raise_illegal_transition(job, _("No technician still has to be notified about this job."))
        concerned = [notice for notice in uninformed if technician_id in (None, notice.technician_id)]
        if not concerned:
            others = _("This technician does not have to be notified about this job.")
            raise ValidationError({"technician": others})
        was_deferred = notices.is_assignment_deferred(job)
        for notice in concerned:
            notices.mark_told(job, notice, actor=actor, note=note)
        notices.raise_again(job)
        if was_deferred and not notices.is_assignment_deferred(job):
            customer_texts.inform_of_technician(job)
    return job
