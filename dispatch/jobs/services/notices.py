"""Write notices that inform technicians of changes to their jobs, in the transaction that changes the job.

`notice_delivery` sends them.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Q

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, events
from dispatch.core.db import fast_rows
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.languages import gettext as _
from dispatch.core.models import Event
from dispatch.core.runtime.queues import notify_loop
from dispatch.jobs import policies, sql, technician_messages
from dispatch.jobs.models import Job, TechnicianNotice
from dispatch.jobs.rules.customer_phrases import local_time
from dispatch.jobs.rules.notices import GAINS, LOSSES, combine_news, may_wait
from dispatch.jobs.services import sms
from dispatch.technicians.models import Technician
from dispatch.telephony import services as telephony

NOTICE_LOOP = "jobs_notices"
PURPOSE = "job_news"
# How long a text may take before the technician is called, and both before dispatchers are alerted.
TEXT_WAIT, ALERT_AFTER = timedelta(seconds=90), timedelta(minutes=5)
# How long a notice is worth showing on a phone that was off.
PUSH_LIFETIME = timedelta(hours=4)
# A technician who accepted a job within this time before the quiet hours may be driving to it.
ACCEPTED_BEFORE = timedelta(hours=4)

News, Status = TechnicianNotice.News, TechnicianNotice.Status


def inform(
    job: Job, technician_id: int, news: TechnicianNotice.News, *, is_sent_at_any_hour: bool = False
) -> None:
    """Write a notice to the technician, and send its text if possible.

    In quiet hours that hold back the job, the notice waits for their end, unless the job begins before, or the
    technician is awake, or it replaces a notice about which dispatchers were alerted, or `is_sent_at_any_hour`.
    It supersedes their earlier notices about this job. The job must be locked. An organization without numbers
    notifies its technicians itself. A deactivated technician only learns that they no longer have the job.
    """
    missed, unsent, begins = _end_earlier(job, technician_id, because=str(news.label))
    if has_left(technician_id, news) or not OutboundNumber.objects.of(job.organization_id).exists():
        return
    if unsent is not None:
        combined = combine_news(unsent, news)
        if combined is None:
            return
        news = News(combined)
    elif news == News.CHANGED:  # they may not know yet that they have the job
        news = next((earlier for earlier in (News.ASSIGNED, News.REOPENED) if earlier in missed), news)
    now = clock.now()
    if is_sent_at_any_hour:
        begins.append(now)
    notice = TechnicianNotice.objects.create(
        organization_id=job.organization_id,
        job=job,
        technician_id=technician_id,
        news=news,
        begins_at=min(filter(None, [*_begins(job, news), *begins]), default=None),
        alert_at=now + ALERT_AFTER,
        next_action_at=now,
    )
    if (until := find_quiet_end(job, notice)) is not None:
        defer(job, notice, until)
    else:
        start_sending(job, notice)


def start_sending(job: Job, notice: TechnicianNotice) -> None:
    """Send the notice by text, or else make its call due. Dispatchers are alerted `ALERT_AFTER` from now."""
    now = clock.now()
    notice.deferred_until, notice.alert_at, notice.next_action_at = None, now + ALERT_AFTER, now
    if notice.text_id is None:
        technician_messages.report(
            notice.technician_id, technician_messages.JOB_NEWS, notice.pk, until=now + PUSH_LIFETIME
        )
        if notice.news == News.ASSIGNED:
            text = sms.send_address(job, notice.technician_id, actor=SYSTEM)
        else:
            text = sms.send_news(notice, job)
        if text is not None:
            notice.text_id, notice.next_action_at = text.pk, now + TEXT_WAIT
    notice.save(update_fields=["deferred_until", "alert_at", "next_action_at", "text_id"])
    if notice.next_action_at == now:
        notify_loop(NOTICE_LOOP)


# --- quiet hours ------------------------------------------------------------------------------------------------


def find_quiet_end(job: Job, notice: TechnicianNotice) -> datetime | None:
    """Return until when quiet hours hold back the notice now, or None."""
    quiet = policies.quiet_hours(job.organization_id, job.service_type_id)
    begins = _begins(job, notice.news) if _has_job(job, notice) else []
    zone = job.organization.time_zone
    until = may_wait(quiet.end_for(job.priority, clock.now(), zone), [notice.begins_at, *begins])
    if until is not None and _is_awake(job, notice, quiet.start_of(until, zone)):
        return None
    return until


def defer(job: Job, notice: TechnicianNotice, until: datetime) -> None:
    """Make the notice wait, and append an Event if it did not already wait until then."""
    is_new = notice.deferred_until != until
    notice.deferred_until, notice.next_action_at, notice.alert_at = until, until, until + ALERT_AFTER
    notice.save(update_fields=["deferred_until", "next_action_at", "alert_at"])
    if is_new:
        append_notice_event(
            job, notice, "job.notice_deferred", SYSTEM, until=until.isoformat(),
            until_words=local_time(until, job.organization.time_zone),
        )  # fmt: skip


def is_assignment_deferred(job: Job) -> bool:
    """Return whether the job's technician will learn only after the quiet hours that they have it."""
    waiting = job.notices.filter(news=News.ASSIGNED, status=Status.SENDING, deferred_until__isnull=False)
    return any(_has_job(job, notice) and not _is_known(job, notice) for notice in waiting)


