"""Read the event log durably and create a Message for every Event that an endpoint subscribes to."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings

from dispatch.core import clock
from dispatch.core.events.readers import EventReader
from dispatch.core.models import Event
from dispatch.outbox.models import Endpoint
from dispatch.outbox.rules import conditions
from dispatch.outbox.rules.ordering import ABOUT_FAILURES, is_circular, passes_filter
from dispatch.outbox.services.intake import NewMessage, accept_of_several

log = structlog.get_logger(__name__)

# An organization may have very many endpoints. A transaction handles events with at most this many messages.
MAX_MESSAGES = 2000
# Owners that determine an event's group if its data names one: an offer's event joins the group of its job.
OWNERS = ("job", "lead")


def create_messages(events: list[Event]) -> None:
    """Create the messages for these events, at most one per endpoint and event.

    Paused and disabled endpoints get messages too; these wait until the endpoint is resumed or enabled. An
    endpoint that has been disabled for OUTBOX_DISABLED_KEEP_S gets none: `services.missed_events` sends them.
    """
    wanted = [event for event in events if event.kind in ABOUT_FAILURES or not event.kind.startswith("message.")]
    kept_since = clock.now() - timedelta(seconds=settings.OUTBOX_DISABLED_KEEP_S)
    endpoints: dict[int, list[Endpoint]] = defaultdict(list)
    candidates = Endpoint.objects.filter(organization_id__in={event.organization_id for event in wanted})
    candidates = candidates.exclude(event_types=[]).exclude(disabled_at__lt=kept_since)
    for endpoint in candidates.defer(*Endpoint.CREDENTIALS).order_by("pk"):
        endpoints[endpoint.organization_id].append(endpoint)
    bodies: dict[int, list[EventBody]] = defaultdict(list)
    for event in wanted:
        bodies[event.organization_id].append(EventBody(event))
    new_messages: dict[int, list[NewMessage]] = {}
    for organization_id, theirs in endpoints.items():
        # An endpoint gets all its events in a row, so that its condition is parsed once.
        new_messages[organization_id] = [
            message_of(body, endpoint)
            for endpoint in theirs
            for body in bodies[organization_id]
            if is_wanted(body, endpoint)
        ]
    accept_of_several({organization_id: found for organization_id, found in new_messages.items() if found})


class EventBody:
    """What all endpoints get of an event, made once."""

    def __init__(self, event: Event) -> None:
        self.event = event

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        return body_of(self.event)

    @functools.cached_property
    def payload(self) -> str:
        return json.dumps(self.body, separators=(",", ":"))


def group_of(event: Event) -> str:
    """Return the group of an event: the job or lead that is its subject or its subject's owner."""
    for owner in OWNERS:
        if (owner_id := event.data.get(f"{owner}_id")) is not None:
            return f"{owner}:{owner_id}"
    return f"{event.subject_type}:{event.subject_id}"


def body_of(event: Event) -> dict[str, Any]:
    """Return the payload: the type, the time, and the event."""
    return {
        "type": event.kind,
        "timestamp": event.at.isoformat(),
        "data": {
            "event_id": event.pk,
            "subject": {"type": event.subject_type, "id": event.subject_id},
            "actor": {"type": event.actor_type, "id": event.actor_id, "label": event.actor_label},
            **{key: value for key, value in event.data.items() if key not in ("event_id", "subject", "actor")},
        },
    }


def is_wanted(about: EventBody, endpoint: Endpoint) -> bool:
    """Return whether the endpoint receives the event: by its types and its condition."""
    event = about.event
    if not passes_filter(endpoint.event_types, event.kind) or is_circular(event.kind, event.data, endpoint.pk):
        return False
    try:
        return conditions.evaluate_condition(endpoint.condition, about.body)
    except (conditions.InvalidCondition, conditions.ConditionFailed) as error:
        log.info("condition_failed", endpoint=endpoint.pk, event_id=event.pk, error=str(error))
        return False


def message_of(about: EventBody, endpoint: Endpoint) -> NewMessage:
    """Return the message that reports the event to the endpoint."""
    event = about.event
    return NewMessage(
        type=event.kind,
        payload=about.payload,
        endpoint=endpoint,
        group=group_of(event)[:200],
        event_id=event.pk,
    )


def _key(event: Event) -> str:
    return f"{event.organization_id}:{group_of(event)}"


# An event that fails, or whose group is locked, holds back only later events of its group.
READER = EventReader(
    "outbox",
    create_messages,
    without=("message",),
    but=ABOUT_FAILURES,
    key=_key,
    recipients=Endpoint.objects.exclude(event_types=[]),
    most=MAX_MESSAGES,
)
