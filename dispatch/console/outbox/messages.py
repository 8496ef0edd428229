"""Show messages by filter, and one message: why it is in its state, its requests and responses."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from dispatch.console import views_base
from dispatch.console.outbox import queries
from dispatch.console.views_base import console_view
from dispatch.core.ids import read_id
from dispatch.core.models import Event
from dispatch.outbox import http_delivery
from dispatch.outbox.explain import why_stuck
from dispatch.outbox.models import Message
from dispatch.outbox.services.actions import Action

ATTEMPTS_SHOWN = 50
EVENTS_SHOWN = 100


@require_GET
@console_view
def message_list(request: HttpRequest) -> HttpResponse:
    """List messages: `?status=…&endpoint=…&type=…&group=…&id=…`, and `&before=<id>` for older messages."""
    organization_id = request.organization.pk
    matches = queries.messages_in(organization_id, request.GET)
    if (before := read_id(request.GET.get("before"))) is not None:
        matches = matches.filter(pk__lt=before)
    rows = list(matches[: queries.PAGE + 1])
    return views_base.render_page(
        request,
        "console/outbox/messages.html",
        {
            "current": "outbox", "tab": "messages", "counts": queries.count_outbox(organization_id),
            "rows": [{"message": row, "tone": queries.TONES[row.status]} for row in rows[: queries.PAGE]],
            "older": rows[queries.PAGE - 1].pk if len(rows) > queries.PAGE else None,
            "asked": {name: request.GET.get(name, "") for name in queries.FILTERS},
            "is_filtered": any(request.GET.get(name) for name in queries.FILTERS),
            "statuses": queries.STATUS_CHOICES, "endpoints": queries.endpoints_of(organization_id),
        },
    )  # fmt: skip


@require_GET
@console_view
def message_detail(request: HttpRequest, message_id: int) -> HttpResponse:
    """Show one message. htmx reloads its fragment until the message has ended."""
    own = Message.objects.of(request.organization.pk)
    message = get_object_or_404(
        own.select_related("endpoint__pool", "target__pool", "group", "pool"), pk=message_id
    )
    context = {
        "current": "outbox", "tab": "messages", "message": message, "tone": queries.TONES[message.status],
        "why": why_stuck(message, request.organization.time_zone),
        "attempts": _attempts(message), "events": _events(message),
        "is_open": message.status in queries.OPEN or message.in_flight,
        "actions": [action for action in Action if message.status in action.before],
    }  # fmt: skip
    if views_base.is_fragment(request):
        return views_base.render_fragment(request, "console/outbox/_message.html", context)
    context |= {
        "payload": queries.format_json(message.payload),
        "counts": queries.count_outbox(message.organization_id),
    }
    return views_base.render_page(request, "console/outbox/message.html", context)


def _attempts(message: Message) -> list[dict[str, Any]]:
    """Return the attempts, latest first, each with its request as sent and the response."""
    made = list(message.attempts_made.order_by("-id")[:ATTEMPTS_SHOWN])
    return [
        {
            "attempt": attempt,
            "state": queries.OUTCOMES[attempt.outcome],
            "headers": http_delivery.headers_shown(message, attempt.number, attempt.started_at)
            if attempt.url
            else {},
        }
        for attempt in made
    ]


def _events(message: Message) -> list[Event]:
    own = Event.objects.filter(
        organization_id=message.organization_id, subject_type="message", subject_id=message.pk
    )
    return list(own.order_by("-id")[:EVENTS_SHOWN])
