"""Show groups, each with its state, and the queue of one group, with the reason why each message waits."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from dispatch.console import views_base
from dispatch.console.outbox import queries
from dispatch.console.views_base import console_view
from dispatch.core.ids import read_ids
from dispatch.core.languages import mark
from dispatch.outbox.explain import why_stuck
from dispatch.outbox.models import MessageGroup

SHOWN_OF_GROUP = 25
STATES = (("blocked", mark("Blocked")), ("busy", mark("Waiting or in flight")), ("all", mark("All")))


@require_GET
@console_view
def group_list(request: HttpRequest) -> HttpResponse:
    """List groups: `?state=blocked|busy|all&endpoint=…&q=…&page=…`.

    The default state is blocked if any group is blocked.
    """
    organization_id = request.organization.pk
    counts = queries.count_outbox(organization_id)
    query = request.GET.get("q", "").strip().replace("\x00", "")
    state = request.GET.get("state", "") or (
        "blocked" if counts.blocked and not query else "all" if query else "busy"
    )
    groups = queries.groups_in(organization_id, state)
    if query:
        groups = groups.filter(Q(name=query) | Q(name__startswith=query))
    endpoint = request.GET.get("endpoint", "")
    if endpoint:
        groups = groups.filter(endpoint_id__in=read_ids([endpoint]))
    shown = Paginator(groups, queries.PAGE).get_page(request.GET.get("page"))
    return views_base.render_page(
        request,
        "console/outbox/groups.html",
        {
            "current": "outbox", "tab": "groups", "counts": counts, "state": state, "states": STATES, "q": query,
            "endpoint": endpoint, "endpoints": queries.endpoints_of(organization_id), "page": shown,
            "lines": queries.group_rows(list(shown)),
        },
    )  # fmt: skip


@require_GET
@console_view
def group_detail(request: HttpRequest, group_id: int) -> HttpResponse:
    """Show one group and its queue. htmx reloads its fragment."""
    groups = MessageGroup.objects.of(request.organization.pk).select_related("endpoint__pool", "target__pool")
    group = get_object_or_404(groups, pk=group_id)
    queue = list(queries.queue_of(group)[: SHOWN_OF_GROUP + 1])
    rows = [
        {
            "message": message,
            "tone": queries.TONES[message.status],
            "why": why_stuck(message, request.organization.time_zone),
        }
        for message in queue[:SHOWN_OF_GROUP]
    ]
    context = {
        "current": "outbox", "tab": "groups", "group": group, "line": queries.group_rows([group])[0], "rows": rows,
        "has_more": len(queue) > SHOWN_OF_GROUP,
    }  # fmt: skip
    if views_base.is_fragment(request):
        return views_base.render_fragment(request, "console/outbox/_group.html", context)
    return views_base.render_page(
        request, "console/outbox/group.html", {**context, "counts": queries.count_outbox(group.organization_id)}
    )


@require_GET
@console_view
def summary(request: HttpRequest) -> HttpResponse:
    """Render the counts above every page of the outbox."""
    context = {"counts": queries.count_outbox(request.organization.pk)}
    return views_base.render_fragment(request, "console/outbox/_summary.html", context)
