"""Show endpoints: their health, and their waiting messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from accounts.models import Membership
from dispatch.console import views_base
from dispatch.console.outbox import queries
from dispatch.console.views_base import console_view
from dispatch.core.models import Event
from dispatch.outbox.models import Attempt, Message, MessageGroup, Status
from dispatch.outbox.services import endpoints as services

RECENT = 10


@require_GET
@console_view
def endpoint_list(request: HttpRequest) -> HttpResponse:
    """List endpoints with their health, unhealthy endpoints first."""
    organization_id = request.organization.pk
    groups = MessageGroup.objects.of(organization_id).filter(blocked_by__isnull=False)
    blocked = Counter(dict(groups.values_list("endpoint").annotate(n=Count("pk")).order_by()))
    failed = Message.objects.of(organization_id).filter(status=Status.ERROR)
    errors = Counter(dict(failed.values_list("endpoint").annotate(n=Count("pk")).order_by()))
    rows: list[dict[str, Any]] = []
    for endpoint in queries.endpoints_of(organization_id):
        health = services.health_of(endpoint, request.organization.time_zone)
        rows.append(
            {
                "endpoint": endpoint, "health": health, "state": queries.HEALTH[health.state],
                "blocked": blocked[endpoint.pk], "errors": errors[endpoint.pk],
            }
        )  # fmt: skip
    rows.sort(key=lambda row: row["health"].state == "healthy")
    return views_base.render_page(
        request,
        "console/outbox/endpoints.html",
        {"current": "outbox", "tab": "endpoints", "counts": queries.count_outbox(organization_id), "rows": rows},
    )


@require_GET
@console_view
def endpoint_detail(request: HttpRequest, endpoint_id: int) -> HttpResponse:
    """Show one endpoint: health, latest attempts and history. htmx reloads its fragment."""
    endpoint = get_object_or_404(queries.endpoints_of(request.organization.pk), pk=endpoint_id)
    report = services.build_report(endpoint, request.organization.time_zone)
    calls = Attempt.objects.filter(message__endpoint=endpoint, message__organization_id=endpoint.organization_id)
    history = Event.objects.filter(
        organization_id=endpoint.organization_id, subject_type="endpoint", subject_id=endpoint.pk
    )
    context = {
        "current": "outbox", "tab": "endpoints", "endpoint": endpoint, "report": report,
        "state": queries.HEALTH[report.health.state], "is_admin": request.role == Membership.Role.ADMIN,
        "calls": [(call, queries.OUTCOMES[call.outcome]) for call in calls.order_by("-id")[:RECENT]],
        "events": list(history.order_by("-id")[:RECENT]),
    }  # fmt: skip
    if views_base.is_fragment(request):
        return views_base.render_fragment(request, "console/outbox/_endpoint.html", context)
    return views_base.render_page(
        request,
        "console/outbox/endpoint.html",
        {**context, "counts": queries.count_outbox(endpoint.organization_id)},
    )
