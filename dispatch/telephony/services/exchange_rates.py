"""Store the exchange rates by which spending caps count amounts in other currencies.

Nothing fetches rates: an admin enters one with its date. It applies at once, to the whole current day.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction

from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.telephony.models import ExchangeRate
from dispatch.telephony.services import spend_caps

# The admin pages warn of an older rate.
OLD = timedelta(days=92)


def save_rate(row: ExchangeRate, changed: Mapping[str, Any], *, actor: Actor) -> None:
    """Save a rate from its form: a new one, or its `changed` fields. Count the cap again."""
    names = [name for name in changed if name != "organization"]
    with transaction.atomic():
        is_new = row.pk is None
        if is_new:
            row.save()
        elif names:
            row.save(update_fields=names)
        else:
            return
        _append(row, "added" if is_new else "changed", actor)
        spend_caps.recount_cap(row.organization_id, actor=actor)


def delete_rate(row: ExchangeRate, *, actor: Actor) -> None:
    """Delete a rate. Amounts in its currency are no longer counted."""
    with transaction.atomic():
        _append(row, "deleted", actor)
        organization_id = row.organization_id
        row.delete()
        spend_caps.recount_cap(organization_id, actor=actor)


def is_old(row: ExchangeRate) -> bool:
    """Return whether the rate should be checked, because of its date."""
    return row.as_of < (clock.now() - OLD).date()


def describe_rates(organization_id: int, currency: str) -> str:
    """Return the rates that a cap in this currency counts with, such as "1 EUR = 1.08 USD (2026-11-01)"."""
    rates = ExchangeRate.objects.of(organization_id).filter(to_currency=currency).order_by("from_currency")
    return ", ".join(f"{row} ({row.as_of}{', old' if is_old(row) else ''})" for row in rates)


def _append(row: ExchangeRate, verb: str, actor: Actor) -> None:
    rate: dict[str, Any] = {
        "from_currency": row.from_currency,
        "to_currency": row.to_currency,
        "rate": f"{Decimal(row.rate).normalize():f}",
        "as_of": str(row.as_of),
    }
    events.append(row.organization_id, f"exchange_rate.{verb}", row.pk, actor=actor, **rate)
