"""Write notices that inform technicians of changes to their jobs, in the transaction that changes the job.

`notice_delivery` sends them.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from django.db.models import Q

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, events
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.runtime.queues import notify_loop
from dispatch.jobs import policies, sql
from dispatch.jobs.models import Job, TechnicianNotice
from dispatch.jobs.services import sms
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Text

NOTICE_LOOP = "jobs_notices"
PURPOSE = "job_news"
# How long a text may take before the technician is called, and both before dispatchers are alerted.
TEXT_WAIT, ALERT_AFTER = timedelta(seconds=90), timedelta(minutes=5)

News, Status = TechnicianNotice.News, TechnicianNotice.Status


def inform(job: Job, technician_id: int, news: TechnicianNotice.News, *, text: Text | None = None) -> None:
    """Write a notice to the technician.

    It supersedes their earlier notices about this job. `text`: the text that already says so; otherwise one is
    created if possible. The job must be locked. An organization without numbers notifies its technicians itself.
    """
    missed = supersede(job, technician_id)
    if not OutboundNumber.objects.of(job.organization_id).exists():
        return
    if news == News.CHANGED:  # they may not know yet that they have the job
        news = next((earlier for earlier in (News.ASSIGNED, News.REOPENED) if earlier in missed), news)
        is_texted = True
    else:
        is_texted = news != News.ASSIGNED  # `text` contains the address, if the policy sends it by text
    now = clock.now()
    notice = TechnicianNotice.objects.create(
        organization_id=job.organization_id,
        job=job,
        technician_id=technician_id,
        news=news,
        alert_at=now + ALERT_AFTER,
        next_action_at=now,
    )
    if is_texted:
        text = sms.send_news(notice, job)
    if text is not None:
        notice.text_id, notice.next_action_at = text.pk, now + TEXT_WAIT
        notice.save(update_fields=["text_id", "next_action_at"])
    else:
        notify_loop(NOTICE_LOOP)


def supersede(job: Job, technician_id: int) -> set[str]:
    """End the technician's notices about this job, because something newer replaces them.

    Return what they were about. The alert about an undelivered notice ends.
    """
    earlier = TechnicianNotice.objects.filter(job=job, technician_id=technician_id).select_related("technician")
    missed: set[str] = set()
    alerted: TechnicianNotice | None = None
    for notice in earlier.filter(status__in=(Status.SENDING, Status.UNREACHED)).order_by("pk"):
        missed.add(notice.news)
        if notice.status == Status.UNREACHED:
            alerted = notice
        notice.status, notice.next_action_at = Status.SUPERSEDED, None
        notice.save(update_fields=["status", "next_action_at"])
        if notice.text_id is not None:
            telephony.cancel_texts(Q(pk=notice.text_id))
        if call := telephony.open_call_of(PURPOSE, notice.pk):
            telephony.hang_up(call.pk, reason="the job has changed again")
    if alerted is not None:
        append_notice_event(job, alerted, "job.notice_superseded", SYSTEM)
        raise_again(job)
    return missed


def find_unreached(job: Job) -> list[TechnicianNotice]:
    """Return the notices that reached nobody, with their technicians, oldest first."""
    return list(job.notices.filter(status=Status.UNREACHED).select_related("technician").order_by("pk"))


def mark_told(job: Job, notice: TechnicianNotice, *, actor: Actor, note: str = "") -> None:
    """Record that a person told the technician, and hang up a call that still tries to. The job must be locked."""
    notice.status, notice.reached_by, notice.next_action_at = Status.REACHED, "dispatcher", None
    notice.save(update_fields=["status", "reached_by", "next_action_at"])
    append_notice_event(job, notice, "job.technician_told", actor, note=note)
    if call := telephony.open_call_of(PURPOSE, notice.pk):
        telephony.hang_up(call.pk, reason="a dispatcher told the technician")


def raise_again(job: Job) -> None:
    """Alert the dispatchers again about technicians who were not reached, after the job's alert has ended."""
    for notice in find_unreached(job):
        append_notice_event(job, notice, "job.technician_unreached", SYSTEM, reason=notice.reason)


def append_notice_event(job: Job, notice: TechnicianNotice, kind: str, actor: Actor, **data: str) -> None:
    """Append an Event about the job and this notice of it."""
    events.append(
        job.organization_id,
        kind,
        job.pk,
        actor=actor,
        technician_id=notice.technician_id,
        technician=notice.technician.name,
        news=str(notice.news),
        news_text=str(News(notice.news).label),
        **{name: value for name, value in data.items() if value},
    )


def unreachable_phones(job: Job, phones: Collection[str]) -> set[str]:
    """Return the phones of technicians who can be neither texted nor called about this job.

    Empty for an organization without numbers.
    """
    policy = policies.frozen_policy(job) if job.policy else policies.default_policy()
    pool = sql.find_call_pool(job, clock.now())
    numbers = OutboundNumber.objects.of(job.organization_id)
    if not numbers.exists():
        return set()
    numbers = numbers.filter(is_paused=False, account__is_active=True)
    is_callable = pool is not None and not pool.is_paused and numbers.filter(pool=pool).exists()
    textable = set(phones) if policy.address_by_text and numbers.filter(sends_texts=True).exists() else set()
    textable -= telephony.opted_out(job.organization_id, textable)
    countries = job.organization.allowed_countries
    return {
        phone
        for phone in phones
        if telephony.why_not_callable(phone, countries) or not (is_callable or phone in textable)
    }
