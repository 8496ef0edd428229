"""Actions of people on a job that is flagged as a probable duplicate: merge it into the other job, or go on.

They behave as the actions of `actions` do: one transaction each, with the same refusals.
"""

from __future__ import annotations

from django.db import transaction

from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.stored_texts import mark_stored
from dispatch.jobs.models import Job
from dispatch.jobs.rules import Action
from dispatch.jobs.services import transitions
from dispatch.jobs.services.actions import cancel, locked_for_action, raise_illegal_transition

DUPLICATE = mark_stored("duplicate of job {number}")  # why the job was canceled, stored with it


def merge_duplicate(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Cancel a flagged job as a duplicate of the other one, which keeps a reference with its notes."""
    with transaction.atomic():
        # The other job is older and locked first, so that it cannot be canceled meanwhile.
        other_id = Job.objects.values_list("duplicate_of_id", flat=True).get(pk=job_id)
        other = transitions.lock_job(other_id) if other_id else None
        with locked_for_action(job_id, Action.MERGE_DUPLICATE, version) as job:
            if other is None or flagged_duplicate(job).pk != other.pk:
                raise_illegal_transition(job, _("This job isn't flagged as a duplicate of an open job."))
            notes = job.notes
            Job.objects.filter(pk=job.pk).update(duplicate_state=Job.DuplicateState.MERGED)
        job = cancel(job_id, DUPLICATE.format(number=other.pk), actor=actor)
        said = " ".join(filter(None, (note, notes)))[:500]
        other = transitions.lock_job(other.pk)  # a recorded answer may have assigned it in this transaction
        transitions.save_job(other)  # canceling its earlier version is a conflict
        transitions.append_job_event(other, "job.duplicate_merged", actor=actor, duplicate=job.pk, note=said)
    return job


def dismiss_duplicate(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Dismiss the flag that the job may be a duplicate."""
    with locked_for_action(job_id, Action.NOT_A_DUPLICATE, version) as job:
        other = flagged_duplicate(job)
        job.duplicate_state = Job.DuplicateState.DISMISSED
        transitions.save_job(job)
        transitions.append_job_event(job, "job.not_a_duplicate", actor=actor, of=other.pk, note=note)
    return job


def flagged_duplicate(job: Job) -> Job:
    """Return the open job that this one may duplicate. Raise IllegalTransition if there is none."""
    other = job.duplicate_of
    if job.duplicate_state == Job.DuplicateState.POSSIBLE and other is not None and other.ended_at is not None:
        status = _(other.get_status_display().lower())
        raise_illegal_transition(
            job,
            _("Job {number} is {status}, so this job is no longer flagged as its duplicate.").format(
                number=other.pk, status=status
            ),
            cause=other,
        )
    if not job.is_possible_duplicate or job.duplicate_of is None:
        raise_illegal_transition(job, _("This job isn't flagged as a duplicate of an open job."))
    return job.duplicate_of