def is_pointless(job: Job, notice: TechnicianNotice) -> bool:
    """Return whether the deferred notice has become pointless: the technician knows, or it is no longer true."""
    if notice.news in LOSSES:
        return _has_job(job, notice)
    return not _has_job(job, notice) or _is_known(job, notice)


def has_left(technician_id: int, news: str) -> bool:
    """Return whether the technician was deactivated, and so gets no such news about a job."""
    return news not in LOSSES and Technician.objects.filter(pk=technician_id, is_active=False).exists()


def end_for_deactivated(job: Job, notice: TechnicianNotice) -> None:
    """End a notice that is being sent to a deactivated technician. The job needs attention on the board."""
    if notice.is_deferred:
        drop(job, notice, "the technician was deactivated")
        return
    _stop(notice)
    notice.status, notice.next_action_at = Status.SUPERSEDED, None
    notice.save(update_fields=["status", "next_action_at"])


def _stop(notice: TechnicianNotice) -> None:
    """Cancel the notice's text if it has not left, and hang up its call."""
    if notice.text_id is not None:
        telephony.cancel_texts(Q(pk=notice.text_id))
    _hang_up(notice, "the job has changed again")


def _hang_up(notice: TechnicianNotice, reason: str) -> None:
    if call := telephony.open_call_of(PURPOSE, notice.pk):
        telephony.hang_up(call.pk, reason=reason)


def drop(job: Job, notice: TechnicianNotice, because: str = "") -> None:
    """End a deferred notice that has become pointless."""
    notice.status, notice.next_action_at = Status.SUPERSEDED, None
    notice.save(update_fields=["status", "next_action_at"])
    append_notice_event(job, notice, "job.notice_dropped", SYSTEM, reason=because)


def check_deferred(job: Job) -> None:
    """Check the job's deferred notices soon, because the job has changed."""
    waiting = job.notices.filter(status=Status.SENDING, deferred_until__isnull=False)
    if waiting.update(next_action_at=clock.now()):
        notify_loop(NOTICE_LOOP)


def _begins(job: Job, news: str) -> list[datetime | None]:
    """Return when the work, or the trip to it, began or should begin, as far as known."""
    if news == News.REOPENED:  # an earlier beginning belongs to the work that was done
        return [job.window_start, job.attention_at if job.started_at is None else None]
    return [job.window_start, job.on_the_way_at, job.eta_at, job.started_at, job.attention_at]


def _is_awake(job: Job, notice: TechnicianNotice, quiet_from: datetime) -> bool:
    """Return whether the technician may be driving to the job in the quiet hours that began at `quiet_from`.

    They may if they accepted the job shortly before or since, or if they were notified since that they have it.
    """
    if notice.news in GAINS:
        return False
    assigned = Event.objects.filter(
        subject_type="job", subject_id=job.pk, kind="job.assigned", data__technician_id=notice.technician_id
    )
    last = assigned.order_by("-id").first()
    if last is not None and last.actor_type == "technician" and last.at >= quiet_from - ACCEPTED_BEFORE:
        return True
    gains = job.notices.filter(technician_id=notice.technician_id, news__in=GAINS, created_at__gte=quiet_from)
    return gains.filter(Q(status=Status.REACHED) | Q(deferred_until=None)).exists()


def _is_known(job: Job, notice: TechnicianNotice) -> bool:
    """Return whether the technician has reported on a job, and so knows that they have it."""
    reports = (job.on_the_way_at, job.started_at, job.late_reported_at)
    return notice.news == News.ASSIGNED and any(reports)


def _has_job(job: Job, notice: TechnicianNotice) -> bool:
    return job.status == Job.Status.ASSIGNED and job.technician_id == notice.technician_id


# --- the end of a notice ----------------------------------------------------------------------------------------


