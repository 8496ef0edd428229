"""The call log in the admin: every call with what the provider said about it. Nothing here is edited."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpResponse
from unfold.decorators import action, display

from accounts.admin_base import ACT, VIEW, OwnedAdmin, OwnedTabularInline
from dispatch.telephony import admin_numbers, admin_texts, services
from dispatch.telephony.models import Call, CallEvent

__all__ = ["CallAdmin", "admin_numbers", "admin_texts"]

_LABELS = {
    "completed": "success",
    "answered": "info",
    "ringing": "info",
    "submitted": "info",
    "unknown": "warning",
    "lost": "danger",
    "failed": "danger",
    "rejected": "danger",
    "not_placed": "danger",
}


class CallEventInline(OwnedTabularInline):
    model = CallEvent
    admin_may = VIEW
    dispatcher_may = VIEW
    fields = ["at", "kind", "said"]
    readonly_fields = ["at", "kind", "said"]
    verbose_name_plural = "what the provider told"

    @display(description="said")
    def said(self, event: CallEvent) -> str:
        shown = (
            "CallStatus",
            "SequenceNumber",
            "Digits",
            "AnsweredBy",
            "CallDuration",
            "ErrorCode",
            "SipResponseCode",
        )
        return json.dumps({name: event.payload[name] for name in shown if name in event.payload})


@admin.register(Call)
class CallAdmin(OwnedAdmin):
    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["id", "created_at", "purpose", "to_phone", "number", "state", "keys_pressed", "duration_s"]
    list_filter = ["status", "purpose", "number", "pool"]
    list_select_related = ["number"]
    search_fields = ["to_phone", "sid"]
    date_hierarchy = "created_at"
    show_full_result_count = False
    inlines = [CallEventInline]
    actions = ["hang_up"]
    actions_detail = ["hang_up_this"]
    fieldsets = [
        (None, {"fields": ["purpose", "subject_id", "attempt", "status", "to_phone", "from_phone", "sid"]}),
        ("Line", {"fields": ["account", "pool", "pool_slot", "number", "line_slot"]}),
        (
            "When",
            {
                "fields": [
                    "created_at",
                    "not_before",
                    "place_by",
                    "requested_at",
                    "submitted_at",
                    "answered_at",
                    "cancel_requested_at",
                    "ended_at",
                    "duration_s",
                ]
            },
        ),
        (
            "What came of it",
            {"fields": ["keys_pressed", "answered_by", "error_code", "error_message", "checked_at"]},
        ),
    ]

    @display(description="status", ordering="status", label=_LABELS)
    def state(self, call: Call) -> tuple[str, str]:
        return call.status, call.get_status_display()

    @admin.action(description="Hang up: whoever is on the phone is cut off", permissions=["act"])
    def hang_up(self, request: Any, queryset: QuerySet) -> None:
        open_calls = list(queryset.filter(ended_at=None).values_list("pk", flat=True))
        for call_id in open_calls:
            services.hang_up(call_id, actor=request.actor, reason="by hand")
        over = queryset.count() - len(open_calls)
        note = f" {over} had ended before." if over else ""
        messages.success(request, f"Asked to hang up: {len(open_calls)}.{note}")

    @action(
        description="Hang up",
        permissions=["act"],
        dialog={"title": "Hang up this call?", "description": "Whoever is on the phone is cut off."},
    )
    def hang_up_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        call = services.hang_up(int(object_id), actor=request.actor, reason="by hand")
        words = "Asked to hang up." if call.cancel_requested_at else "The call had ended before."
        messages.success(request, words)
        return self.back_to(object_id)
