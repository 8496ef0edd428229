"""Messages by filter, and one message: why it is where it is, what was sent, what was answered."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from dispatch.console import web
from dispatch.console.outbox import reading
from dispatch.console.web import console_view
from dispatch.core.ids import read_id
from dispatch.core.models import Event
from dispatch.outbox import delivery
from dispatch.outbox.explain import why_stuck
from dispatch.outbox.models import Message
from dispatch.outbox.services.by_hand import Action

ATTEMPTS_SHOWN = 50
EVENTS_SHOWN = 100


@require_GET
@console_view
def listed(request: HttpRequest) -> HttpResponse:
    """`?status=…&endpoint=…&type=…&group=…&id=…`, and `&before=<id>` for what is older."""
    organization_id = request.organization.pk
    found = reading.messages_in(organization_id, request.GET)
    if (before := read_id(request.GET.get("before"))) is not None:
        found = found.filter(pk__lt=before)
    rows = list(found[: reading.PAGE + 1])
    return web.page(
        request,
        "console/outbox/messages.html",
        {
            "current": "outbox", "tab": "messages", "counts": reading.counts(organization_id),
            "rows": [{"message": one, "tone": reading.TONES[one.status]} for one in rows[: reading.PAGE]],
            "older": rows[reading.PAGE - 1].pk if len(rows) > reading.PAGE else None,
            "asked": {name: request.GET.get(name, "") for name in reading.FILTERS},
            "is_filtered": any(request.GET.get(name) for name in reading.FILTERS),
            "statuses": reading.STATUS_CHOICES, "endpoints": reading.endpoints_of(organization_id),
        },
    )  # fmt: skip


@require_GET
@console_view
def one(request: HttpRequest, message_id: int) -> HttpResponse:
    """While it has not ended, the page asks for its fragment again."""
    found = Message.objects.of(request.organization.pk)
    message = get_object_or_404(
        found.select_related("endpoint__pool", "target__pool", "group", "pool"), pk=message_id
    )
    given = {
        "current": "outbox", "tab": "messages", "message": message, "tone": reading.TONES[message.status],
        "why": why_stuck(message, request.organization.time_zone),
        "attempts": _attempts(message), "events": _events(message),
        "is_open": message.status in reading.OPEN or message.in_flight,
        "actions": [action for action in Action if message.status in action.before],
    }  # fmt: skip
    if web.is_fragment(request):
        return web.fragment(request, "console/outbox/_message.html", given)
    given |= {"payload": reading.pretty(message.payload), "counts": reading.counts(message.organization_id)}
    return web.page(request, "console/outbox/message.html", given)


def _attempts(message: Message) -> list[dict[str, Any]]:
    """The latest first, each with its request as it was sent and the answer."""
    made = list(message.attempts_made.order_by("-id")[:ATTEMPTS_SHOWN])
    return [
        {
            "attempt": attempt,
            "state": reading.OUTCOMES[attempt.outcome],
            "headers": delivery.headers_shown(message, attempt.number, attempt.started_at) if attempt.url else {},
        }
        for attempt in made
    ]


def _events(message: Message) -> list[Event]:
    own = Event.objects.filter(
        organization_id=message.organization_id, subject_type="message", subject_id=message.pk
    )
    return list(own.order_by("-id")[:EVENTS_SHOWN])
