"""Administer the daily spending cap of an organization."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display

from accounts.admin.base import VIEW, OwnedAdmin
from dispatch.telephony.models import SpendCap
from dispatch.telephony.services import spend_caps


@admin.register(SpendCap)
class SpendCapAdmin(OwnedAdmin):
    """Admins set what calls and texts may cost in a day; dispatchers see it. Without an amount there is no cap."""

    subject = "spend_cap"
    dispatcher_may = VIEW
    list_display = ["cap", "spent_today", "state", "note"]
    fields = ["amount", "currency", "warn_percent", "spent_today", "state", "note"]
    readonly_fields = ["spent_today", "state", "note"]

    @display(description="cap")
    def cap(self, row: SpendCap) -> str:
        return str(row)

    @display(description="spent today")
    def spent_today(self, row: SpendCap) -> str:
        if row.amount is None or row.day is None:
            return "—"
        pending = row.spent - row.settled
        reserved = f", and {pending:.2f} for calls in progress" if pending > 0 else ""
        return f"{row.settled:.2f} {row.currency}, with an estimate where no price is known{reserved} ({row.day})"

    @display(description="state", label={"working": "success", "stopped": "danger", "nearly reached": "warning"})
    def state(self, row: SpendCap) -> str:
        if row.amount is None:
            return "no cap"
        if row.stopped_at is not None:
            return "stopped"
        return "nearly reached" if row.warned_at is not None else "working"

    @display(description="note")
    def note(self, row: SpendCap) -> str:
        if row.other_currencies and row.amount is not None:
            return (
                f"Not counted: {row.other_currencies}. Amounts are not converted, so the cap holds back nothing "
                f"that is billed in another currency than {row.currency}."
            )
        return "—"

    def save_model(self, request: Any, obj: SpendCap, form: Any, change: bool) -> None:
        spend_caps.save_cap(
            obj, {name: form.cleaned_data[name] for name in form.changed_data}, actor=request.actor
        )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # empty the amount instead, so that the log says who removed the cap
