"""Describe a job's history from the event log: the form, the job, its offers, calls and texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import Q

from dispatch.core import languages
from dispatch.core.languages import gettext
from dispatch.core.models import Event
from dispatch.jobs.models import Job
from dispatch.jobs.rules.phrases import join_names
from dispatch.jobs.timeline_phrases import translate_actor, translate_event
from dispatch.technicians.rules import road_words
from dispatch.telephony.models import Call, Text

Data = dict[str, Any]

# How a technician accepted.
_WAYS = {
    "phone": "pressed 1 to accept",
    "text": "replied 1 to accept",
    "link": "accepted on the offer page",
    "call_back": "called back and pressed 1",
}

_WAITS = {
    "line": "is waiting for a free line",
    "provider": "is waiting for the phone provider, which is not responding",
    "account": "is waiting for the phone provider, which refuses our account",
    "spend_cap": (
        "is waiting: the daily spending cap is reached, and an admin can raise it under Daily spending caps"
    ),
    "quiet_hours": "is waiting until {until_words}, when the quiet hours end",
    "window": "is waiting until {until_words}, in time for the arrival window",
}

# Each text follows the actor's label and completes a sentence: "Unit 12" + "accepted the job".
_WORDS: dict[str, Callable[[Data], str]] = {
    "submission.received": lambda d: "received the form" + _of(d, "service", ": {}"),
    "job.created": lambda d: "created the job" + _position(d),
    "job.possible_duplicate": lambda d: f"flagged the job as a possible duplicate of job {d.get('of')}",
    "job.duplicate_merged": lambda d: f"merged job {d.get('duplicate')} into this one" + _note(d),
    "job.not_a_duplicate": lambda d: f"decided that this is no duplicate of job {d.get('of')}" + _note(d),
    "job.offering": lambda d: (
        f"found {_count(d, 'eligible technician')} of {d.get('considered', 0)}"
        + _of(d, "radius_words", " within {}")
        + _measure(d)
        + _of(d, "preferred", "; the customer's preferred technician {} is not called first")
        + _of(d, "preferred_reason", ": {}")
        + _of(d, "at_once", "; {} technicians are called at once")
    ),
    "job.trial_began": lambda d: "resumed calling to try whether the phone provider works again",
    "job.trial_failed": lambda d: "returned the job to dispatchers: the phone provider still fails",
    "job.provider_back": lambda d: "resumed calling: the phone provider is available again",
    "job.spend_resumed": lambda d: "resumed calling: the daily spending cap allows it again",
    "job.round": lambda d: (
        f"started round {d.get('round')} of {d.get('rounds')}"
        + _of(d, "radius_words", f" within {{}}: {_count(d, 'more eligible technician')}")
        + _measure(d)
    ),
    "job.skipped": lambda d: f"skipped {_who(d)}" + _of(d, "reason", ": {}"),
    "job.waiting": lambda d: _WAITS.get(
        d.get("waiting_for", ""), "is waiting for technicians with another offer"
    ).format(**d),
    "job.pending": lambda d: (
        "handed the job to dispatchers" + _of(d, "reason_text", ": {}") + _of(d, "radius_words", " (within {})")
    ),
    "job.assigned": lambda d: (
        "accepted the job" if d.get("by") in _WAYS else f"assigned the job to {_who(d)}" + _note(d)
    ),
    "job.dispatch_again": lambda d: "dispatched the job again" + _note(d),
    "job.called_next": lambda d: (
        (
            "called technicians now, despite quiet hours"
            if d.get("quiet_hours")
            else "called the next technician now"
        )
        + _note(d)
    ),
    "job.extended": lambda d: f"gave {_who(d)} {d.get('seconds')} more seconds" + _note(d),
    "job.paused": lambda d: "paused the job" + _note(d),
    "job.resumed": lambda d: "resumed the job" + _note(d),
    "job.cannot_make_it": lambda d: f"recorded that {_who(d)} can't make it" + _note(d),
    "job.text_received": lambda d: f"texted: “{d.get('body', '')}”",
    "job.text_sent": lambda d: f"texted {_who(d)}: “{d.get('body', '')}”",
    "job.text_failed": lambda d: f"could not deliver the text to {_who(d)}" + _of(d, "reason", ": {}"),
    "job.texts_handled": lambda d: "marked the texts as needing no reply",
    "job.note_written": lambda d: "wrote a note",
    "job.note_deleted": lambda d: "deleted a note",
    "job.cancelled": lambda d: "canceled the job" + _of(d, "reason", ": {}"),
    "job.on_the_way": lambda d: (
        ("is on the way" if d.get("by") == "technician" else f"recorded that {_who(d)} is on the way")
        + _of(d, "eta", ", arriving at about {}")
        + _note(d)
    ),
    "job.customer_texted": lambda d: f"texted the customer that {d.get('news_text')}",
    "job.customer_text_failed": lambda d: (
        f"could not text the customer that {d.get('news_text')}" + _of(d, "reason", ": {}")
    ),
    "job.customer_replied": lambda d: f"texted: “{d.get('body', '')}”",
    "job.customer_opted_out": lambda d: f"texted “{d.get('body', '')}”, and opted out of texts",
    "job.started": lambda d: "started the work" + _note(d),
    "job.running_late": lambda d: (
        ("is running late" if d.get("by") in _WAYS else f"recorded that {_who(d)} is running late")
        + f" {d.get('minutes')} min"
        + _note(d)
    ),
    "job.reopened": lambda d: "reopened the job" + _note(d),
    "job.pause_overdue": lambda d: f"reminded dispatchers: paused for {d.get('minutes')} minutes",
    "job.not_started": lambda d: f"reminded dispatchers: {_who(d)} has not started the work",
    "job.not_completed": lambda d: f"reminded dispatchers: {_who(d)} has not completed the work",
    "job.corrected": lambda d: (
        f"corrected the {join_names(d.get('changed') or ['job'])}"
        + _of(d, "priority", ": {}")
        + _of(d, "window_words", ": {}")
        + _of(d, "at_once", "; {} technicians are called at once")
        + _note(d)
    ),
    "job.completed": lambda d: "completed the job" + _note(d),
    "job.technician_notified": lambda d: (
        f"was notified by phone that {d.get('news_text', 'the job has changed')}"
        if d.get("by") == "call"
        else f"notified {_who(d)} that {d.get('news_text', 'the job has changed')}"
    ),
    "job.technician_unreached": lambda d: (
        f"could not notify {_who(d)} that {d.get('news_text', 'the job has changed')}" + _of(d, "reason", ": {}")
    ),
    "job.technician_told": lambda d: f"told {_who(d)} that {d.get('news_text', 'the job has changed')}" + _note(d),
    "job.notice_superseded": lambda d: (
        f"no longer needs to notify {_who(d)} that {d.get('news_text', 'the job has changed')}"
    ),
    "job.notice_deferred": lambda d: (
        f"will notify {_who(d)} at {d.get('until_words')}, when the quiet hours end, that {d.get('news_text')}"
    ),
    "job.notice_dropped": lambda d: (
        f"no longer needs to notify {_who(d)} after the quiet hours that {d.get('news_text')}"
        + _of(d, "reason", " ({})")
    ),
    "job.claimed": lambda d: "claimed the job",
    "job.released": lambda d: "released the job",
    "job.alert_raised": lambda d: "alerted dispatchers",
    "job.alert_escalated": lambda d: "escalated the alert" + _of(d, "told", ": {}"),
    "job.alert_reached_nobody": lambda d: "found nobody to notify about the alert",
    "job.alert_acknowledged": lambda d: "acknowledged the alert" + _by_phone(d),
    "job.alert_returned": lambda d: f"raised the alert again: {d.get('by')} acknowledged it, but nothing happened",
    "job.alert_settled": lambda d: "closed the alert" + _of(d, "how", ": {}"),
    "offer.made": lambda d: (
        f"offered the job to {_who(d)} (attempt {d.get('attempt')}{_drive(d)})"
        + _of(d, "preferred", ", the customer's preferred technician")
    ),
    "offer.ringing": lambda d: f"is calling {_who(d)}",
    "offer.answered": lambda d: f"reached {_who(d)}",
    "offer.missed": lambda d: f"could not reach {_who(d)} by phone" + _of(d, "reason", ": {}"),
    "offer.accepted": lambda d: _WAYS[d.get("by", "phone")],
    "offer.declined": lambda d: "declined the job",
    "offer.timed_out": lambda d: f"stopped waiting for {_who(d)}" + _of(d, "reason", ": {}"),
    "offer.failed": lambda d: f"could not reach {_who(d)}" + _of(d, "reason", ": {}"),
    "offer.rescinded": lambda d: f"withdrew the offer to {_who(d)}" + _of(d, "reason", ": {}"),
    "text.created": lambda d: "prepared a text",
    "text.requesting": lambda d: "asked the phone provider to send the text",
    "text.held_back": lambda d: "asked Dispatch to wait before sending the text",
    "text.rerouted": lambda d: f"chose the number {d.get('number')} for the text" + _of(d, "why", ": {}"),
    "text.submitted": lambda d: "accepted the text",
    "text.sent": lambda d: "reported the text as sent",
    "text.delivered": lambda d: "reported the text as delivered",
    "text.undelivered": lambda d: "could not deliver the text" + _of(d, "code", " (error {})"),
    "text.failed": lambda d: "could not send the text" + _of(d, "code", " (error {})"),
    "text.rejected": lambda d: "refused the text" + _of(d, "message", ": {}"),
    "text.canceled": lambda d: "did not send the text" + _of(d, "message", ": {}"),
    "text.not_sent": lambda d: "did not send the text" + _of(d, "message", ": {}"),
    "text.unknown": lambda d: "could not confirm whether the text was sent",
    "call.created": lambda d: "prepared a call",
    "call.requesting": lambda d: "asked the phone provider to place the call",
    "call.held_back": lambda d: "asked Dispatch to wait before calling",
    "call.cancel_requested": lambda d: "asked the phone provider to hang up" + _of(d, "reason", ": {}"),
    "call.submitted": lambda d: "accepted the call",
    "call.ringing": lambda d: "reported that the phone is ringing",
    "call.answered": lambda d: "reported that the call was answered",
    "call.key_pressed": lambda d: f"reported key {d.get('key', '')}",
    "call.completed": lambda d: "reported the end of the call",
    "call.signature_refused": lambda d: "rejected a webhook with an invalid signature",
    "call.busy": lambda d: "reported busy",
    "call.no_answer": lambda d: "reported no answer",
    "call.failed": lambda d: "reported that the call failed" + _of(d, "error_code", " (error {})"),
    "call.canceled": lambda d: "ended the call before it was answered",
    "call.rejected": lambda d: "refused the call" + _of(d, "error_code", " (error {})"),
    "call.unknown": lambda d: "did not confirm the call: the phone may be ringing",
    "call.not_placed": lambda d: "never placed the call",
    "call.lost": lambda d: "never reported the end of the call",
}
# Color and shape of the console's states (red triangle, blue phone, gray clock, green check, amber bar, dash).
_TONES = {
    "job.pending": "attention",
    "job.assigned": "good",
    "job.completed": "good",
    "job.cancelled": "off",
    "job.paused": "waiting",
    "job.waiting": "waiting",
    "job.skipped": "off",
    "job.cannot_make_it": "late",
    "job.technician_unreached": "attention",
    "job.notice_deferred": "waiting",
    "job.notice_dropped": "off",
    "job.pause_overdue": "attention",
    "job.not_started": "late",
    "job.not_completed": "late",
    "job.started": "good",
    "job.on_the_way": "good",
    "job.customer_text_failed": "late",
    "job.customer_replied": "calling",
    "job.customer_opted_out": "late",
    "job.reopened": "waiting",
    "job.running_late": "late",
    "job.text_received": "calling",
    "job.text_failed": "late",
    "offer.made": "calling",
    "offer.ringing": "calling",
    "offer.answered": "calling",
    "offer.accepted": "good",
    "offer.declined": "late",
    "offer.timed_out": "late",
    "offer.failed": "late",
    "offer.rescinded": "off",
    "offer.missed": "late",
    "text.undelivered": "late",
    "text.failed": "late",
    "text.rejected": "late",
    "call.failed": "late",
    "call.rejected": "late",
    "call.signature_refused": "late",
    "call.unknown": "late",
    "call.lost": "late",
}
# Internal steps, which don't explain to a person why the job is in its state.
_NO_CHANGE = (
    "job.waiting",
    "job.skipped",
    "job.offering",
    "offer.ringing",
    "offer.answered",
    "job.technician_notified",
    "job.technician_unreached",
    "job.technician_told",
    "job.notice_superseded",
    "job.notice_deferred",
    "job.notice_dropped",
    "job.pause_overdue",
    "job.not_started",
    "job.not_completed",
    "job.possible_duplicate",
    "job.alert_raised",
    "job.alert_escalated",
    "job.alert_reached_nobody",
    "job.alert_acknowledged",
    "job.alert_returned",
    "job.claimed",
    "job.released",
    "job.alert_settled",
    "job.text_received",
    "job.text_sent",
    "job.text_failed",
    "job.texts_handled",
    "job.note_written",
    "job.note_deleted",
    "job.customer_texted",
    "job.customer_text_failed",
    "job.customer_replied",
    "job.customer_opted_out",
)


# A job whose technicians are called in several rounds has some hundred entries.
MAX_ENTRIES = 1000


@dataclass(frozen=True)
class Entry:
    """One entry of the history. `text` is the sentence, `did` its part after the actor, `tone` a UI state."""

    id: int
    at: datetime
    kind: str
    subject_type: str
    subject_id: int
    actor_type: str
    actor_id: int | None
    actor_label: str
    did: str
    tone: str
    data: Data

    @property
    def text(self) -> str:
        return f"{self.actor_label} {self.did}"


def load_timeline(job: Job) -> list[Entry]:
    """Return the last MAX_ENTRIES entries of the job's history, oldest first."""
    offers = [offer.pk for offer in job.offers.all()][-MAX_ENTRIES:]  # often loaded before, and at most MAX_OFFERS
    notices, customer_texts = (
        list(rows.order_by("-id").values_list("pk", flat=True)[:MAX_ENTRIES])
        for rows in (job.notices, job.customer_texts)
    )
    about_them = Q(purpose="offer", subject_id__in=offers) | Q(purpose="job_news", subject_id__in=notices)
    calls = Call.objects.filter(about_them, organization_id=job.organization_id)
    to_customer = Q(purpose="customer", subject_id__in=customer_texts)
    texts = Text.objects.filter(
        about_them | to_customer | Q(purpose="job", subject_id=job.pk),
        organization_id=job.organization_id,
        direction=Text.Direction.OUT,
    )
    costs = {
        (kind, row.pk): row.cost
        for kind, rows in (("call", calls), ("text", texts))
        for row in rows.only("pk", "price", "price_unit").order_by("-id")[:MAX_ENTRIES]
    }
    about = (
        Q(subject_type="submission", subject_id=job.submission_id)
        | Q(subject_type="offer", subject_id__in=offers)
        | Q(subject_type="call", subject_id__in=[pk for kind, pk in costs if kind == "call"])
        | Q(subject_type="text", subject_id__in=[pk for kind, pk in costs if kind == "text"])
    )
    of_organization = Event.objects.filter(organization_id=job.organization_id)
    of_job = of_organization.filter(subject_type="job", subject_id=job.pk).order_by("-id")[:MAX_ENTRIES]
    events = list(of_job.union(of_organization.filter(about), all=True).order_by("id"))[-MAX_ENTRIES:]
    return _with_costs([describe_event(event) for event in events], costs)


