"""A person's own notifications in the admin; superusers see everybody's."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.decorators import display

from accounts.admin_base import ACT, OwnedAdmin
from accounts.current import person_of
from notifications import services
from notifications.models import Notification


@admin.register(Notification)
class NotificationAdmin(OwnedAdmin):
    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["title", "shown_level", "body", "created_at", "state"]
    list_filter = ["level", "kind", "created_at"]
    list_select_related = ["acknowledged_by"]
    search_fields = ["title", "body"]
    actions = ["acknowledge", "mark_read"]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        rows = super().get_queryset(request)
        return rows if request.user.is_superuser else rows.filter(user=request.user)

    @display(description="level", label={"critical": "danger", "toast": "info"}, ordering="level")
    def shown_level(self, row: Notification) -> str:
        return row.level

    @display(description="state")
    def state(self, row: Notification) -> str:
        if row.settled_at:
            return row.settled_how
        if row.acknowledged_at:
            return f"{row.acknowledged_by or 'Somebody'} acknowledged it"
        if row.is_open_alert:
            return "waits for somebody"
        return "read" if row.read_at else "unread"

    @admin.action(description="Acknowledge, for everybody", permissions=["act"])
    def acknowledge(self, request: HttpRequest, queryset: QuerySet) -> None:
        for row in queryset.filter(user=request.user):
            services.acknowledge(row.pk, user=person_of(request), actor=request.actor)

    @admin.action(description="Mark as read", permissions=["act"])
    def mark_read(self, request: HttpRequest, queryset: QuerySet) -> None:
        own = queryset.filter(user=request.user)
        for organization_id in set(own.order_by().values_list("organization_id", flat=True)):
            services.read(person_of(request), organization_id, own.values_list("pk", flat=True))
