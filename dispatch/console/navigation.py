"""The admin's side bar: the most used pages first, limited to those that the user may see."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext

from dispatch.core.languages import mark

GROUPS: dict[str, dict[str, str]] = {
    mark("Work"): {
        "jobs.Job": "work",
        "jobs.Submission": "inbox",
        "notifications.Notification": "notifications",
        "notifications.Alert": "notification_important",
    },
    mark("Field"): {
        "technicians.Technician": "engineering",
        "technicians.Skill": "construction",
        "jobs.ServiceType": "home_repair_service",
        "jobs.DispatchPolicy": "rule",
        "jobs.PublicForm": "dynamic_form",
        "jobs.CustomerTextPolicy": "chat",
    },
    mark("Phone"): {
        "telephony.Call": "call",
        "telephony.InboundCall": "call_received",
        "telephony.Text": "sms",
        "telephony.OptOut": "notifications_off",
        "capacity.OutboundNumber": "dialpad",
        "capacity.DispatchPool": "stacks",
        "capacity.ProviderAccount": "cell_tower",
    },
    mark("Leads"): {
        "leads.Lead": "contact_phone",
        "leads.Campaign": "campaign",
        "leads.LeadDispatch": "toggle_on",
        "leads.DoNotCall": "do_not_disturb_on",
        "leads.Consent": "handshake",
        "leads.ClosedDay": "event_busy",
        "leads.CustomerRate": "speed",
        "leads.CallingRule": "gavel",
        "leads.Holiday": "celebration",
        "leads.DoNotCallEverywhere": "block",
        "leads.EngineSwitch": "power_settings_new",
    },
    mark("Outbox"): {
        "outbox.MessageGroup": "list_alt",
        "outbox.Message": "outbox",
        "outbox.Endpoint": "webhook",
        "outbox.QuarantinedPointer": "report",
    },
    mark("Schedules"): {
        "schedules.Schedule": "event_repeat",
        "schedules.Run": "play_circle",
        "schedules.BulkImport": "upload_file",
        "schedules.ExclusionCalendar": "event_busy",
        "schedules.ConcurrencyLimit": "low_priority",
        "schedules.ScheduleFeed": "calendar_month",
    },
    mark("People"): {
        "accounts.Organization": "apartment",
        "accounts.Membership": "badge",
        "accounts.User": "person",
        "accounts.HandoverNote": "sticky_note_2",
        "accounts.ApiKey": "key",
        "accounts.IdentityProvider": "passkey",
        "accounts.RetentionRule": "auto_delete",
        "accounts.OrganizationLimits": "speed",
    },
    mark("Notifications"): {
        "notifications.Route": "alt_route",
        "notifications.EscalationPolicy": "escalator_warning",
        "notifications.AlertChannel": "forum",
        "notifications.PushSubscription": "notifications_active",
    },
}


def sidebar(request: Any) -> list[dict[str, Any]]:
    """Return Unfold's navigation: groups of {title, icon, link}, without entries that the user may not see."""
    registered = {model._meta.label: model_admin for model, model_admin in admin.site._registry.items()}
    groups: list[dict[str, Any]] = []
    for title, entries in GROUPS.items():
        items = [
            {
                "title": capfirst(registered[label].model._meta.verbose_name_plural),
                "icon": icon,
                "link": reverse(f"admin:{label.lower().replace('.', '_')}_changelist"),
            }
            for label, icon in entries.items()
            if label in registered and registered[label].has_view_permission(request)
        ]
        if title == "People" and request.user.administered_organization_ids():
            items.append(
                {"title": gettext("Personal data"), "icon": "privacy_tip", "link": reverse("personal_data")}
            )
            items.append({"title": gettext("Audit log"), "icon": "history", "link": reverse("audit_log")})
        if title == "Notifications":
            items.append(
                {
                    "title": gettext("Notification settings"),
                    "icon": "tune",
                    "link": reverse("console:notification_choices"),
                }
            )
        if items:
            groups.append({"title": gettext(title), "separator": bool(groups), "items": items})
    if request.user.is_superuser:
        queues = {"title": gettext("RQ queues"), "icon": "queue", "link": reverse("django_rq:home")}
        groups.append({"title": gettext("System"), "separator": True, "items": [queues]})
    return groups
