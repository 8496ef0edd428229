"""A job's history in words, read from the event log: the form, the job, its offers and their calls."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from dispatch.core.models import Event
from dispatch.jobs.models import Job
from dispatch.telephony.models import Call, Text

Data = dict[str, Any]

# How a technician accepted.
_WAYS = {
    "phone": "pressed 1 to accept",
    "text": "replied 1 to accept",
    "link": "accepted on the offer's page",
    "call_back": "called back and pressed 1",
}

# Who did it, in front of `did`, reads as a sentence: "Unit 12" + "accepted the job".
_WORDS: dict[str, Callable[[Data], str]] = {
    "submission.received": lambda d: "received the form" + _of(d, "service", ": {}"),
    "job.created": lambda d: "made the job" + _position(d),
    "job.offering": lambda d: f"found {d.get('fit', 0)} fit technicians among {d.get('considered', 0)} considered",
    "job.round": lambda d: f"began round {d.get('round')} of {d.get('rounds')}",
    "job.skipped": lambda d: f"passed over {_who(d)}" + _of(d, "reason", ": {}"),
    "job.waiting": lambda d: (
        "waits for a free line" if d.get("waiting_for") == "line" else "waits for technicians on another offer"
    ),
    "job.pending": lambda d: "handed the job to the dispatchers" + _of(d, "reason_text", ": {}"),
    "job.assigned": lambda d: (
        "accepted the job" if d.get("by") in _WAYS else f"assigned the job to {_who(d)}" + _note(d)
    ),
    "job.dispatch_again": lambda d: "dispatched the job again" + _note(d),
    "job.called_next": lambda d: "called the next technician now" + _note(d),
    "job.extended": lambda d: f"gave {_who(d)} {d.get('seconds')} s more" + _note(d),
    "job.paused": lambda d: "paused the job" + _note(d),
    "job.resumed": lambda d: "resumed the job" + _note(d),
    "job.cannot_make_it": lambda d: f"recorded that {_who(d)} cannot make it" + _note(d),
    "job.cancelled": lambda d: "cancelled the job" + _of(d, "reason", ": {}"),
    "job.completed": lambda d: "completed the job" + _note(d),
    "job.claimed": lambda d: "took the job on",
    "job.released": lambda d: "let the job go",
    "job.alert_raised": lambda d: "alerted the dispatchers",
    "job.alert_escalated": lambda d: "sent the alert out" + _of(d, "told", ": {}"),
    "job.alert_reached_nobody": lambda d: "found nobody whom the alert could reach",
    "job.alert_acknowledged": lambda d: "acknowledged the alert" + _by_phone(d),
    "job.alert_settled": lambda d: "closed the alert" + _of(d, "how", ": {}"),
    "offer.made": lambda d: f"offered the job to {_who(d)} (attempt {d.get('attempt')})",
    "offer.ringing": lambda d: f"is calling {_who(d)}",
    "offer.answered": lambda d: f"reached {_who(d)}",
    "offer.missed": lambda d: f"did not reach {_who(d)} by phone" + _of(d, "reason", ": {}"),
    "offer.accepted": lambda d: _WAYS[d.get("by", "phone")],
    "offer.declined": lambda d: "declined the job",
    "offer.timed_out": lambda d: f"stopped waiting for {_who(d)}" + _of(d, "reason", ": {}"),
    "offer.failed": lambda d: f"did not reach {_who(d)}" + _of(d, "reason", ": {}"),
    "offer.rescinded": lambda d: f"took the offer to {_who(d)} back" + _of(d, "reason", ": {}"),
    "text.created": lambda d: "wrote a text",
    "text.requesting": lambda d: "asks the provider to send the text",
    "text.held_back": lambda d: "was told to wait before sending the text",
    "text.submitted": lambda d: "took the text",
    "text.sent": lambda d: "reported the text as sent",
    "text.delivered": lambda d: "reported the text as delivered",
    "text.undelivered": lambda d: "could not deliver the text" + _of(d, "code", " (error {})"),
    "text.failed": lambda d: "could not send the text" + _of(d, "code", " (error {})"),
    "text.rejected": lambda d: "refused the text" + _of(d, "message", ": {}"),
    "text.canceled": lambda d: "did not send the text" + _of(d, "message", ": {}"),
    "text.not_sent": lambda d: "did not send the text" + _of(d, "message", ": {}"),
    "text.unknown": lambda d: "did not hear whether the text went out",
    "call.created": lambda d: "set a call up",
    "call.requesting": lambda d: "asks the provider for the call",
    "call.held_back": lambda d: "was told to wait before calling",
    "call.cancel_requested": lambda d: "hangs up" + _of(d, "reason", ": {}"),
    "call.submitted": lambda d: "handed the call to the provider",
    "call.ringing": lambda d: "reported that it rings",
    "call.answered": lambda d: "reported that the call was answered",
    "call.key_pressed": lambda d: f"reported the key {d.get('key', '')}",
    "call.completed": lambda d: "reported that the call is over",
    "call.busy": lambda d: "reported busy",
    "call.no_answer": lambda d: "reported no answer",
    "call.failed": lambda d: "reported that the call failed" + _of(d, "error_code", " (error {})"),
    "call.canceled": lambda d: "ended the call before it was answered",
    "call.rejected": lambda d: "refused the call" + _of(d, "error_code", " (error {})"),
    "call.unknown": lambda d: "did not answer: whether it rings is unknown",
    "call.not_placed": lambda d: "never placed the call",
    "call.lost": lambda d: "never reported the end of the call",
}
# Colour and shape of the console's states (red triangle, blue phone, grey clock, green check, amber bar, dash).
_TONES = {
    "job.pending": "attention",
    "job.assigned": "good",
    "job.completed": "good",
    "job.cancelled": "off",
    "job.paused": "waiting",
    "job.waiting": "waiting",
    "job.skipped": "off",
    "job.cannot_make_it": "late",
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
    "call.unknown": "late",
    "call.lost": "late",
}
# Steps of the machinery that tell a person nothing about why the job is as it is.
_NO_CHANGE = (
    "job.waiting",
    "job.skipped",
    "job.offering",
    "offer.ringing",
    "offer.answered",
    "job.alert_raised",
    "job.alert_escalated",
    "job.alert_reached_nobody",
    "job.alert_acknowledged",
    "job.claimed",
    "job.released",
    "job.alert_settled",
)


@dataclass(frozen=True)
class Entry:
    """One line: `text` is the whole sentence, `did` what follows the actor, `tone` its state (see UI tokens)."""

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


def timeline(job: Job) -> list[Entry]:
    """Everything that happened to the job, oldest first."""
    offers = list(job.offers.values_list("pk", flat=True))
    calls = Call.objects.filter(purpose="offer", subject_id__in=offers).values_list("pk", flat=True)
    texts = Text.objects.filter(
        Q(purpose="offer", subject_id__in=offers) | Q(purpose="job", subject_id=job.pk),
        organization_id=job.organization_id,
        direction=Text.Direction.OUT,
    )
    about = (
        Q(subject_type="job", subject_id=job.pk)
        | Q(subject_type="submission", subject_id=job.submission_id)
        | Q(subject_type="offer", subject_id__in=offers)
        | Q(subject_type="call", subject_id__in=list(calls))
        | Q(subject_type="text", subject_id__in=list(texts.values_list("pk", flat=True)))
    )
    return [
        entry(event) for event in Event.objects.filter(about, organization_id=job.organization_id).order_by("id")
    ]


def last_change(job: Job) -> Entry | None:
    """The last thing that changed the job for a person who decides about it."""
    offers = job.offers.values("pk")
    about = Q(subject_type="job", subject_id=job.pk) | Q(subject_type="offer", subject_id__in=offers)
    last = Event.objects.filter(about).exclude(kind__in=_NO_CHANGE).order_by("-id").first()
    return entry(last) if last else None


def entry(event: Event) -> Entry:
    """An event in words; one of a kind not known here is told by its name."""
    words = _WORDS.get(event.kind)
    return Entry(
        id=event.pk,
        at=event.at,
        kind=event.kind,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        actor_type=event.actor_type,
        actor_id=event.actor_id,
        actor_label=event.actor_label,
        did=words(event.data) if words else event.kind.replace(".", ": ").replace("_", " "),
        tone=_TONES.get(event.kind, "plain"),
        data=event.data,
    )


def _who(data: Data) -> str:
    return _in_its_direction(str(data.get("technician") or "the technician"))


def _in_its_direction(name: str) -> str:
    """A name that is written from right to left is set apart: what follows it ("2 of 2") stays in order."""
    written = {unicodedata.bidirectional(letter) for letter in name}
    return f"\u2068{name}\u2069" if written & {"R", "AL"} else name


def _of(data: Data, name: str, form: str) -> str:
    return form.format(data[name]) if data.get(name) else ""


def _by_phone(data: Data) -> str:
    return " by phone" if data.get("via") == "phone" else ""


def _note(data: Data) -> str:
    return _of(data, "note", " (“{}”)")


def _position(data: Data) -> str:
    source = data.get("position_source")
    return {"form": ", position from the form", "zip": ", position from the ZIP code"}.get(
        source or "", f", position from {source}" if source else ""
    )