def _with_costs(entries: list[Entry], costs: dict[tuple[str, int], str]) -> list[Entry]:
    """Append what each call and text cost, if known, to the last entry about it."""
    left = {subject: cost for subject, cost in costs.items() if cost}
    shown = []
    for entry in reversed(entries):
        cost = left.pop((entry.subject_type, entry.subject_id), "")
        priced = gettext("{did} (price {cost})").format(did=entry.did, cost=cost)
        shown.append(replace(entry, did=priced) if cost else entry)
    return shown[::-1]


def last_change(job: Job) -> Entry | None:
    """Return the last change that matters to a person who decides about the job."""
    offers = job.offers.values("pk")
    about = Q(subject_type="job", subject_id=job.pk) | Q(subject_type="offer", subject_id__in=offers)
    last = Event.objects.filter(about).exclude(kind__in=_NO_CHANGE).order_by("-id").first()
    return describe_event(last) if last else None


def describe_event(event: Event) -> Entry:
    """Return an event as a history entry. An unknown kind is described by its name."""
    words = _WORDS.get(event.kind)
    return Entry(
        id=event.pk,
        at=event.at,
        kind=event.kind,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        actor_type=event.actor_type,
        actor_id=event.actor_id,
        actor_label=translate_actor(event.actor_label),
        did=_in_other_language(event)
        or (words(event.data) if words else event.kind.replace(".", ": ").replace("_", " ")),
        tone=_TONES.get(event.kind, "plain"),
        data=event.data,
    )


