"""Push live updates about events to open pages.

A live update is {"id", "kind", "subject", "subject_id", "job"} without further data: the page fetches the subject
again. `job` is the id of the job concerned, if any.

Updates are sent after the commit that wrote the event. `missed_updates` recovers lost ones. It reads from a floor
several seconds in the past, because ids are assigned before the commit and a lower id may become visible after a
higher one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from channels.layers import get_channel_layer
from django.conf import settings
from django.db.models import Q
from redis.client import Pipeline

from dispatch.core import clock, events
from dispatch.core.models import Event
from dispatch.core.redis.after_commit import send_after_commit, send_values_after_commit
from dispatch.core.redis.client import CHANNELS, CircuitOpen

# Subjects whose events are all pushed. Busier subjects (call, message, lead, run) are left out; pages poll those.
SUBJECTS = frozenset(
    {
        "account", "call_error", "campaign", "endpoint", "handover_note", "job", "membership", "number", "offer",
        "pool", "schedule", "submission", "technician",
    }
)  # fmt: skip
# Of calls, only the kinds that may need attention; of texts, their delivery.
KINDS = frozenset({"call.rejected", "call.failed", "call.unknown", "call.lost", "text.delivered"})
LOOK_BACK = timedelta(seconds=10)
# Above MAX_MISSED updates, a page should refetch everything. At most MAX_READ are read.
MAX_MISSED, MAX_READ = 200, 2000
MAX_CACHED = 200
# Live updates in one message.
UPDATES_TOGETHER = 50
EVENTS_HAPPENED = "events.happened"
_CACHED_S = 1.0
_floors: dict[int, tuple[float, int]] = {}
_missed: dict[tuple[int, int], tuple[float, tuple[list[dict[str, Any]], bool]]] = {}  # (read at, result)


def start_listening() -> None:
    """Push every event that this process appends from now on."""
    events.on_append(push_event)


def push_event(event: Event) -> None:
    """Send a live update to the organization's pages once the event is committed, and thus has a primary key.

    Those of one transaction are sent together, as `hint` and `more`: older processes know only `hint`.
    """
    if is_pushed(event):
        organization_id = event.organization_id
        add = partial(_publish_events, organization_id)
        failed = partial(_log_failure, EVENTS_HAPPENED)
        send_values_after_commit(CHANNELS, (EVENTS_HAPPENED, organization_id), event, add, failed)


def _publish_events(organization_id: int, happened: Sequence[Event], pipe: Pipeline) -> None:
    for first in range(0, len(happened), UPDATES_TOGETHER):
        update, *more = [update_of(event) for event in happened[first : first + UPDATES_TOGETHER]]
        said = {"hint": update, "more": more} if more else {"hint": update}
        _publish(organization_id, EVENTS_HAPPENED, said, pipe)


def is_pushed(event: Event) -> bool:
    """Return whether an event of this kind is pushed to open pages."""
    return event.subject_type in SUBJECTS or event.kind in KINDS


def update_of(event: Event) -> dict[str, Any]:
    """Return the live update about an event."""
    job = event.subject_id if event.subject_type == "job" else event.data.get("job_id")
    return {
        "id": event.pk,
        "kind": event.kind,
        "subject": event.subject_type,
        "subject_id": event.subject_id,
        "job": job,
    }


def update_floor(organization_id: int) -> int:
    """Return an event id below every event that a page rendered now could miss."""
    cached = _floors.get(organization_id)
    if cached and time.monotonic() - cached[0] < _CACHED_S:
        return cached[1]
    old = Event.objects.filter(organization_id=organization_id, at__lt=clock.now() - LOOK_BACK)
    floor = old.order_by("-id").values_list("pk", flat=True).first() or 0
    _floors[organization_id] = (time.monotonic(), floor)
    return floor


def newest_event(organization_id: int) -> int:
    """Return the id of the organization's newest event, or 0."""
    newest = Event.objects.filter(organization_id=organization_id).order_by("-id").values_list("pk", flat=True)
    return newest.first() or 0


def reset() -> None:
    """Clear the cached floors and missed updates (tests)."""
    _floors.clear()
    _missed.clear()


def missed_updates(organization_id: int, since: int, not_before: float) -> tuple[list[dict[str, Any]], bool]:
    """Return the live updates of events with a higher id, oldest first, and whether the list is complete.

    At most `MAX_READ` events are read. All sockets with the same `since` share the result, which is read again if
    it is older than `not_before` (of time.monotonic()).
    """
    key = (organization_id, since)
    if (cached := _missed.get(key)) and cached[0] >= not_before:
        return cached[1]
    at = time.monotonic()
    pushed = Q(subject_type__in=SUBJECTS) | Q(kind__in=KINDS)
    rows = Event.objects.filter(pushed, organization_id=organization_id, pk__gt=since).order_by("id")
    updates = [update_of(event) for event in rows[: MAX_READ + 1]]
    answer = updates, len(updates) <= MAX_READ
    if len(_missed) >= MAX_CACHED:
        _missed.clear()
    _missed[key] = (at, answer)
    return answer


log = structlog.get_logger(__name__)


def group_of(organization_id: int) -> str:
    """Return the channel group that the sockets of an organization's members join."""
    return f"organization.{organization_id}"


def notify_written(organization_id: int, ids: Sequence[int]) -> None:
    """Notify open pages that new notifications exist."""
    if ids:
        _send_after_commit(organization_id, "notifications.written")


def notify_changed(organization_id: int, ids: Sequence[int]) -> None:
    """Notify open pages that these notifications were read, acknowledged or resolved."""
    if ids:
        _send_after_commit(organization_id, "notifications.changed", lambda: {"ids": list(ids)})


def notify_repeated(organization_id: int, ids: Sequence[int]) -> None:
    """Sound and show these unacknowledged alerts again on open pages."""
    if ids:
        _send_after_commit(organization_id, "notifications.repeated", lambda: {"ids": list(ids)})


def notify_members_changed(organization_id: int) -> None:
    """Make every socket check its access again after a membership changed."""
    _send_after_commit(organization_id, "members.changed")


def _send_after_commit(organization_id: int, kind: str, read: Callable[[], dict[str, Any]] = dict) -> None:
    """Send a message of this kind, with the fields that `read` returns after the commit."""
    send_after_commit(
        CHANNELS, lambda pipe: _publish(organization_id, kind, read(), pipe), partial(_log_failure, kind)
    )


def _publish(organization_id: int, kind: str, fields: dict[str, Any], pipe: Pipeline) -> None:
    """Publish to the group in the channel layer's own format.

    The layer's `group_send`, called from synchronous code, would open an event loop and a connection for every
    message.
    """
    layer: Any = get_channel_layer()
    config: Any = settings.CHANNEL_LAYERS["default"]["CONFIG"]
    name = f"{config['prefix']}__group__{group_of(organization_id)}"
    pipe.publish(name, layer.serialize({"type": kind, **fields}))


def _log_failure(kind: str, error: Exception) -> None:
    level = log.debug if isinstance(error, CircuitOpen) else log.warning
    level("push_failed", message=kind, error=str(error))
