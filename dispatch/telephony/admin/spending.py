"""Administer the daily spending cap of an organization, and the exchange rates that it counts with."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext
from unfold.decorators import display

from accounts.admin.base import VIEW, OwnedAdmin
from dispatch.core.labels import BadgeColors, label, translate_label
from dispatch.telephony.models import ExchangeRate, SpendCap
from dispatch.telephony.services import exchange_rates, spend_caps


@admin.register(SpendCap)
class SpendCapAdmin(OwnedAdmin):
    """Admins set what calls and texts may cost in a day; dispatchers see it. Without an amount there is no cap."""

    subject = "spend_cap"
    dispatcher_may = VIEW
    list_display = ["cap", "spent_today", "state", "note"]
    fields = ["amount", "currency", "warn_percent", "spent_today", "state", "note"]
    readonly_fields = ["spent_today", "state", "note"]

    @display(description=label("cap"))
    def cap(self, row: SpendCap) -> str:
        return str(row)

    @display(description=label("spent today"))
    def spent_today(self, row: SpendCap) -> str:
        if row.amount is None or row.day is None:
            return "—"
        pending = row.spent - row.settled
        reserved = (
            gettext(", and {pending:.2f} for calls in progress").format(pending=pending) if pending > 0 else ""
        )
        return gettext(
            "{settled:.2f} {currency}, with an estimate where no price is known{reserved} ({day})"
        ).format(settled=row.settled, currency=row.currency, reserved=reserved, day=row.day)

    @display(
        description=label("state"),
        label=BadgeColors({"working": "success", "stopped": "danger", "nearly reached": "warning"}),
    )
    def state(self, row: SpendCap) -> str:
        if row.amount is None:
            return gettext("no cap")
        if row.stopped_at is not None:
            return translate_label("stopped")
        return translate_label("nearly reached") if row.warned_at is not None else translate_label("working")

    @display(description=label("note"))
    def note(self, row: SpendCap) -> str:
        notes = []
        if row.other_currencies and row.amount is not None:
            notes.append(
                gettext(
                    "Not counted, because there is no exchange rate into {currency}: {others}. "
                    "Until you add one under Exchange rates, the cap does not stop anything billed in these."
                ).format(currency=row.currency, others=row.other_currencies)
            )
        if rates := exchange_rates.describe_rates(row.organization_id, row.currency):
            notes.append(gettext("Counted with: {rates}.").format(rates=rates))
        return " ".join(notes) or "—"

    def save_model(self, request: Any, obj: SpendCap, form: Any, change: bool) -> None:
        spend_caps.save_cap(
            obj, {name: form.cleaned_data[name] for name in form.changed_data}, actor=request.actor
        )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # empty the amount instead, so that the log says who removed the cap


@admin.register(ExchangeRate)
class ExchangeRateAdmin(OwnedAdmin):
    """Administer exchange rates. Admins enter them, and dispatchers see them."""

    subject = "exchange_rate"
    dispatcher_may = VIEW
    list_display = ["pair", "as_of", "age"]
    fields = ["from_currency", "to_currency", "rate", "as_of"]

    @display(description=label("rate"))
    def pair(self, row: ExchangeRate) -> str:
        return str(row)

    @display(description=label("age"), label=BadgeColors({"current": "success", "old: check it": "warning"}))
    def age(self, row: ExchangeRate) -> str:
        return translate_label("old: check it") if exchange_rates.is_old(row) else translate_label("current")

    def save_model(self, request: Any, obj: ExchangeRate, form: Any, change: bool) -> None:
        changed = {name: form.cleaned_data[name] for name in form.changed_data}
        exchange_rates.save_rate(obj, changed, actor=request.actor)

    def delete_model(self, request: Any, obj: ExchangeRate) -> None:
        exchange_rates.delete_rate(obj, actor=request.actor)
