"""Groups: what blocks each and since when; one group's line, with why each of it waits."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from dispatch.console import web
from dispatch.console.outbox import reading
from dispatch.console.web import console_view
from dispatch.core.ids import read_ids
from dispatch.outbox.explain import why_stuck
from dispatch.outbox.models import MessageGroup

SHOWN_OF_GROUP = 25
STATES = (("blocked", "Blocked"), ("busy", "Not empty"), ("all", "All"))


@require_GET
@console_view
def listed(request: HttpRequest) -> HttpResponse:
    """`?state=blocked|busy|all&endpoint=…&q=…&page=…`; without a state those that are blocked, if any are."""
    organization_id = request.organization.pk
    counts = reading.counts(organization_id)
    query = request.GET.get("q", "").strip().replace("\x00", "")
    state = request.GET.get("state", "") or (
        "blocked" if counts.blocked and not query else "all" if query else "busy"
    )
    found = reading.groups_in(organization_id, state)
    if query:
        found = found.filter(Q(name=query) | Q(name__startswith=query))
    endpoint = request.GET.get("endpoint", "")
    if endpoint:
        found = found.filter(endpoint_id__in=read_ids([endpoint]))
    shown = Paginator(found, reading.PAGE).get_page(request.GET.get("page"))
    return web.page(
        request,
        "console/outbox/groups.html",
        {
            "current": "outbox", "tab": "groups", "counts": counts, "state": state, "states": STATES, "q": query,
            "endpoint": endpoint, "endpoints": reading.endpoints_of(organization_id), "page": shown,
            "lines": reading.lines(list(shown)),
        },
    )  # fmt: skip


@require_GET
@console_view
def one(request: HttpRequest, group_id: int) -> HttpResponse:
    found = MessageGroup.objects.of(request.organization.pk).select_related("endpoint__pool", "target__pool")
    group = get_object_or_404(found, pk=group_id)
    queue = list(reading.queue_of(group)[: SHOWN_OF_GROUP + 1])
    rows = [
        {
            "message": message,
            "tone": reading.TONES[message.status],
            "why": why_stuck(message, request.organization.time_zone),
        }
        for message in queue[:SHOWN_OF_GROUP]
    ]
    given = {
        "current": "outbox", "tab": "groups", "group": group, "line": reading.lines([group])[0], "rows": rows,
        "has_more": len(queue) > SHOWN_OF_GROUP,
    }  # fmt: skip
    if web.is_fragment(request):
        return web.fragment(request, "console/outbox/_group.html", given)
    return web.page(
        request, "console/outbox/group.html", {**given, "counts": reading.counts(group.organization_id)}
    )


@require_GET
@console_view
def summary(request: HttpRequest) -> HttpResponse:
    """The figures above every page of the outbox."""
    given = {"counts": reading.counts(request.organization.pk)}
    return web.fragment(request, "console/outbox/_summary.html", given)
