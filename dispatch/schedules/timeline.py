"""Describe the history of schedules and runs, from the event log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db.models import Q

from dispatch.core.models import Event
from dispatch.jobs.timeline import Entry, describe_event
from dispatch.schedules.models import Run, Schedule

MAX_ENTRIES = 200
Data = dict[str, Any]


def _stretch(data: Data) -> str:
    count = data.get("occurrences", 1)
    return f"{count:,} occurrences" if count > 1 else "the run"


_WORDS: dict[str, Callable[[Data], str]] = {
    "schedule.created": lambda d: "created the schedule",
    "schedule.changed": lambda d: "changed " + ", ".join(d.get("fields", [])).replace("_", " "),
    "schedule.paused": lambda d: "paused the schedule",
    "schedule.resumed": lambda d: "resumed the schedule",
    "schedule.run_now": lambda d: (
        "requested a run now" + (" with another payload" if d.get("has_own_payload") else "")
    ),
    "schedule.backfilled": lambda d: f"requested runs for {d.get('runs', 0):,} past occurrences",
    "schedule.deleted": lambda d: "deleted the schedule",
    "schedule.moved": lambda d: "moved the next run",
    "schedule.ended": lambda d: "ended the schedule: no more occurrences",
    "schedule.failing": lambda d: "raised an alert: a run failed permanently",
    "schedule.recovered": lambda d: "reported that it works again" if not d.get("how") else str(d["how"]),
    "run.in_progress": lambda d: "queued the run",
    "run.running": lambda d: f"started attempt {d.get('attempt', 1)}",
    "run.succeeded": lambda d: "finished the run",
    "run.retrying": lambda d: (
        f"waits for a slot of the key {d['concurrency_key']}"
        if d.get("concurrency_key")
        else f"holds attempt {d.get('attempt', 1)}"
        if d.get("waiting_for")
        else f"will retry after attempt {d.get('attempt', 1)}"
    ),
    "run.failed": lambda d: f"gave up after attempt {d.get('attempt', 1)}",
    "run.skipped": lambda d: f"skipped {_stretch(d)}",
    "run.missed": lambda d: f"recorded {_stretch(d)} as missed",
    "run.cancel_requested": lambda d: "requested the cancellation of the run",
    "run.cancelled": lambda d: "canceled the run",
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
    """Return the history of a run, in order."""
    return _entries(Q(subject_type="run", subject_id=run.pk))


def of_schedule(schedule: Schedule) -> list[Entry]:
    """Return the history of a schedule, in order, without its runs."""
    return _entries(Q(subject_type="schedule", subject_id=schedule.pk))


def _entries(which: Q) -> list[Entry]:
    events = Event.objects.filter(which).order_by("-id")[:MAX_ENTRIES]
    return [_entry(event) for event in reversed(events)]


def _entry(event: Event) -> Entry:
    words = _WORDS.get(event.kind)
    did = words(event.data) if words else event.kind.replace(".", ": ").replace("_", " ")
    return replace(describe_event(event), did=did + _why(event.data), tone=TONES.get(event.kind, "plain"))


def _why(data: Data) -> str:
    reason = data.get("error") or data.get("reason") or data.get("note") or ""
    return f": {reason}" if reason else ""
