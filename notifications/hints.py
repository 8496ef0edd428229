"""Which events open pages are told of, as hints: {"id", "kind", "subject", "subject_id", "job"}, no more. A page
fetches what it shows of the subject again; `job` is the id of the job it is about, if any.

They go out after the commit that wrote the event. One that is lost is made good by `missed`: it looks from `floor`
on, some seconds back, for ids are given before the commit and a lower one may appear after a higher."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Max, Q

from dispatch.core import clock, events
from dispatch.core.models import Event
from notifications import push

# Subjects of which everything is told. Busier ones (call, message, lead, run) are left out: a page polls those.
SUBJECTS = frozenset(
    {
        "account", "call_error", "campaign", "endpoint", "job", "membership", "number", "offer", "pool",
        "schedule", "submission", "technician",
    }
)  # fmt: skip
# … but of calls, what a person may have to look into.
KINDS = frozenset({"call.rejected", "call.failed", "call.unknown", "call.lost"})
LOOK_BACK = timedelta(seconds=10)
# With more hints that it has not heard of, a page had better fetch everything; many more are not even read.
MOST_MISSED, MOST_READ = 200, 2000
MOST_KEPT = 200
_KEPT_S = 1.0
_floors: dict[int, tuple[float, int]] = {}
_missed: dict[tuple[int, int], tuple[float, tuple[list[dict[str, Any]], bool]]] = {}  # and when it was read


def listen() -> None:
    """From now on every event that is appended in this process is looked at."""
    events.on_append(appended)


def appended(event: Event) -> None:
    """Tells the organization's pages of the event, once it is committed."""
    if is_told(event):
        hint = hint_of(event)
        transaction.on_commit(lambda: push.happened(event.organization_id, hint), robust=True)


def is_told(event: Event) -> bool:
    return event.subject_type in SUBJECTS or event.kind in KINDS


def hint_of(event: Event) -> dict[str, Any]:
    job = event.subject_id if event.subject_type == "job" else event.data.get("job_id")
    return {
        "id": event.pk,
        "kind": event.kind,
        "subject": event.subject_type,
        "subject_id": event.subject_id,
        "job": job,
    }


def floor(organization_id: int) -> int:
    """An event id of the organization above which all that a page read now could lack must lie."""
    kept = _floors.get(organization_id)
    if kept and time.monotonic() - kept[0] < _KEPT_S:
        return kept[1]
    old = Event.objects.filter(organization_id=organization_id, at__lt=clock.now() - LOOK_BACK)
    found = old.order_by("-id").values_list("pk", flat=True).first() or 0
    _floors[organization_id] = (time.monotonic(), found)
    return found


def forget() -> None:
    """Reads anew next time (tests)."""
    _floors.clear()
    _missed.clear()


def newest(organization_id: int) -> int:
    """The highest id of the organization's events, 0 for none."""
    return Event.objects.filter(organization_id=organization_id).aggregate(id=Max("id"))["id"] or 0


def missed(organization_id: int, since: int, not_before: float) -> tuple[list[dict[str, Any]], bool]:
    """Hints of the events with a higher id, oldest first, and whether these are all: at most `MOST_READ` are read.
    What many sockets ask for is read once, and again when that was before `not_before` (of time.monotonic())."""
    key = (organization_id, since)
    if (kept := _missed.get(key)) and kept[0] >= not_before:
        return kept[1]
    at = time.monotonic()
    told = Q(subject_type__in=SUBJECTS) | Q(kind__in=KINDS)
    rows = Event.objects.filter(told, organization_id=organization_id, pk__gt=since).order_by("id")
    found = [hint_of(event) for event in rows[: MOST_READ + 1]]
    answer = found, len(found) <= MOST_READ
    if len(_missed) >= MOST_KEPT:
        _missed.clear()
    _missed[key] = (at, answer)
    return answer
