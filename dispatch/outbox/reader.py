"""The durable reader that makes a Message of every Event that an endpoint wants."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from dispatch.core.models import Event
from dispatch.core.readers import EventReader
from dispatch.outbox.models import Endpoint
from dispatch.outbox.rules.heads import passes_filter
from dispatch.outbox.services.intake import NewMessage, accept_of_several

# Whose subject an event's group is, when its data names one: an offer's news goes in line with its job's.
OWNERS = ("job", "lead")


def read(events: list[Event]) -> None:
    """Makes the messages of these events; an endpoint that had one of an event gets no second. Paused and disabled
    endpoints get theirs too: they wait."""
    wanted = [event for event in events if not event.kind.startswith("message.")]
    endpoints: dict[int, list[Endpoint]] = defaultdict(list)
    found = Endpoint.objects.filter(organization_id__in={event.organization_id for event in wanted})
    for endpoint in found.exclude(event_types=[]).order_by("pk"):
        endpoints[endpoint.organization_id].append(endpoint)
    made: dict[int, list[NewMessage]] = defaultdict(list)
    for event in wanted:
        for endpoint in endpoints[event.organization_id]:
            if passes_filter(endpoint.event_types, event.kind):
                made[event.organization_id].append(_message(event, endpoint))
    accept_of_several(made)


def group_of(event: Event) -> str:
    """One job, one lead: the subject, or whose it is."""
    for owner in OWNERS:
        if (owner_id := event.data.get(f"{owner}_id")) is not None:
            return f"{owner}:{owner_id}"
    return f"{event.subject_type}:{event.subject_id}"


def body_of(event: Event) -> dict[str, Any]:
    """What is sent: the type, when it happened, and the event."""
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


def _message(event: Event, endpoint: Endpoint) -> NewMessage:
    return NewMessage(
        type=event.kind,
        payload=json.dumps(body_of(event), separators=(",", ":")),
        endpoint=endpoint,
        group=group_of(event)[:200],
        event_id=event.pk,
    )


READER = EventReader("outbox", read, without=("message",))
