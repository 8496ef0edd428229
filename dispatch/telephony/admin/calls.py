"""Show the call log in the admin: every call with its provider events, read-only."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from accounts.admin.base import ACT, VIEW, OwnedAdmin, OwnedTabularInline
from dispatch.core.labels import label, translate_label
from dispatch.core.languages import mark
from dispatch.telephony import services
from dispatch.telephony.error_texts import describe_error
from dispatch.telephony.models import Call, CallEvent

# Every status has an entry: the theme shows the stored value of a status without one.
_LABELS = {
    **dict.fromkeys(Call.Status.values, ""),
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

# What the provider's detection heard → words.
ANSWERED_BY = {
    "human": mark("a person"),
    "machine_start": mark("a machine"),
    "machine_end_beep": mark("a machine, which beeped"),
    "machine_end_silence": mark("a machine, which fell silent"),
    "machine_end_other": mark("a machine"),
    "fax": mark("a fax machine"),
    "unknown": mark("unknown"),
}


class CallEventInline(OwnedTabularInline):
    """Provider events of a call, with the whole payload."""

    model = CallEvent
    admin_may = VIEW
    dispatcher_may = VIEW
    fields = ["at", "kind", "details"]
    readonly_fields = ["at", "kind", "details"]
    verbose_name_plural = label("provider events")

    @display(description=label("details"))
    def details(self, event: CallEvent) -> str:
        """List the payload, one value per line, with the provider's names."""
        rows = (
            (name, value if isinstance(value, str) else json.dumps(value)) for name, value in event.payload.items()
        )
        return format_html("<ul>{}</ul>", format_html_join("", "<li><code>{}</code>: {}</li>", rows))


@admin.register(Call)
class CallAdmin(OwnedAdmin):
    """Show calls read-only. Dispatchers may hang up a call."""

    admin_may = ACT
    dispatcher_may = ACT
    list_display = [
        "id",
        "created_at",
        "purpose",
        "to_phone",
        "number",
        "state",
        "keys_pressed",
        "duration",
        "cost",
    ]
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
        (_("Line"), {"fields": ["account", "pool", "pool_slot", "number", "line_slot"]}),
        (
            _("When"),
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
                    "duration",
                ]
            },
        ),
        (
            _("Result"),
            {"fields": ["keys_pressed", "listener", "error_code", "error", "checked_at"]},
        ),
        (_("Price"), {"fields": ["price", "price_unit", "price_checked_at"]}),
    ]

    @display(description=label("status"), ordering="status", label=_LABELS)
    def state(self, call: Call) -> tuple[str, str]:
        return call.status, call.get_status_display()

    @display(description=label("answered by"))
    def listener(self, call: Call) -> str:
        return translate_label(ANSWERED_BY.get(call.answered_by, call.answered_by)) or "—"

    @display(description=label("error message"))
    def error(self, call: Call) -> str:
        return describe_error(call.error_code, call.error_message) or "—"

    @display(description=label("duration (s)"), ordering="duration_s")
    def duration(self, call: Call) -> int | None:
        return call.duration_s

    @display(description=label("price"), ordering="price")
    def cost(self, call: Call) -> str:
        return call.cost or "—"

    @admin.action(description=_("Hang up (ends the conversation)"), permissions=["act"])
    def hang_up(self, request: Any, queryset: QuerySet) -> None:
        open_calls = list(queryset.filter(ended_at=None).values_list("pk", flat=True))
        for call_id in open_calls:
            services.hang_up(call_id, actor=request.actor, reason="manual")
        ended = queryset.count() - len(open_calls)
        count = len(open_calls)
        text = ngettext("Hanging up {count} call.", "Hanging up {count} calls.", count).format(count=count)
        note = ngettext("{count} had already ended.", "{count} had already ended.", ended).format(count=ended)
        messages.success(request, f"{text} {note}" if ended else text)

    @action(
        description=_("Hang up"),
        permissions=["act"],
        dialog={
            "title": _("Hang up this call?"),
            "description": _("This ends the conversation for everyone on the call."),
        },
    )
    def hang_up_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        call = services.hang_up(int(object_id), actor=request.actor, reason="manual")
        text = gettext("Hanging up.") if call.cancel_requested_at else gettext("The call had already ended.")
        messages.success(request, text)
        return self.back_to(object_id)
