"""Admin pages for notifications, alerts, notification rules and escalation policies.

Users choose their own preferences in the console.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget

from accounts.admin.base import ACT, VIEW, AuditedAdmin, OwnedAdmin, OwnedForm, OwnedTabularInline
from accounts.tenancy import user_of
from dispatch.core.labels import label, translate_label
from notifications import rules, services
from notifications.models import (
    Alert,
    Delivery,
    EscalationPolicy,
    EscalationStep,
    Level,
    Notification,
    Route,
)
from notifications.models.preferences import MAX_STEPS
from notifications.rendering import outcome_of, path_to, title_and_body
from notifications.services import alert_reach
from notifications.services.preferences import default_steps

# Words of a badge → its color in the admin theme.
LEVEL_COLORS = {Level.CRITICAL: "danger", Level.TOAST: "info"}
WAYS_TO_ACKNOWLEDGE = {
    "app": _("in the browser"),
    "phone": _("by phone"),
    "text": _("by text"),
    "link": _("by link"),
}
STATE_COLORS = {
    Alert.Status.OPEN: "danger",
    Alert.Status.ACKNOWLEDGED: "info",
    Alert.Status.SETTLED: "success",
}


class ReadOnlyInline(OwnedTabularInline):
    """Base of tables that every role may view and nobody may edit."""

    admin_may = VIEW
    dispatcher_may = VIEW


class DeliveriesOfNotification(ReadOnlyInline):
    """List the channels that carried a notification, with the status of each."""

    model = Delivery
    fields = ["channel", "destination", "status", "attempts", "error", "created_at", "ended_at"]
    readonly_fields = fields


class TranslatedMixin:
    """Show the title and the details of a notification or an alert in the language of the reader."""

    @display(description=label("title"), ordering="title")
    def heading(self, row: Notification | Alert) -> str:
        return title_and_body(row)[0]

    @display(description=label("details"))
    def details(self, row: Notification | Alert) -> str:
        return title_and_body(row)[1] or "—"


@admin.register(Notification)
class NotificationAdmin(TranslatedMixin, OwnedAdmin):
    """List the user's own notifications; superusers see those of all users."""

    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["heading", "shown_level", "details", "created_at", "state"]
    list_filter = ["level", "kind", "created_at"]
    list_select_related = ["acknowledged_by"]
    search_fields = ["title", "body"]
    actions = ["acknowledge", "mark_read"]
    actions_without_asking = ("acknowledge", "mark_read")
    inlines = [DeliveriesOfNotification]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        rows = super().get_queryset(request)
        return rows if request.user.is_superuser else rows.filter(user=request.user)

    @display(description=label("level"), label=LEVEL_COLORS, ordering="level")
    def shown_level(self, row: Notification) -> tuple[str, str]:
        return row.level, row.get_level_display()

    @display(description=label("state"))
    def state(self, row: Notification) -> str:
        if row.settled_at:
            return outcome_of(row)
        if row.acknowledged_at:
            return gettext("Acknowledged by {person}").format(person=row.acknowledged_by or gettext("someone"))
        if row.is_open_alert:
            return gettext("Waiting for acknowledgment")
        return gettext("Read") if row.read_at else gettext("Unread")

    @admin.action(description=_("Acknowledge for everyone"), permissions=["act"])
    def acknowledge(self, request: HttpRequest, queryset: QuerySet) -> None:
        for row in queryset.filter(user=request.user):
            services.acknowledge(row.pk, user=user_of(request), actor=request.actor)

    @admin.action(description=_("Mark as read"), permissions=["act"])
    def mark_read(self, request: HttpRequest, queryset: QuerySet) -> None:
        own = queryset.filter(user=request.user)
        for organization_id in set(own.order_by().values_list("organization_id", flat=True)):
            services.read(user_of(request), organization_id, own.values_list("pk", flat=True))


@admin.register(Alert)
class AlertAdmin(TranslatedMixin, OwnedAdmin):
    """List alerts: the cause, the people reached, and the user who acknowledged each."""

    admin_may = VIEW
    dispatcher_may = VIEW
    list_display = [
        "heading",
        "state",
        "created_at",
        "acknowledged_by",
        "acknowledged_how",
        "delivery_count",
        "repeats",
    ]
    list_filter = ["status", "kind", "created_at"]
    list_select_related = ["acknowledged_by"]
    search_fields = ["title", "body"]
    fields = [
        "heading",
        "details",
        "about",
        "state",
        "created_at",
        "acknowledgement",
        "settled",
        "next_step",
        "delivery_list",
    ]
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).annotate(reached=Count("notifications__deliveries"))

    @display(description=label("state"), label=STATE_COLORS)
    def state(self, alert: Alert) -> tuple[str, str]:
        return alert.status, alert.get_status_display()

    @display(description=label("acknowledged via"), ordering="acknowledged_via")
    def acknowledged_how(self, alert: Alert) -> str:
        return WAYS_TO_ACKNOWLEDGE.get(alert.acknowledged_via, alert.acknowledged_via).capitalize() or "—"

    @display(description=label("deliveries"), ordering="reached")
    def delivery_count(self, alert: Any) -> int:
        return int(alert.reached)

    @display(description=label("about"))
    def about(self, alert: Alert) -> str:
        words = f"{translate_label(alert.subject_type)} {alert.subject_id}".capitalize()
        address = path_to(alert)
        link = '<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>'
        return format_html(link, address, words) if address else words

    @display(description=label("acknowledged"))
    def acknowledgement(self, alert: Alert) -> str:
        if alert.acknowledged_at is None:
            return gettext("Not acknowledged")
        how = str(WAYS_TO_ACKNOWLEDGE.get(alert.acknowledged_via, ""))
        person = alert.acknowledged_by or gettext("someone")
        words = gettext("By {person} {how}").format(person=person, how=how).strip()
        return f"{words}, {_format_moment(alert.acknowledged_at)}"

    @display(description=label("resolved"))
    def settled(self, alert: Alert) -> str:
        return (
            f"{outcome_of(alert)}, {_format_moment(alert.settled_at)}"
            if alert.settled_at
            else gettext("Not resolved")
        )

    @display(description=label("next step"))
    def next_step(self, alert: Alert) -> str:
        if alert.returns_at is not None:
            return gettext("opens again at {moment} if nothing happens").format(
                moment=_format_moment(alert.returns_at)
            )
        if alert.next_action_at is None:
            return gettext("None. Repeated {times}.").format(times=_times(alert.repeats))
        step_at = _format_moment(alert.next_action_at)
        return gettext("Step {number} at {moment}. Repeated {times} so far.").format(
            number=alert.step + 1, moment=step_at, times=_times(alert.repeats)
        )

    @display(description=label("deliveries"))
    def delivery_list(self, alert: Alert) -> str:
        """List the recipients, each with the channel and the status of the delivery."""
        rows = Delivery.objects.filter(notification__alert=alert)
        rows = rows.select_related("notification__user", "destination")
        lines = [
            (_format_moment(row.created_at), _recipient(row), row.get_channel_display(), _how(row))
            for row in rows.order_by("pk")
        ]
        items = format_html_join("", "<li>{} {}: {}, {}</li>", lines)
        return format_html("<ul>{}</ul>", items) if lines else gettext("Nobody yet")


