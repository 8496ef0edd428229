"""Resume the jobs that a provider outage or the spending cap stopped, when that ends."""

from __future__ import annotations

from functools import partial

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from dispatch.capacity import account_outages
from dispatch.capacity.models import ProviderAccount
from dispatch.core.db import lock_waits, prepared
from dispatch.core.db.isolation import FailureRule, run_each, run_unlocked
from dispatch.core.db.lock_waits import RecentlyBlocked, limit_lock_waits
from dispatch.core.models import Event
from dispatch.core.runtime.queues import enqueue, notify_loop
from dispatch.jobs import queries
from dispatch.jobs.models import Job
from dispatch.jobs.rules import Action, status_after
from dispatch.jobs.services import slots, transitions
from dispatch.jobs.services.line_wakeups import WAITING_LOOP
from dispatch.telephony import services as telephony

BATCH = 200
RESUME = "dispatch.jobs.tasks.resume_after_outage"
RESUME_SPENDING = "dispatch.jobs.tasks.resume_after_spend_cap"

FAILED = "job_not_resumed"
# Jobs, and organizations, that failed or were locked a moment ago. They are skipped for a while.
_failed_jobs, _failed_organizations = (
    RecentlyBlocked(20.0, longest_s=600.0),
    RecentlyBlocked(20.0, longest_s=600.0),
)
_SKIP_ORGANIZATION = FailureRule[int](_failed_organizations.add)
_REASONS = transitions.OUTAGE_REASONS
_CAP = (Job.PendingReason.SPEND_CAP,)
# Events by which a person takes ownership of a pending job, and the events that release it.
_CLAIMED, _RELEASED = ("job.claimed", "job.alert_acknowledged"), ("job.released", "job.alert_returned")


def resume_after_outage(organization_id: int, limit: int | None = None) -> int:
    """Resume the organization's jobs that are pending because of an outage, with the same candidates.

    Return the number of jobs resumed, at most `limit`. With a limit, they are trials of whether the provider works
    again. A job that a dispatcher owns is left alone. A job that fails or is locked does not block the others: the
    auditor resumes it later. Call it outside any transaction.
    """
    if limit is not None and telephony.spend_hold(organization_id, "offer"):
        return 0  # a trial could not call anybody
    if limit is None:
        with prepared.index_plans():  # few jobs of all organizations are on trial
            on_trial = list(_on_trial().values_list("pk", "organization_id"))
        run_each(_end_trial, [pk for pk, owner in on_trial if owner == organization_id], event=FAILED)
    with prepared.index_plans():
        pending = list(queries.find_pending_jobs(_REASONS, organization_id).values_list("pk", flat=True))
    resumed = 0
    for job_id in pending:
        if limit is not None and resumed >= limit:
            break
        resumed += run_each(partial(_resume, is_trial=limit is not None), [job_id], event=FAILED)
    return resumed


def resume_after_spend_cap(organization_id: int) -> int:
    """Resume the organization's jobs that are pending because of its spending cap, which allows calls again.

    Return the number of jobs resumed: none while the cap holds them, and `BATCH` at most, since the auditor
    resumes the others. Call it outside any transaction.
    """
    if telephony.spend_hold(organization_id, "offer"):
        return 0
    pending = queries.find_pending_jobs(_CAP, organization_id)
    with limit_lock_waits(lock_waits.LOOP_S):
        return run_unlocked(_resume, pending, BATCH, event=FAILED, skipped=_failed_jobs)


def resume_left_behind() -> int:
    """Resume the jobs whose outage or spending cap has ended since they became pending, in case the task was lost.

    Return the number of jobs resumed. A job, or an organization, that fails or is locked stops no other.
    """
    failing = ProviderAccount.objects.filter(organization_id=OuterRef("organization_id")).exclude(outage="")
    on_trial = _on_trial().filter(~Exists(failing))
    run_unlocked(_end_trial, on_trial, BATCH, event=FAILED, skipped=_failed_jobs)
    held = queries.find_pending_jobs(_CAP).exclude(organization_id__in=_failed_organizations.keys())
    with prepared.index_plans():
        organizations = list(held.order_by().values_list("organization_id", flat=True).distinct())
    resumed = run_each(resume_after_spend_cap, organizations, event=FAILED, rule=_SKIP_ORGANIZATION)
    after_outage = queries.find_pending_jobs(_REASONS, outage_ended=True)
    return resumed + run_unlocked(_resume, after_outage, BATCH, event=FAILED, skipped=_failed_jobs)


def _on_trial() -> QuerySet[Job]:
    found: QuerySet[Job] = Job.objects.filter(is_trial=True).order_by("pk")
    return found


@transaction.atomic
def _end_trial(job_id: int) -> bool:
    """Record that the outage is over for a job that was resumed to try the provider. This ends its alert."""
    job = transitions.lock_job(job_id)
    if not job.is_trial:
        return False
    job.is_trial = False
    transitions.save_job(job, visible=False)
    transitions.append_job_event(job, "job.provider_back")
    return True


@transaction.atomic
def _resume(job_id: int, *, is_trial: bool = False) -> bool:
    job = transitions.lock_job(job_id)
    status = status_after(job.status, Action.CALL_AFTER_OUTAGE)
    if status is None or job.pending_reason not in (*_REASONS, *_CAP) or _is_owned(job):
        return False
    resumed = "job.spend_resumed" if job.pending_reason in _CAP else "job.provider_back"
    job.status, job.pending_reason, job.is_trial = Job.Status(status), "", is_trial
    slots.release_holds(job)
    transitions.advance_job(job)
    transitions.save_job(job)
    transitions.append_job_event(job, "job.trial_began" if is_trial else resumed)
    return True


def _is_owned(job: Job) -> bool:
    about = Event.objects.filter(subject_type="job", subject_id=job.pk, kind__in=(*_CLAIMED, *_RELEASED))
    # Another alert, such as one about the job's former technician, says nothing of who acts on the pending job.
    about = about.filter(Q(data__alert_kind="job.pending") | ~Q(data__has_key="alert_kind"))
    since = job.waiting_since or job.created_at
    last = about.filter(at__gte=since).order_by("-id").values_list("kind", flat=True).first()
    return last in _CLAIMED


def _outage_ended(organization_id: int) -> None:
    enqueue(settings.DISPATCH_QUEUE, RESUME, organization_id, organization_id=organization_id)
    notify_loop(WAITING_LOOP)


def _spending_resumed(organization_id: int) -> None:
    enqueue(settings.DISPATCH_QUEUE, RESUME_SPENDING, organization_id, organization_id=organization_id)
    notify_loop(WAITING_LOOP)


def _trial_unused(organization_id: int) -> None:
    """Resume the first waiting job, to find out whether the provider works again."""
    enqueue(settings.DISPATCH_QUEUE, RESUME, organization_id, 1, organization_id=organization_id)


def register() -> None:
    """Subscribe to the end of outages, to unused trials and to the end of a stop by the spending cap.

    Called once, when the applications are ready.
    """
    telephony.on_spend_resume(_spending_resumed)
    account_outages.on_end(_outage_ended)
    account_outages.on_unused_trial(_trial_unused)
