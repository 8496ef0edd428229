"""The pages to which the messages of chat channels link: acknowledge one alert.

A person's link works without signing in. GET changes nothing, because chat services open links for their previews.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from accounts.tenancy import actor_of, user_of
from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.core import languages
from dispatch.jobs.public.common import with_signed_link
from notifications import rendering, services
from notifications.models import Alert, Delivery
from notifications.services import alert_links
from notifications.services.acknowledgement import LINK


@with_signed_link(
    alert_links.delivery_of, lambda row: rendering.language_of(row.notification), gone="pages/alert_gone.html"
)
def alert_link(request: HttpRequest, row: Delivery) -> HttpResponse:
    """Show the alert of a person's link; on POST, acknowledge it as this person."""
    notification = row.notification
    user, alert = notification.user, notification.alert
    assert user is not None
    assert alert is not None
    if request.method == "POST":
        services.acknowledge_alert(alert.pk, user=user, actor=actor_of(user), via=LINK, returns=alert.returns)
        return HttpResponseRedirect(request.path, status=303)
    context = {
        "organization": row.organization,
        "alert": alert,
        "person": user,
        "title": rendering.title_and_body(notification)[0],
        "is_open": alert.status == Alert.Status.OPEN,
        "is_theirs": alert.acknowledged_by_id == user.pk,
        "link": rendering.link_to(notification),
    }
    return render(request, "pages/alert.html", context)


@require_http_methods(["GET", "POST"])
@console_view
def alert_page(request: HttpRequest, alert_id: int) -> HttpResponse:
    """Show an alert to a member who came from the team's channel; on POST, acknowledge it as this member."""
    alert = get_object_or_404(
        Alert.objects.of(request.organization).select_related("acknowledged_by"), pk=alert_id
    )
    if request.method == "POST":
        services.acknowledge_alert(alert.pk, user=user_of(request), actor=request.actor, via=LINK)
        return views_base.back_to(request, reverse("console:alert", args=[alert.pk]))
    title, body = rendering.title_and_body(alert)
    context = {
        "current": "notifications",
        "tab": "alert",
        "title": title,
        "body": alert.shown_body if languages.is_english() else body,
        "outcome": rendering.outcome_of(alert),
        "alert": alert,
        "is_open": alert.status == Alert.Status.OPEN,
        "address": rendering.path_to(alert),
    }
    return views_base.render_page(request, "console/notices/alert.html", context)
