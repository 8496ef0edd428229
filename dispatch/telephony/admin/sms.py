"""Show texts, opt-outs and inbound calls in the admin. Only opt-outs can be added and deleted."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from accounts.admin.base import VIEW, OwnedAdmin
from dispatch.core.labels import label, translate_label
from dispatch.core.phone_numbers import format_national
from dispatch.telephony import services, sms_rules
from dispatch.telephony.error_texts import describe_error
from dispatch.telephony.models import Call, InboundCall, OptOut, Text

# Every status has an entry: the theme shows the stored value of a status without one.
_LABELS = {
    **dict.fromkeys(Text.Status.values, ""),
    "delivered": "success",
    "sent": "info",
    "submitted": "info",
    "unknown": "warning",
    "undelivered": "danger",
    "failed": "danger",
    "rejected": "danger",
    "not_sent": "danger",
}


@admin.register(Text)
class TextAdmin(OwnedAdmin):
    """Show texts, with signed links masked because they are credentials."""

    admin_may = VIEW
    dispatcher_may = VIEW
    list_display = ["id", "created_at", "direction", "purpose", "other_phone", "number", "state", "cost", "shown"]
    list_filter = ["status", "direction", "purpose", "number"]
    list_select_related = ["number"]
    search_fields = ["to_phone", "from_phone", "sid"]
    date_hierarchy = "created_at"
    show_full_result_count = False
    fieldsets = [
        (None, {"fields": ["direction", "purpose", "subject_id", "attempt", "status", "to_phone", "from_phone"]}),
        (_("Text"), {"fields": ["shown"]}),
        (
            _("When"),
            {
                "fields": [
                    "created_at",
                    "not_before",
                    "not_after",
                    "requested_at",
                    "submitted_at",
                    "handled_at",
                    "ended_at",
                ]
            },
        ),
        (_("Provider"), {"fields": ["account", "number", "sid", "error_code", "error"]}),
        (_("Price"), {"fields": ["price", "price_unit", "price_checked_at"]}),
    ]

    @display(description=label("status"), ordering="status", label=_LABELS)
    def state(self, text: Text) -> tuple[str, str]:
        return text.status, text.get_status_display()

    @display(description=label("price"), ordering="price")
    def cost(self, text: Text) -> str:
        return text.cost or "—"

    @display(description=label("error message"))
    def error(self, text: Text) -> str:
        return describe_error(text.error_code, text.error_message) or "—"

    @display(description=label("phone"))
    def other_phone(self, text: Text) -> str:
        return format_national(text.to_phone if text.direction == Text.Direction.OUT else text.from_phone)

    @display(description=label("text"))
    def shown(self, text: Text) -> str:
        return sms_rules.mask_tokens(text.body)


@admin.register(OptOut)
class OptOutAdmin(OwnedAdmin):
    """Manage phones that opted out of texts.

    Deleting a row allows texts again, unless the provider blocks them.
    """

    dispatcher_may = VIEW
    list_display = ["phone", "source", "created_at"]
    list_filter = ["source"]
    search_fields = ["phone"]
    fields = ["phone", "source", "created_at"]
    readonly_fields = ["source", "created_at"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: Any, obj: OptOut, form: forms.ModelForm, change: bool) -> None:
        services.opt_out(obj.organization_id, obj.phone, actor=request.actor)
        obj.pk = OptOut.objects.get(organization_id=obj.organization_id, phone=obj.phone).pk

    def delete_model(self, request: Any, obj: OptOut) -> None:
        services.opt_in(obj.organization_id, obj.phone, actor=request.actor)


@admin.register(InboundCall)
class InboundCallAdmin(OwnedAdmin):
    """Show the calls to our numbers, read-only."""

    admin_may = VIEW
    dispatcher_may = VIEW
    list_display = [
        "id", "created_at", "from_phone", "attestation", "number", "about", "status", "duration", "cost",
    ]  # fmt: skip
    list_filter = ["status", "purpose", "number"]
    list_select_related = ["number"]
    search_fields = ["from_phone", "sid"]
    show_full_result_count = False
    fields = [
        "from_phone", "attestation", "verified_at", "number", "account", "sid", "about", "subject_id", "status",
        "keys_pressed", "created_at", "ended_at", "duration", "price", "price_unit",
    ]  # fmt: skip

    @display(description=label("duration (s)"), ordering="duration_s")
    def duration(self, call: InboundCall) -> int | None:
        return call.duration_s

    @display(description=label("price"), ordering="price")
    def cost(self, call: InboundCall) -> str:
        return call.cost or "—"

    @display(description=label("purpose"), ordering="purpose")
    def about(self, call: InboundCall) -> str:
        """Return the purpose of the call or text to which the caller reacted."""
        labels = dict([*Text.Purpose.choices, *Call.Purpose.choices])
        return translate_label(str(labels.get(call.purpose, call.purpose)), "telephony.call") or "—"
