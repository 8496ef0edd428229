"""Send an endpoint the events that it missed, after showing how many there are."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_http_methods
from rest_framework.exceptions import APIException

from dispatch.console import views_base
from dispatch.console.outbox import queries
from dispatch.console.views_base import console_view
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import ngettext
from dispatch.outbox.services import missed_events

# Times near the ends of the calendar cannot be converted between zones.
MIN_YEAR, MAX_YEAR = 1970, 9000


@require_http_methods(["GET", "POST"])
@console_view
def send_missed(request: HttpRequest, endpoint_id: int) -> HttpResponse:
    """Count the events since `?since=`; a POST sends them."""
    endpoint = get_object_or_404(queries.endpoints_of(request.organization.pk), pk=endpoint_id)
    back = reverse("console:outbox_endpoint", args=[endpoint.pk])
    given = request.POST if request.method == "POST" else request.GET
    since = _since(given.get("since", ""), request.organization.time_zone)
    if since is None:
        messages.warning(request, _("Enter the date and time from which to count missed events."))
        return views_base.back_to(request, back)
    after_id = read_id(given.get("after", "")) or 0
    if request.method == "GET":
        context = {
            "current": "outbox", "tab": "endpoints", "endpoint": endpoint, "since": since, "back": back,
            "counts": queries.count_outbox(endpoint.organization_id), "most": missed_events.MAX_EVENTS,
            "found": missed_events.find_missed(endpoint, since, after_id=after_id), "after": after_id,
        }  # fmt: skip
        return views_base.render_page(request, "console/outbox/missed.html", context)
    note = request.POST.get("note", "").strip().replace("\x00", "")[:500]
    try:
        found = missed_events.send_missed(endpoint, since, after_id=after_id, actor=request.actor, note=note)
    except APIException as error:
        messages.warning(request, _(str(error.detail)))
        return views_base.back_to(request, back)
    count = len(found.events)
    queued = ngettext("{count} event queued for {endpoint}.", "{count} events queued for {endpoint}.", count)
    messages.success(request, queued.format(count=f"{count:,}", endpoint=endpoint.name))
    if found.next_after_id is not None:
        rest = reverse("console:outbox_missed", args=[endpoint.pk])
        query = urlencode({"since": since.isoformat(), "after": found.next_after_id})
        return views_base.back_to(request, f"{rest}?{query}")
    return views_base.back_to(request, back)


def _since(text: str, zone: str) -> datetime | None:
    """Return a local or ISO time, or None if it is malformed or centuries away."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if not MIN_YEAR <= at.year <= MAX_YEAR:
        return None
    return at if at.tzinfo else at.replace(tzinfo=ZoneInfo(zone))
