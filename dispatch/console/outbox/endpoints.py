"""Endpoints: how each is doing, and what waits there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from accounts.models import Membership
from dispatch.console import web
from dispatch.console.outbox import reading
from dispatch.console.web import console_view
from dispatch.core.models import Event
from dispatch.outbox.models import Attempt, Message, MessageGroup, Status
from dispatch.outbox.services import endpoints as services

RECENT = 10


@require_GET
@console_view
def listed(request: HttpRequest) -> HttpResponse:
    organization_id = request.organization.pk
    groups = MessageGroup.objects.of(organization_id).filter(blocked_by__isnull=False)
    blocked = Counter(dict(groups.values_list("endpoint").annotate(n=Count("pk")).order_by()))
    wrong = Message.objects.of(organization_id).filter(status=Status.ERROR)
    errors = Counter(dict(wrong.values_list("endpoint").annotate(n=Count("pk")).order_by()))
    rows: list[dict[str, Any]] = []
    for endpoint in reading.endpoints_of(organization_id):
        health = services.health_of(endpoint, request.organization.time_zone)
        rows.append(
            {
                "endpoint": endpoint, "health": health, "state": reading.HEALTH[health.state],
                "blocked": blocked[endpoint.pk], "errors": errors[endpoint.pk],
            }
        )  # fmt: skip
    rows.sort(key=lambda row: row["health"].state == "healthy")
    return web.page(
        request,
        "console/outbox/endpoints.html",
        {"current": "outbox", "tab": "endpoints", "counts": reading.counts(organization_id), "rows": rows},
    )


@require_GET
@console_view
def one(request: HttpRequest, endpoint_id: int) -> HttpResponse:
    endpoint = get_object_or_404(reading.endpoints_of(request.organization.pk), pk=endpoint_id)
    report = services.report(endpoint, request.organization.time_zone)
    calls = Attempt.objects.filter(message__endpoint=endpoint, message__organization_id=endpoint.organization_id)
    history = Event.objects.filter(
        organization_id=endpoint.organization_id, subject_type="endpoint", subject_id=endpoint.pk
    )
    given = {
        "current": "outbox", "tab": "endpoints", "endpoint": endpoint, "report": report,
        "state": reading.HEALTH[report.health.state], "is_admin": request.role == Membership.Role.ADMIN,
        "calls": [(call, reading.OUTCOMES[call.outcome]) for call in calls.order_by("-id")[:RECENT]],
        "events": list(history.order_by("-id")[:RECENT]),
    }  # fmt: skip
    if web.is_fragment(request):
        return web.fragment(request, "console/outbox/_endpoint.html", given)
    return web.page(
        request, "console/outbox/endpoint.html", {**given, "counts": reading.counts(endpoint.organization_id)}
    )
