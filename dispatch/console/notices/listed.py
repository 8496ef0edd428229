"""What one was told, the newest first."""

from __future__ import annotations

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from accounts.current import person_of
from dispatch.console import web
from dispatch.console.web import console_view
from dispatch.core.ids import read_id, read_ids
from notifications import services
from notifications.models import Notification
from notifications.words import path_to

PAGE = 50
VIEWS = (("", "All"), ("unread", "Unread"), ("alerts", "Alerts"))
TONES = {"critical": "attention", "toast": "calling", "quiet": "plain"}


@require_GET
@console_view
def page(request: HttpRequest) -> HttpResponse:
    """`?view=unread` or `alerts`, and `&before=<id>` for what is older."""
    view = request.GET.get("view", "")
    view = view if view in dict(VIEWS) else ""
    own = _own(request)
    found = own
    if view == "unread":
        found = own.filter(read_at=None)
    elif view == "alerts":
        found = own.filter(level=Notification.Level.CRITICAL)
    if (before := read_id(request.GET.get("before"))) is not None:
        found = found.filter(pk__lt=before)
    rows = list(found.select_related("acknowledged_by")[: PAGE + 1])
    context = {
        "current": "notifications",
        "tab": "listed",
        "view": view,
        "views": VIEWS,
        "unread": own.filter(read_at=None).count(),
        "rows": [
            {"told": row, "tone": _tone(row), "state": _state(row), "address": path_to(row)} for row in rows[:PAGE]
        ],
        "older": rows[PAGE - 1].pk if len(rows) > PAGE else None,
    }
    return web.page(request, "console/notices/listed.html", context)


@require_POST
@console_view
def read(request: HttpRequest) -> HttpResponse:
    """Marks one (`id`) or all of one's own read."""
    only = request.POST.get("id", "")
    if only and read_id(only) is None:
        raise Http404
    count = services.read(person_of(request), request.organization.pk, read_ids([only]) if only else None)
    if not only:
        messages.success(request, f"{count} marked as read." if count else "Everything was read already.")
    return web.back_to(request, _back(request))


@require_POST
@console_view
def acknowledge(request: HttpRequest, notification_id: int) -> HttpResponse:
    """Takes note of it; of an alert, for everybody."""
    row = get_object_or_404(_own(request), pk=notification_id)
    services.acknowledge(row.pk, user=person_of(request), actor=request.actor)
    return web.back_to(request, _back(request))


def _own(request: HttpRequest) -> QuerySet[Notification]:
    found: QuerySet[Notification] = Notification.objects.of(request.organization).filter(user=person_of(request))
    return found


def _back(request: HttpRequest) -> str:
    view = request.POST.get("view", "")
    return reverse("console:notifications") + (f"?view={view}" if view and view in dict(VIEWS) else "")


def _tone(row: Notification) -> str:
    if row.level == Notification.Level.CRITICAL and not row.is_open_alert:
        return "good" if row.settled_at else "waiting"
    return TONES[row.level]


def _state(row: Notification) -> str:
    if row.settled_at:
        return row.settled_how
    if row.acknowledged_at:
        return f"{row.acknowledged_by or 'Somebody'} acknowledged it"
    return "Waits for somebody" if row.is_open_alert else ""