def _in_other_language(event: Event) -> str:
    """Return what happened in the active language; empty in English."""
    if languages.is_english():
        return ""
    data = event.data
    who = _in_its_direction(str(data.get("technician") or languages.gettext("the technician")))
    is_own = data.get("by") in (*_WAYS, "technician")
    return translate_event(event.kind, data, who, is_own=is_own)


def _who(data: Data) -> str:
    return _in_its_direction(str(data.get("technician") or "the technician"))


def _in_its_direction(name: str) -> str:
    """Isolate a right-to-left name, so that the text after it ("2 of 2") keeps its order."""
    written = {unicodedata.bidirectional(letter) for letter in name}
    return f"\u2068{name}\u2069" if written & {"R", "AL"} else name


def _of(data: Data, name: str, form: str) -> str:
    return form.format(data[name]) if data.get(name) else ""


def _count(data: Data, noun: str) -> str:
    """Return the number of eligible technicians with its noun."""
    number = data.get("fit", 0)
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _measure(data: Data) -> str:
    """Return by what the eligible technicians were ranked, if there is an OSRM server."""
    if (ranked := data.get("ranked")) is None:
        return ""
    by_road = data.get("by_road", 0)
    if not by_road:
        return ", ranked by straight lines because no drives by road were known"
    return ", ranked by minutes by road" + (f" ({by_road} of {ranked} known)" if by_road < ranked else "")


def _drive(data: Data) -> str:
    return "" if data.get("travel_s") is None else f", {road_words(data['travel_s'])}"


def _by_phone(data: Data) -> str:
    return " by phone" if data.get("via") == "phone" else ""


def _note(data: Data) -> str:
    return _of(data, "note", " (“{}”)")


def _position(data: Data) -> str:
    source = data.get("position_source")
    return {"form": " (location from the form)", "zip": " (location from the ZIP code)"}.get(
        source or "", f" (location from {source})" if source else ""
    )
