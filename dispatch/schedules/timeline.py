"""Describe the history of schedules and runs, from the event log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db.models import Q

from dispatch.core.languages import gettext as _
from dispatch.core.models import Event
from dispatch.jobs.timeline import Entry, describe_event
from dispatch.schedules.models import Run, Schedule

MAX_ENTRIES = 200
Data = dict[str, Any]


def _stretch(data: Data) -> str:
    count = data.get("occurrences", 1)
    if count <= 1:
        return _("the run")
    return _("{count} occurrences").format(count=f"{count:,}")


def _describe_wait(data: Data) -> str:
    if key := data.get("concurrency_key"):
        return _("waits for a slot of the key {key}").format(key=key)
    words = _("holds attempt {number}") if data.get("waiting_for") else _("will retry after attempt {number}")
    return words.format(number=data.get("attempt", 1))


_WORDS: dict[str, Callable[[Data], str]] = {
    "schedule.created": lambda d: _("created the schedule"),
    "schedule.changed": lambda d: _("changed {fields}").format(
        fields=", ".join(d.get("fields", [])).replace("_", " ")
    ),
    "schedule.paused": lambda d: _("paused the schedule"),
    "schedule.resumed": lambda d: _("resumed the schedule"),
    "schedule.run_now": lambda d: (
        _("requested a run now with another payload") if d.get("has_own_payload") else _("requested a run now")
    ),
    "schedule.backfilled": lambda d: _("requested runs for {count} past occurrences").format(
        count=f"{d.get('runs', 0):,}"
    ),
    "schedule.deleted": lambda d: _("deleted the schedule"),
    "schedule.moved": lambda d: _("moved the next run"),
    "schedule.ended": lambda d: _("ended the schedule: no more occurrences"),
    "schedule.failing": lambda d: _("raised an alert: a run failed permanently"),
    "schedule.recovered": lambda d: _(str(d["how"])) if d.get("how") else _("reported that it works again"),
    "run.in_progress": lambda d: _("queued the run"),
    "run.running": lambda d: _("started attempt {number}").format(number=d.get("attempt", 1)),
    "run.succeeded": lambda d: _("finished the run"),
    "run.retrying": lambda d: _describe_wait(d),
    "run.failed": lambda d: _("gave up after attempt {number}").format(number=d.get("attempt", 1)),
    "run.skipped": lambda d: _("skipped {what}").format(what=_stretch(d)),
    "run.missed": lambda d: _("recorded {what} as missed").format(what=_stretch(d)),
    "run.cancel_requested": lambda d: _("requested the cancellation of the run"),
    "run.cancelled": lambda d: _("canceled the run"),
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
    return f": {_(str(reason))}" if reason else ""
