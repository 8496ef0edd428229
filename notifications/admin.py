"""A person's own notifications, and what Admins set up: who is told, and how alerts escalate. What reaches oneself
is chosen in the console."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.db import models, transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget

from accounts.admin_base import ACT, VIEW, OwnedAdmin, OwnedForm, OwnedTabularInline
from accounts.current import person_of
from dispatch.core import events
from notifications import rules, services
from notifications.models import (
    Alert,
    Delivery,
    EscalationPolicy,
    EscalationStep,
    Notification,
    Route,
)
from notifications.services.policies import default_steps
from notifications.words import path_to


class ReadOnlyInline(OwnedTabularInline):
    admin_may = VIEW
    dispatcher_may = VIEW


class DeliveriesOfNotification(ReadOnlyInline):
    """By which channels it left the house, and how that went."""

    model = Delivery
    fields = ["channel", "status", "attempts", "error", "created_at", "ended_at"]
    readonly_fields = fields


@admin.register(Notification)
class NotificationAdmin(OwnedAdmin):
    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["title", "shown_level", "body", "created_at", "state"]
    list_filter = ["level", "kind", "created_at"]
    list_select_related = ["acknowledged_by"]
    search_fields = ["title", "body"]
    actions = ["acknowledge", "mark_read"]
    actions_without_asking = ("acknowledge", "mark_read")
    inlines = [DeliveriesOfNotification]

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


@admin.register(Alert)
class AlertAdmin(OwnedAdmin):
    """What was raised, whom it reached, and who took it on."""

    admin_may = VIEW
    dispatcher_may = VIEW
    list_display = ["title", "state", "created_at", "acknowledged_by", "acknowledged_via", "told", "repeats"]
    list_filter = ["status", "kind", "created_at"]
    list_select_related = ["acknowledged_by"]
    search_fields = ["title", "body"]
    fields = ["title", "body", "about", "state", "created_at", "taken_on", "settled", "coming", "sent_out"]
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).annotate(reached=Count("notifications__deliveries"))

    @display(description="state", label={"open": "danger", "acknowledged": "info", "settled": "success"})
    def state(self, alert: Alert) -> str:
        return alert.status

    @display(description="sent out", ordering="reached")
    def told(self, alert: Any) -> int:
        return int(alert.reached)

    @display(description="about")
    def about(self, alert: Alert) -> str:
        words = f"{alert.subject_type} {alert.subject_id}".capitalize()
        address = path_to(alert)
        link = '<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>'
        return format_html(link, address, words) if address else words

    @display(description="taken on")
    def taken_on(self, alert: Alert) -> str:
        if alert.acknowledged_at is None:
            return "by nobody"
        how = {"app": "in the browser", "phone": "in a call", "text": "by text"}.get(alert.acknowledged_via, "")
        return f"by {alert.acknowledged_by or 'somebody'}, {_at(alert.acknowledged_at)} {how}".strip()

    @display(description="settled")
    def settled(self, alert: Alert) -> str:
        return f"{alert.settled_how}, {_at(alert.settled_at)}" if alert.settled_at else "not yet"

    @display(description="goes on")
    def coming(self, alert: Alert) -> str:
        if alert.next_action_at is None:
            return f"no more; it was repeated {alert.repeats} times"
        return f"step {alert.step + 1} at {_at(alert.next_action_at)}; repeated {alert.repeats} times so far"

    @display(description="sent out")
    def sent_out(self, alert: Alert) -> str:
        """To whom, by what, and how that went."""
        rows = Delivery.objects.filter(notification__alert=alert).select_related("notification__user")
        lines = [
            (_at(row.created_at), row.notification.user, row.get_channel_display(), _how(row))
            for row in rows.order_by("pk")
        ]
        found = format_html_join("", "<li>{} {}: {}, {}</li>", lines)
        return format_html("<ul>{}</ul>", found) if lines else "to nobody yet"


def _at(moment: datetime | None) -> str:
    """The time as the admin writes it."""
    return formats.date_format(timezone.localtime(moment), "DATETIME_FORMAT") if moment else ""


def _how(row: Delivery) -> str:
    words = row.get_status_display().lower()
    return f"{words} ({row.error})" if row.error else words


class KindForm(OwnedForm):
    """A kind of event, chosen by what it means."""

    kind = forms.ChoiceField(widget=UnfoldAdminSelectWidget)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "kind" in self.fields:
            field: Any = self.fields["kind"]
            field.choices = [(rule.kind, f"{rule.label} ({rule.level})") for rule in rules.TABLE]


class NotedAdmin(OwnedAdmin):
    """Setting-up whose every change is an Event."""

    subject = ""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        with transaction.atomic():
            obj.save()
            self._note(request, obj, "changed" if change else "added", fields=sorted(form.changed_data))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with transaction.atomic():
            self._note(request, obj, "removed")
            obj.delete()

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet) -> None:
        for row in queryset:
            self.delete_model(request, row)

    def _note(self, request: HttpRequest, row: Any, verb: str, **data: Any) -> None:
        events.append(
            row.organization_id, f"{self.subject}.{verb}", row.pk, actor=request.actor, name=str(row), **data
        )


@admin.register(Route)
class RouteAdmin(NotedAdmin):
    """Which kinds are told to whom, where the organization differs from the installation."""

    subject = "notification_rule"
    form = KindForm
    dispatcher_may = VIEW
    list_display = ["__str__", "is_on", "to", "level"]
    fields = ["kind", "is_on", "to", "level"]


def installed_plan() -> str:
    """What counts where an organization has set up nothing, in words."""
    steps = [
        f"{number}. {EscalationStep.Audience(step.audience).label.lower()} after {step.after_s} s"
        + (f", {step.spacing_s} s between people" if step.spacing_s else "")
        for number, step in enumerate(default_steps(), start=1)
    ]
    return (
        f"What stays empty is as installed: repeated every {settings.ALERT_REPEAT_S} s; {'; '.join(steps)}; "
        f"again after {settings.ALERT_AGAIN_AFTER_S} s. Steps of your own replace all of these."
    )


class StepsOfPolicy(OwnedTabularInline):
    """In their order; without any, the installation's steps count."""

    model = EscalationStep
    dispatcher_may = VIEW
    fields = ["position", "audience", "after_s", "spacing_s", "sms", "voice"]


@admin.register(EscalationPolicy)
class EscalationPolicyAdmin(NotedAdmin):
    """How alerts that nobody acknowledges repeat, and whom they reach by phone. Alerts that are open keep the plan
    with which they were raised."""

    subject = "escalation_policy"
    dispatcher_may = VIEW
    list_display = ["__str__", "repeat_s", "again_after_s", "call_pool"]
    list_select_related = ["call_pool"]
    inlines = [StepsOfPolicy]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """With what counts where a field stays empty."""
        fields = ["repeat_s", "again_after_s", "call_pool"]
        return [(None, {"fields": fields, "description": format_html("{}", installed_plan())})]
