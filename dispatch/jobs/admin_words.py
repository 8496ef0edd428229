"""How the admin shows a job's state: always a colour, a shape and a word (see the console's states)."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django.utils.html import format_html
from django.utils.safestring import SafeString

from dispatch.core import clock
from dispatch.jobs.models import Candidate, Job, Offer

# tone → the Material symbol of the state
SHAPES = {
    "attention": "warning",
    "calling": "call",
    "waiting": "schedule",
    "good": "check_circle",
    "late": "remove",
    "off": "block",
    "plain": "block",
}


def badge(tone: str, words: str) -> SafeString:
    """A state in colour, shape and word."""
    return format_html(
        '<span class="state state-{}"><i class="material-symbols-outlined" aria-hidden="true">{}</i>{}</span>',
        tone,
        SHAPES[tone],
        words,
    )


def job_badge(job: Job) -> SafeString:
    """Pending says why; a dispatching job says whether it is calling, waiting, paused or overdue."""
    if job.status == Job.Status.PENDING:
        return badge("attention", job.get_pending_reason_display())
    if job.status == Job.Status.DISPATCHING:
        if job.paused_at is not None:
            return badge("waiting", "Paused")
        if job.waiting_for == Job.WaitingFor.ANSWER:
            return badge("calling", "Calling")
        if job.waiting_for in (Job.WaitingFor.LINE, Job.WaitingFor.TECHNICIAN):
            return badge("waiting", f"Waits for {job.get_waiting_for_display().lower()}")
        return badge("calling", "Dispatching")
    tone = {Job.Status.ASSIGNED: "good", Job.Status.COMPLETED: "good"}.get(Job.Status(job.status), "off")
    return badge(tone, job.get_status_display())


def offer_badge(offer: Offer) -> SafeString:
    tones = {"pending": "calling", "accepted": "good", "rescinded": "off"}
    words = "Calling" if offer.status == Offer.Status.PENDING else offer.get_status_display()
    if offer.status == Offer.Status.PENDING and offer.missed_at:
        return badge("waiting", "Missed, may still answer")
    return badge(tones.get(offer.status, "late"), words)


def verdict_badge(candidate: Candidate) -> SafeString:
    return badge(
        {"in": "good", "deferred": "waiting"}.get(candidate.verdict, "plain"), candidate.get_verdict_display()
    )


def since(moment: datetime | None, zone: str) -> SafeString | str:
    """ "4 min ago" with the exact local time on hover."""
    if moment is None:
        return "—"
    seconds = max(0, int((clock.now() - moment).total_seconds()))
    if seconds < 60:
        words = f"{seconds} s ago"
    elif seconds < 3600:
        words = f"{seconds // 60} min ago"
    elif seconds < 86_400:
        words = f"{seconds // 3600} h {seconds % 3600 // 60} min ago"
    else:
        words = f"{seconds // 86_400} d ago"
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact(moment, zone), words)


def exact(moment: datetime, zone: str) -> str:
    """The local date and time, to the second, with the zone's name."""
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %Z}"