def _format_moment(moment: datetime | None) -> str:
    """Format the time as the admin does."""
    return formats.date_format(timezone.localtime(moment), "DATETIME_FORMAT") if moment else ""


def _recipient(row: Delivery) -> str:
    """Return the person, or the team's channel."""
    return str(row.notification.user or gettext("team channel {destination}").format(destination=row.destination))


def _times(count: int) -> str:
    return gettext("once") if count == 1 else gettext("{count} times").format(count=count)


def _how(row: Delivery) -> str:
    words = row.get_status_display().lower()
    return f"{words} ({row.error})" if row.error else words


def describe_reach(request: HttpRequest, row: Any) -> str:
    """Say whom alerts reach by text and call in the row's organization, or in the current one."""
    organization_id = row.organization_id if row else request.organization and request.organization.pk
    return alert_reach.load_reach(organization_id).describe() if organization_id else ""


class KindForm(OwnedForm):
    """Choose an event kind by its label."""

    kind = forms.ChoiceField(label=_("Kind"), widget=UnfoldAdminSelectWidget)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "kind" in self.fields:
            field: Any = self.fields["kind"]
            field.choices = [
                (rule.kind, f"{gettext(rule.label)} ({translate_label(Level(rule.level).label).lower()})")
                for rule in rules.TABLE
            ]


@admin.register(Route)
class RouteAdmin(AuditedAdmin):
    """Override the recipients and level of an event kind for one organization."""

    subject = "notification_rule"
    form = KindForm
    dispatcher_may = VIEW
    list_display = ["__str__", "is_on", "to", "level"]
    fields = ["kind", "is_on", "to", "level"]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Say above the fields whom alerts reach by text and call."""
        fieldsets = super().get_fieldsets(request, obj)
        fieldsets[0][1]["description"] = format_html("{}", describe_reach(request, obj))
        return fieldsets


def installed_plan() -> str:
    """Describe the escalation plan that applies if the organization has not configured one."""
    steps = [
        gettext("{number}. {people} after {seconds} s").format(
            number=number,
            people=translate_label(EscalationStep.Audience(step.audience).label).lower(),
            seconds=step.after_s,
        )
        + (gettext(", {seconds} s between people").format(seconds=step.spacing_s) if step.spacing_s else "")
        for number, step in enumerate(default_steps(), start=1)
    ]
    return gettext(
        "Empty fields use the defaults of this installation: repeat every {repeat} s; {steps}; start over after "
        "{again} s; an acknowledged alert returns after {returns} s. If you add steps, they replace all default "
        "steps."
    ).format(
        repeat=settings.ALERT_REPEAT_S,
        steps="; ".join(steps),
        again=settings.ALERT_AGAIN_AFTER_S,
        returns=settings.ALERT_RETURN_AFTER_S,
    )


class StepsOfPolicy(OwnedTabularInline):
    """Edit the steps in order. Without steps, the installation's defaults apply."""

    model = EscalationStep
    max_num = MAX_STEPS
    dispatcher_may = VIEW
    fields = ["position", "audience", "after_s", "spacing_s", "sms", "voice", "chat", "push"]


@admin.register(EscalationPolicy)
class EscalationPolicyAdmin(AuditedAdmin):
    """Configure how unacknowledged alerts repeat, and the people who get texts and calls.

    Open alerts keep the plan that was in effect when they were raised.
    """

    subject = "escalation_policy"
    dispatcher_may = VIEW
    list_display = ["__str__", "repeat_s", "again_after_s", "return_after_s", "call_pool"]
    list_select_related = ["call_pool"]
    inlines = [StepsOfPolicy]
    fields = ["repeat_s", "again_after_s", "return_after_s", "call_pool", "push_shows_details"]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show above the fields whom alerts reach by text and call, and the installation's defaults."""
        fieldsets = super().get_fieldsets(request, obj)
        fieldsets[0][1]["description"] = format_html("{} {}", describe_reach(request, obj), installed_plan())
        return fieldsets