def end_known(job: Job, actor: Actor) -> None:
    """End the notices that the technician has the job, because `actor` reported on it. The job must be locked.

    A report of the technician shows that they know; a text that waits still brings them the address. After the end
    of the job, its changes don't matter either. The alert about an undelivered notice ends.
    """
    assert job.technician_id is not None
    check_deferred(job)
    is_over = job.status != Job.Status.ASSIGNED
    if not is_over and (actor.type, actor.id) != ("technician", job.technician_id):
        return
    rows = job.notices.filter(technician_id=job.technician_id, status__in=(Status.SENDING, Status.UNREACHED))
    known = rows.exclude(news__in=LOSSES) if is_over else rows.filter(news__in=GAINS)
    alerted: TechnicianNotice | None = None
    for notice in known.filter(deferred_until=None).select_related("technician").order_by("pk"):
        alerted = notice if notice.status == Status.UNREACHED else alerted
        notice.status, notice.next_action_at = Status.SUPERSEDED if is_over else Status.REACHED, None
        notice.save(update_fields=["status", "next_action_at"])
        if is_over:
            _stop(notice)
        else:
            _hang_up(notice, "the technician has reported on the job")
    if alerted is not None:
        append_notice_event(job, alerted, "job.notice_superseded", SYSTEM)
        raise_again(job)


def supersede(job: Job, technician_id: int, *, because: str) -> None:
    """End the technician's notices about this job, because they know. The alert about an undelivered one ends."""
    _end_earlier(job, technician_id, because=because)


class _Ended(NamedTuple):
    """The notices that a newer one replaces: what they were about, and the news of one that was never sent.

    `begins`: times that prevent the newer notice from being deferred.
    """

    missed: set[str]
    unsent: str | None
    begins: list[datetime | None]


def _end_earlier(job: Job, technician_id: int, *, because: str) -> _Ended:
    """End the technician's notices about this job, because something newer replaces them."""
    condition = "t.job_id = %s AND t.technician_id = %s AND t.status IN ('sending', 'unreached') ORDER BY t.id"
    missed: set[str] = set()
    unsent: str | None = None
    alerted: TechnicianNotice | None = None
    begins: list[datetime | None] = []
    for notice in fast_rows.fetch_many(TechnicianNotice, condition, [job.pk, technician_id], "technician"):
        missed.add(notice.news)
        if notice.is_deferred:
            unsent = _unsent_news(job, notice)
            drop(job, notice, because)
        else:
            alerted = notice if notice.status == Status.UNREACHED else alerted
            begins.append(clock.now() if notice.status == Status.UNREACHED else notice.begins_at)
            notice.status, notice.next_action_at = Status.SUPERSEDED, None
            notice.save(update_fields=["status", "next_action_at"])
        _stop(notice)
    if alerted is not None:
        append_notice_event(job, alerted, "job.notice_superseded", SYSTEM)
        raise_again(job)
    return _Ended(missed, unsent, begins)


def _unsent_news(job: Job, notice: TechnicianNotice) -> str | None:
    """Return the news of a deferred notice of which the technician has learned nothing yet, or None."""
    if _is_known(job, notice) or notice.text_id is not None or telephony.calls_of(PURPOSE, notice.pk).exists():
        return None
    return str(notice.news)


def find_unreached(job: Job) -> list[TechnicianNotice]:
    """Return the notices that reached nobody, with their technicians, oldest first."""
    return list(job.notices.filter(status=Status.UNREACHED).select_related("technician").order_by("pk"))


def find_uninformed(job: Job) -> list[TechnicianNotice]:
    """Return the notices that reached nobody, and the deferred ones, with their technicians, oldest first."""
    return list(job.notices.filter(TechnicianNotice.IS_UNINFORMED).select_related("technician").order_by("pk"))


def describe_deferred(job: Job) -> list[str]:
    """Say in a sentence for each deferred notice of the job who will be notified when, and of what."""
    return [
        _("{name} will be notified at {time}, when the quiet hours end, that {news}.").format(
            name=notice.technician.name,
            time=local_time(notice.deferred_until, job.organization.time_zone),
            news=_(notice.get_news_display()),
        )
        for notice in find_uninformed(job)
        if notice.is_deferred
    ]


def mark_told(job: Job, notice: TechnicianNotice, *, actor: Actor, note: str = "") -> None:
    """Record that a person told the technician, and hang up a call that still tries to. The job must be locked."""
    notice.status, notice.reached_by, notice.next_action_at = Status.REACHED, "dispatcher", None
    notice.save(update_fields=["status", "reached_by", "next_action_at"])
    append_notice_event(job, notice, "job.technician_told", actor, note=note)
    _hang_up(notice, "a dispatcher told the technician")


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
