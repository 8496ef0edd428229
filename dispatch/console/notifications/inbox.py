"""List the user's notifications, newest first."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.core.ids import read_id, read_ids
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, ngettext
from notifications import services
from notifications.models import Notification
from notifications.rendering import outcome_of, path_to, title_and_body
from notifications.services import alert_reach

PAGE = 50
VIEWS = (("", mark("All")), ("unread", mark("Unread")), ("alerts", mark("Alerts")))
TONES = {"critical": "attention", "toast": "calling", "quiet": "plain"}


@require_GET
@console_view
def page(request: HttpRequest) -> HttpResponse:
    """Render the list: `?view=unread` or `alerts`, and `&before=<id>` for older notifications."""
    view = request.GET.get("view", "")
    view = view if view in dict(VIEWS) else ""
    own = _own_notifications(request)
    notifications = own
    if view == "unread":
        notifications = own.filter(read_at=None)
    elif view == "alerts":
        notifications = own.filter(level=Notification.Level.CRITICAL)
    if (before := read_id(request.GET.get("before"))) is not None:
        notifications = notifications.filter(pk__lt=before)
    rows = list(notifications.select_related("acknowledged_by")[: PAGE + 1])
    context = {
        "current": "notifications",
        "tab": "listed",
        "view": view,
        "views": [(name, _(words)) for name, words in VIEWS],
        "unread": own.filter(read_at=None).count(),
        "reaches_somebody": alert_reach.reaches_somebody(request.organization.pk),
        "rows": [_describe(row) for row in rows[:PAGE]],
        "older": rows[PAGE - 1].pk if len(rows) > PAGE else None,
    }
    return views_base.render_page(request, "console/notices/listed.html", context)


@require_POST
@console_view
def mark_read(request: HttpRequest) -> HttpResponse:
    """Mark one of the user's notifications (`id`) or all of them as read."""
    only = request.POST.get("id", "")
    if only and read_id(only) is None:
        raise Http404
    count = services.read(user_of(request), request.organization.pk, read_ids([only]) if only else None)
    if not only:
        messages.success(
            request,
            ngettext(
                "{count} notification marked as read.", "{count} notifications marked as read.", count
            ).format(count=count)
            if count
            else _("All notifications were already read."),
        )
    return views_base.back_to(request, _back(request))


@require_POST
@console_view
def acknowledge(request: HttpRequest, notification_id: int) -> HttpResponse:
    """Acknowledge a notification; an alert is acknowledged for everyone."""
    row = get_object_or_404(_own_notifications(request), pk=notification_id)
    services.acknowledge(row.pk, user=user_of(request), actor=request.actor)
    return views_base.back_to(request, _back(request))


def _own_notifications(request: HttpRequest) -> QuerySet[Notification]:
    notifications: QuerySet[Notification] = Notification.objects.of(request.organization).filter(
        user=user_of(request)
    )
    return notifications


def _back(request: HttpRequest) -> str:
    view = request.POST.get("view", "")
    return reverse("console:notifications") + (f"?view={view}" if view and view in dict(VIEWS) else "")


def _describe(row: Notification) -> dict[str, Any]:
    title, body = title_and_body(row)
    shown = {"notification": row, "title": title, "body": body}
    return {**shown, "tone": _tone(row), "state": _state(row), "address": path_to(row)}


def _tone(row: Notification) -> str:
    if row.level == Notification.Level.CRITICAL and not row.is_open_alert:
        return "good" if row.settled_at else "waiting"
    return TONES[row.level]


def _state(row: Notification) -> str:
    if row.settled_at:
        return outcome_of(row)
    if row.acknowledged_at:
        return _("Acknowledged by {name}").format(name=row.acknowledged_by or _("someone"))
    return _("Waiting for acknowledgment") if row.is_open_alert else ""
