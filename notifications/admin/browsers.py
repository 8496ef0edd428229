"""Show the browsers that get push notifications in the admin. People add them in the console and on their page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import display

from accounts.admin.base import OwnedAdmin
from dispatch.core.labels import BadgeColors, label, translate_label
from notifications.models import PushSubscription
from notifications.services import push_health, push_subscriptions

# Words of a badge → its color in the admin theme.
STATES = BadgeColors({"Works": "success", "Fails": "danger", "No notification yet": "info"})


@admin.register(PushSubscription)
class PushSubscriptionAdmin(OwnedAdmin):
    """List the browsers of members and technicians. Their endpoints and keys are secret and never shown."""

    subject = "push_subscription"
    admin_may = frozenset({"view", "delete"})
    list_display = ["owner", "name", "host", "state", "succeeded_at", "failed_at", "failure"]
    list_display_links = ["owner"]
    list_select_related = ["user", "technician"]
    list_filter = ["host"]
    search_fields = ["user__name", "user__email", "technician__name", "name", "host"]
    fields = [
        "owner", "name", "host", "state", "created_at", "succeeded_at", "failed_at", "failure", "failures",
        "paused_until",
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).defer("endpoint", "keys")

    @display(description=label("person"))
    def owner(self, row: PushSubscription) -> str:
        return str(row.user or row.technician)

    @display(description=label("state"), label=STATES)
    def state(self, row: PushSubscription) -> str:
        if row.error:
            return translate_label("Fails")
        return translate_label("Works") if row.tried_at else translate_label("No notification yet")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return list(self.fields)

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show above the list whether push notifications work."""
        if request.method == "GET" and request.organization is not None:
            state = push_health.read_state(request.organization.pk)
            is_bad = state.name in (push_health.NOT_CONFIGURED, push_health.FAILING)
            messages.add_message(request, messages.WARNING if is_bad else messages.INFO, state.words)
        return super().changelist_view(request, *args, **kwargs)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Remove the browser: it gets no further notifications."""
        push_subscriptions.remove(obj, actor=request.actor)
