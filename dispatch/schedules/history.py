"""A schedule's and a run's history in words, read from the event log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db.models import Q

from dispatch.core.models import Event
from dispatch.jobs.timeline import Entry, entry
from dispatch.schedules.models import Run, Schedule

MOST = 200
Data = dict[str, Any]

_WORDS: dict[str, Callable[[Data], str]] = {
    "schedule.created": lambda d: "created the schedule",
    "schedule.changed": lambda d: "changed " + ", ".join(d.get("fields", [])).replace("_", " "),
    "schedule.paused": lambda d: "paused the schedule",
    "schedule.resumed": lambda d: "resumed the schedule",
    "schedule.run_now": lambda d: "asked for a run now",
    "schedule.deleted": lambda d: "deleted the schedule",
    "schedule.ended": lambda d: "noted that there are no more occurrences",
    "schedule.failing": lambda d: "asked for a person: a run failed for good",
    "schedule.recovered": lambda d: "noted that it runs again" if not d.get("how") else str(d["how"]),
    "run.in_progress": lambda d: "handed the run to the workers",
    "run.running": lambda d: f"began attempt {d.get('attempt', 1)}",
    "run.succeeded": lambda d: "finished the run",
    "run.retrying": lambda d: f"will try again after attempt {d.get('attempt', 1)}",
    "run.failed": lambda d: f"gave up after attempt {d.get('attempt', 1)}",
    "run.skipped": lambda d: "skipped the run",
    "run.missed": lambda d: "recorded the run as missed",
    "run.cancelled": lambda d: "cancelled the run",
}
TONES = {
    "schedule.failing": "attention",
    "schedule.recovered": "good",
    "run.running": "calling",
    "run.succeeded": "good",
    "run.retrying": "late",
    "run.failed": "attention",
    "run.missed": "late",
    "run.skipped": "off",
    "run.cancelled": "off",
}


def of_run(run: Run) -> list[Entry]:
    """What happened to a run, in order."""
    return _entries(Q(subject_type="run", subject_id=run.pk))


def of_schedule(schedule: Schedule) -> list[Entry]:
    """What happened to a schedule itself, in order; its runs have histories of their own."""
    return _entries(Q(subject_type="schedule", subject_id=schedule.pk))


def _entries(which: Q) -> list[Entry]:
    found = Event.objects.filter(which).order_by("-id")[:MOST]
    return [_entry(event) for event in reversed(found)]


def _entry(event: Event) -> Entry:
    words = _WORDS.get(event.kind)
    did = words(event.data) if words else event.kind.replace(".", ": ").replace("_", " ")
    return replace(entry(event), did=did + _why(event.data), tone=TONES.get(event.kind, "plain"))


def _why(data: Data) -> str:
    told = data.get("error") or data.get("reason") or data.get("note") or ""
    return f": {told}" if told else ""
