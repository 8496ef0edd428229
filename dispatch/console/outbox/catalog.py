"""Show the event catalog: what endpoints can subscribe to, with schemas and examples."""

from __future__ import annotations

import json
from collections import Counter

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from accounts.models import Membership
from dispatch.console import views_base
from dispatch.console.outbox import queries
from dispatch.console.views_base import console_view
from dispatch.outbox import catalog
from dispatch.outbox.models import Endpoint


@require_GET
@console_view
def catalog_page(request: HttpRequest) -> HttpResponse:
    """List event types by subject. `q` searches names and descriptions; `type` opens one."""
    organization_id = request.organization.pk
    words = request.GET.get("q", "").strip().lower()[:100]
    entries = catalog.catalog_of(organization_id)
    found = [entry for entry in entries if words in f"{entry.name} {entry.shown_description}".lower()]
    opened = next((entry for entry in entries if entry.name == request.GET.get("type")), None)
    subscriptions = Endpoint.objects.of(organization_id).values_list("event_types", flat=True)
    subscribers = Counter(name for names in subscriptions for name in set(names))
    return views_base.render_page(
        request,
        "console/outbox/catalog.html",
        {
            "current": "outbox", "tab": "catalog", "counts": queries.count_outbox(organization_id),
            "rows": [(entry, catalog.count_subscribers(subscribers, entry)) for entry in found], "q": words,
            "opened": opened, "schema": _pretty(opened.schema) if opened else "",
            "example": _pretty(opened.example) if opened else "",
            "is_admin": request.role == Membership.Role.ADMIN,
        },
    )  # fmt: skip


def _pretty(value: object) -> str:
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)
