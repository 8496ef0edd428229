"""Show a job's state in the admin, always as a color, a shape and a word, as the console does."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django.utils.html import format_html
from django.utils.safestring import SafeString

from dispatch.core import clock
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.jobs.models import Candidate, Job, Offer

# tone → Material symbol
SHAPES = {
    "attention": "warning",
    "calling": "call",
    "waiting": "schedule",
    "good": "check_circle",
    "late": "remove",
    "off": "block",
    "plain": "block",
}

# `Job.waiting_for` → the badge, shorter than the label of the choice.
WAITING_WORDS: dict[str, str] = {
    Job.WaitingFor.LINE: mark("Waiting for a line"),
    Job.WaitingFor.TECHNICIAN: mark("Waiting for a technician"),
    Job.WaitingFor.PROVIDER: mark("Phone provider not responding"),
    Job.WaitingFor.ACCOUNT: mark("Account refused by the phone provider"),
    Job.WaitingFor.SPEND_CAP: mark("Daily spending cap reached"),
    Job.WaitingFor.QUIET_HOURS: mark("Waiting for the end of quiet hours"),
    Job.WaitingFor.WINDOW: mark("Waiting for its arrival window"),
}


def badge(tone: str, words: str) -> SafeString:
    """Return a state as HTML: color, shape and word."""
    return format_html(
        '<span class="state state-{}"><i class="material-symbols-outlined" aria-hidden="true">{}</i>{}</span>',
        tone,
        SHAPES[tone],
        words,
    )


def job_badge(job: Job) -> SafeString:
    """Return the badge of a job: the reason if pending; calling, waiting or paused if dispatching; a delay."""
    if job.status == Job.Status.PENDING:
        return badge("attention", job.get_pending_reason_display())
    if job.status == Job.Status.DISPATCHING:
        if job.paused_at is not None:
            return badge("waiting", _("Paused"))
        if job.waiting_for == Job.WaitingFor.ANSWER:
            return badge("calling", _("Calling"))
        if job.waiting_for in WAITING_WORDS:
            return badge("waiting", _(WAITING_WORDS[job.waiting_for]))
        return badge("calling", _("Dispatching"))
    if job.late_words:
        return badge("late", job.late_words)
    tone = {Job.Status.ASSIGNED: "good", Job.Status.COMPLETED: "good"}.get(Job.Status(job.status), "off")
    return badge(tone, job.get_status_display())


def offer_badge(offer: Offer) -> SafeString:
    """Return the badge of an offer: calling, missed but still open, or its outcome."""
    tones = {"pending": "calling", "accepted": "good", "rescinded": "off"}
    words = _("Calling") if offer.status == Offer.Status.PENDING else offer.get_status_display()
    if offer.status == Offer.Status.PENDING and offer.missed_at:
        return badge("waiting", _("Missed call, can still reply"))
    return badge(tones.get(offer.status, "late"), words)


def verdict_badge(candidate: Candidate) -> SafeString:
    """Return the badge of a candidate's eligibility."""
    return badge(
        {"in": "good", "deferred": "waiting"}.get(candidate.verdict, "plain"), candidate.get_verdict_display()
    )


def relative_time(moment: datetime | None, zone: str) -> SafeString | str:
    """Return "4 min ago" as HTML, with the exact local time on hover."""
    if moment is None:
        return "—"
    seconds = max(0, int((clock.now() - moment).total_seconds()))
    if seconds < 60:
        span = f"{seconds} s"
    elif seconds < 3600:
        span = f"{seconds // 60} min"
    elif seconds < 86_400:
        minutes = seconds % 3600 // 60
        span = f"{seconds // 3600} h {minutes} min" if minutes else f"{seconds // 3600} h"
    else:
        span = f"{seconds // 86_400} d"
    words = _("{span} ago").format(span=span)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact_time(moment, zone), words
    )


def exact_time(moment: datetime, zone: str) -> str:
    """Return the local date and time to the second, with the time zone."""
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %Z}"
