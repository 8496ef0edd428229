"""Deliver the notices of changes: by text, else by a call in which key 1 confirms, else dispatchers are alerted.

Quiet hours that hold back the job defer its notices; a call that rings or a text that was sent is not interrupted.

`advance_notice` does what is due now: the handlers of a notice's text and calls invoke it with every change, and a
loop when its time has come.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from dispatch.capacity import account_outages
from dispatch.core import clock
from dispatch.core.db import lock_waits
from dispatch.core.db.isolation import run_each, unlocked_ids
from dispatch.core.events import SYSTEM, Actor
from dispatch.jobs import sql
from dispatch.jobs.models import Job, TechnicianNotice
from dispatch.jobs.rules import phrases
from dispatch.jobs.services import customer_texts, notices, sms, transitions
from dispatch.jobs.services.notices import (
    ALERT_AFTER,
    PURPOSE,
    TEXT_WAIT,
    Status,
    append_notice_event,
    raise_again,
)
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call, Text

CONFIRM_KEY = "1"
# Pauses: after a call without a key; when the phone is busy, or the account failed; while a call or text is in
# progress.
CALL_AGAIN, BUSY_AGAIN, LOOK_AGAIN = timedelta(seconds=30), timedelta(seconds=5), timedelta(seconds=20)
RING_S, TIME_LIMIT_S = 30, 120
BATCH = 100


def advance_due_notices() -> int:
    """Advance the notices whose time has come. Return how many."""
    due = TechnicianNotice.objects.filter(next_action_at__lte=clock.now()).order_by("next_action_at")
    return run_each(_advance_due, unlocked_ids(due, BATCH), event="notice_not_advanced")


def _advance_due(notice_id: int) -> int:
    now = clock.now()
    mine = TechnicianNotice.objects.filter(pk=notice_id, next_action_at__lte=now)
    if mine.update(next_action_at=now + LOOK_AGAIN):  # a notice that fails is postponed
        with lock_waits.limit_lock_waits(lock_waits.LOOP_S):
            advance_notice(notice_id)
    return 1


def advance_notice(notice_id: int) -> None:
    """Do what is due for the notice: record that the technician was reached, call them, or alert dispatchers.

    Idempotent. Call it outside any transaction.
    """
    job_id = TechnicianNotice.objects.values_list("job_id", flat=True).get(pk=notice_id)
    with transaction.atomic():
        job = transitions.lock_job(job_id, "organization")
        rows = TechnicianNotice.objects.select_for_update(no_key=True, of=("self",)).select_related("technician")
        notice = rows.get(pk=notice_id)
        if notice.status in (Status.REACHED, Status.SUPERSEDED):
            return
        text = Text.objects.filter(pk=notice.text_id).first() if notice.text_id else None
        if text is not None and not sms.goes_to(text, notice.technician):
            text = None  # they have another phone now, and don't know what arrives at the former one
        if text is not None and text.status == Text.Status.DELIVERED:
            _mark_reached(job, notice, "text")
        elif any(pressed.key == CONFIRM_KEY for pressed in telephony.keys_of(PURPOSE, notice.pk)):
            _mark_reached(job, notice, "call")
        elif notice.status == Status.SENDING:
            _continue(job, notice, text)


def _continue(job: Job, notice: TechnicianNotice, text: Text | None) -> None:
    now = clock.now()
    text_by = notice.alert_at - ALERT_AFTER + TEXT_WAIT
    if notices.has_left(notice.technician_id, notice.news):
        notices.end_for_deactivated(job, notice)
    elif notice.is_deferred:
        _continue_deferred(job, notice)
    elif now >= notice.alert_at:
        _mark_unreached(job, notice, notice.reason or "no confirmation")
    elif text is not None and now < text_by and text.ended_at is None:
        _wait(notice, text_by)
    elif telephony.open_call_of(PURPOSE, notice.pk) is not None:
        _wait(notice, now + LOOK_AGAIN)
    elif (until := notices.find_quiet_end(job, notice)) is not None:
        notices.defer(job, notice, until)
    else:
        _call(job, notice, now)


def _continue_deferred(job: Job, notice: TechnicianNotice) -> None:
    """Drop a notice that has become pointless, and begin with it after the quiet hours.

    The customer, too, hears only then that the technician is coming.
    """
    if notices.is_pointless(job, notice):
        notices.drop(job, notice)
    elif (until := notices.find_quiet_end(job, notice)) is not None:
        notices.defer(job, notice, until)
        return
    else:
        notices.start_sending(job, notice)
    if notice.news == notices.News.ASSIGNED and notice.technician_id == job.technician_id:
        customer_texts.inform_of_technician(job)


def _call(job: Job, notice: TechnicianNotice, now: datetime) -> None:
    last = telephony.calls_of(PURPOSE, notice.pk).first()
    if last is not None and last.ended_at is not None:
        notice.reason = f"the call: {Call.Status(last.status).label.lower()}"
        did_not_ring = last.status in ("not_placed", "rejected") and not account_outages.is_usable(last.account)
        again_at = last.ended_at + (BUSY_AGAIN if did_not_ring else CALL_AGAIN)
        if now < again_at:
            _wait(notice, again_at)
            return
    pool = sql.find_call_pool(job, now)
    if pool is None:
        _mark_unreached(job, notice, "no pool for calls")
        return
    try:
        telephony.create_call(
            organization=job.organization,
            purpose=PURPOSE,
            subject_id=notice.pk,
            attempt=last.attempt + 1 if last else 1,
            to_phone=str(notice.technician.phone),
            pool=pool,
            ring_timeout_s=RING_S,
            time_limit_s=TIME_LIMIT_S,
            place_by=notice.alert_at,
            context={"job_id": job.pk},
        )
    except telephony.CallNotAllowed as error:
        _mark_unreached(job, notice, str(error))
    except telephony.PhoneBusy:
        notice.reason = "their phone is on another call"
        _wait(notice, now + BUSY_AGAIN)
    except telephony.NoLine as error:
        notice.reason = str(error)
        _wait(notice, now + timedelta(seconds=max(error.retry_in_s, 1.0)))
    else:
        _wait(notice, now + LOOK_AGAIN)


def _wait(notice: TechnicianNotice, until: datetime) -> None:
    notice.reason = notice.reason[:160]
    notice.next_action_at = min(until, notice.alert_at)
    notice.save(update_fields=["next_action_at", "reason"])


def _mark_reached(job: Job, notice: TechnicianNotice, by: str) -> None:
    was_unreached = notice.status == Status.UNREACHED
    notice.status, notice.reached_by, notice.next_action_at = Status.REACHED, by, None
    notice.save(update_fields=["status", "reached_by", "next_action_at"])
    actor = Actor("technician", notice.technician_id, notice.technician.name) if by == "call" else SYSTEM
    append_notice_event(job, notice, "job.technician_notified", actor, by=by)
    raise_again(job)
    if not was_unreached and (call := telephony.open_call_of(PURPOSE, notice.pk)) and by == "text":
        telephony.hang_up(call.pk, reason="the text was delivered")


def _mark_unreached(job: Job, notice: TechnicianNotice, reason: str) -> None:
    notice.status, notice.reason, notice.next_action_at = Status.UNREACHED, reason[:160], None
    notice.save(update_fields=["status", "reason", "next_action_at"])
    append_notice_event(job, notice, "job.technician_unreached", SYSTEM, reason=reason)


def send_canceled_address(text: Text) -> None:
    """Send a job's address to its technician's present phone, because this text to a former one was canceled.

    Not while a notice is being sent: it calls the present phone. Idempotent. Call it outside any transaction.
    """
    with transaction.atomic():
        rows = Job.objects.select_for_update(no_key=True, of=("self",)).select_related("organization")
        job = rows.filter(pk=text.subject_id or 0, status=Job.Status.ASSIGNED).first()
        if job is None or job.technician is None:
            return
        latest = telephony.texts_of(Text.Purpose.JOB, job.pk).first()
        is_current = latest == text and job.assigned_at is not None and job.assigned_at <= text.created_at
        notice = TechnicianNotice.objects.filter(text_id=text.pk).first()
        is_informed = notice is None or notice.status == Status.REACHED
        if not is_current or not is_informed or sms.goes_to(text, job.technician):
            return
        accepted = Actor("technician", job.technician.pk, job.technician.name)
        transitions.save_job(job)  # its version numbers its texts
        sms.send_address(job, job.technician.pk, actor=SYSTEM if notice else accepted)


def load_spoken(notice_id: int) -> TechnicianNotice:
    """Return the notice with what a call about it needs."""
    related = ("job__service_type", "job__organization", "technician")
    return TechnicianNotice.objects.select_related(*related).get(pk=notice_id)


def news_prompt(notice: TechnicianNotice) -> tuple[str, ...]:
    """Return what a call says about the notice, or nothing for a notice that is no longer needed."""
    if notice.status == Status.SUPERSEDED:
        return ()
    job = notice.job
    return phrases.news_prompt(job.organization.name, notice.news, sms.prompt_context(job, is_spoken=True))
