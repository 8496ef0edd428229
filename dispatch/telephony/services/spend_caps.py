"""Hold an organization's calls and texts when its local day has cost as much as its cap allows.

A claim reserves the estimated cost of its calls or texts on the cap's row, whose lock serializes concurrent
claims: together they never reserve more than the cap. A loop counts again what was spent: the known prices, and an
estimate for everything without a price. What exceeds the cap is therefore bounded by how much the calls and texts
in progress cost more than their estimates, and by alert calls and inbound calls and texts, which are counted but
never held.

A cap counts prices in its currency, and those in others for which the organization has an exchange rate. When a
currency without a rate appears, the dispatchers and admins are notified of what the cap does not count.

When what was spent leaves too little for another call, everything but alert calls stops, until the next local day,
or until the cap is raised or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F

from dispatch.core import clock, events
from dispatch.core.db import fast_rows, prepared
from dispatch.core.db.isolation import run_each
from dispatch.core.events import SYSTEM, Actor
from dispatch.telephony import price_sql
from dispatch.telephony.models import SpendCap
from dispatch.telephony.price_sql import Source

log = structlog.get_logger(__name__)

REASON = "spend_cap"
# Calls of these purposes are placed despite the cap.
EXEMPT = frozenset({"alert"})
# The estimate is the average of this many prices of the last days.
AVERAGED, AVERAGED_DAYS = 100, 30
# What was stopped continues on the same day, without a change of the cap, once this share of the cap is enough.
RESUME_SHARE = Decimal("0.95")
# Of `SpendCap.other_currencies`.
MAX_OTHERS_LENGTH = 64
REACHED = "The daily spending cap"
HOW_TO_RAISE = "An admin can raise the cap under Daily spending caps."

_HELD = """
SELECT c.amount, c.currency, c.day, c.spent, c.stopped_at IS NOT NULL, c.{average}, o.time_zone
FROM telephony_spendcap c JOIN accounts_organization o ON o.id = c.organization_id
WHERE c.organization_id = %(organization)s AND c.amount IS NOT NULL
"""
_STATE = [
    "day", "spent", "settled", "call_average", "text_average", "other_currencies", "counted_at", "warned_at",
    "stopped_at", "resumed_at",
]  # fmt: skip

_on_resume: list[Callable[[int], None]] = []


def on_resume(callback: Callable[[int], None]) -> None:
    """Register a callback, called with the organization's id in the transaction that ends a stop."""
    if callback not in _on_resume:
        _on_resume.append(callback)


@dataclass(frozen=True)
class Hold:
    """Calls or texts must wait: `amount` and `currency` are the cap's."""

    amount: Decimal
    currency: str

    def __str__(self) -> str:
        return describe(self.amount, self.currency)


def describe(amount: Decimal, currency: str) -> str:
    """Say that the cap is reached, what happens next and how to raise it."""
    reached = f"{REACHED} of {amount} {currency} is reached."
    return f"{reached} Calls and texts continue tomorrow. {HOW_TO_RAISE}"


class CapState(NamedTuple):
    """Whether a cap applies to a call or text, and why it must wait now."""

    applies: bool
    hold: Hold | None = None


def find_hold(organization_id: int, source: Source, purpose: str = "") -> Hold | None:
    """Return why a call or text of the purpose must wait now, or None. Reserves nothing: see `reserve`."""
    return find_state(organization_id, source, purpose)().hold


def find_state(organization_id: int, source: Source, purpose: str = "") -> Callable[[], CapState]:
    """Return a function for the state of the cap for calls or texts. Without it, there is nothing to `reserve`."""
    if source is price_sql.CALLS and purpose in EXEMPT:
        return lambda: CapState(False)
    average = "text_average" if source.is_text else "call_average"
    find_rows = prepared.fetch_later(_HELD.format(average=average), {"organization": organization_id})
    return lambda: _state_of(find_rows(), source)


def _state_of(rows: Sequence[Sequence[Any]], source: Source) -> CapState:
    for amount, currency, day, spent, is_stopped, price, zone in rows:
        if day != _local_day(zone):
            return CapState(True)  # counted from zero by the next claim
        if is_stopped or not _fitting(amount - spent, _estimate(source, price), 1):
            return CapState(True, Hold(amount, currency))
        return CapState(True)
    return CapState(False)


def reserve(organization_id: int, source: Source, count: int = 1, *, purpose: str = "") -> int:
    """Reserve the estimated cost of `count` calls or texts. Return how many of them the cap allows now.

    Runs in the caller's transaction, which claims them. Locks the cap's row until its end, except for calls that
    no cap stops: these never wait for the row, and the next count includes them.
    """
    if source is price_sql.CALLS and purpose in EXEMPT:
        return count
    cap = _locked(organization_id)
    if cap is None or cap.amount is None:
        return count
    if cap.day != _local_day(cap.organization.time_zone):
        _count(cap)
    estimate = _estimate(source, cap.text_average if source.is_text else cap.call_average)
    allowed = 0 if cap.stopped_at else _fitting(cap.amount - cap.spent, estimate, count)
    if allowed:
        cap.spent += allowed * estimate
        fast_rows.update_row(cap, ("spent",))
    return allowed


def _fitting(left: Decimal, estimate: Decimal, count: int) -> int:
    if left < estimate or left <= 0:
        return 0
    return min(count, int(left / estimate)) if estimate else count


def count_all() -> int:
    """Count what every organization with a cap has spent. Warn, stop and resume. Return how many were counted."""
    capped = SpendCap.objects.filter(amount__isnull=False, organization__is_active=True)
    ids = capped.order_by(F("counted_at").asc(nulls_first=True)).values_list("organization_id", flat=True)
    return run_each(_count_one, list(ids), event="spend_not_counted")


def _count_one(organization_id: int) -> int:
    with transaction.atomic():
        cap = _locked(organization_id)
        if cap is None or cap.amount is None:
            return 0
        _count(cap)
        return 1


def save_cap(cap: SpendCap, changed: Mapping[str, Any], *, actor: Actor) -> None:
    """Save a cap from its form: a new one, or its `changed` fields. A raised cap applies at once."""
    names = [name for name in changed if name != "organization"]
    with transaction.atomic():
        if cap.pk is None:
            cap.save()
            verb = "added"
        elif names:
            cap.save(update_fields=names)
            verb = "changed"
        else:
            return
        stored = _locked(cap.organization_id)
        assert stored is not None
        data = {name: str(changed[name]) for name in names if changed[name] is not None}
        _append(stored, verb, actor, **data)
        stored.warned_at = None
        if stored.amount is None:
            _resume(stored, actor)
            fast_rows.update_row(stored, _STATE)
        else:
            _count(stored, is_edited=True, actor=actor)


def recount_cap(organization_id: int, *, actor: Actor = SYSTEM) -> None:
    """Count the cap again with changed exchange rates, in the caller's transaction."""
    cap = _locked(organization_id)
    if cap is not None and cap.amount is not None:
        _count(cap, is_edited=True, actor=actor)


def _count(cap: SpendCap, *, is_edited: bool = False, actor: Actor = SYSTEM) -> None:
    """Count what the locked cap's organization has spent today, and act on it."""
    assert cap.amount is not None
    now = clock.now()
    today = _local_day(cap.organization.time_zone)
    is_new_day = cap.day != today
    known_units = set() if is_new_day or is_edited else _units(cap.other_currencies)
    since, until = _bounds(today, cap.organization.time_zone)
    days_ago = now - timedelta(days=AVERAGED_DAYS)
    cap.call_average, cap.text_average = (
        price_sql.average_price(source, cap.organization_id, days_ago, AVERAGED, cap.currency)
        for source in (price_sql.CALLS, price_sql.TEXTS)
    )
    call, text = _estimate(price_sql.CALLS, cap.call_average), _estimate(price_sql.TEXTS, cap.text_average)
    spent = price_sql.spent_between(cap.organization_id, since, until, cap.currency)
    cap.day, cap.counted_at = today, now
    cap.settled = spent.known + spent.calls * call + spent.texts * text
    cap.spent = cap.settled + spent.open_calls * call
    cap.other_currencies = _describe_others(spent.others)
    if is_new_day:
        cap.warned_at = None
    _stop_or_resume(cap, call, actor, is_fresh=is_new_day or is_edited)
    if _units(cap.other_currencies) - known_units:
        _append(cap, "uncovered", others=cap.other_currencies, **_facts(cap))
    if cap.warned_at is None and cap.settled * 100 >= cap.amount * cap.warn_percent:
        cap.warned_at = now
        if cap.stopped_at is None:
            _append(cap, "warned", percent=cap.warn_percent, spent=f"{cap.settled:.2f}", **_facts(cap))
    fast_rows.update_row(cap, _STATE)


def _stop_or_resume(cap: SpendCap, estimate: Decimal, actor: Actor, *, is_fresh: bool) -> None:
    """Stop if another call does not fit. `is_fresh`: the day or the cap is new, so any room suffices to resume."""
    assert cap.amount is not None
    if cap.stopped_at is None:
        if not _fitting(cap.amount - cap.settled, estimate, 1):
            cap.stopped_at = clock.now()
            _append(
                cap,
                "reached",
                spent=f"{cap.settled:.2f}",
                description=describe(cap.amount, cap.currency),
                **_facts(cap),
            )
            log.warning("spend_cap_reached", organization=cap.organization_id, spent=str(cap.settled))
    elif _fitting(cap.amount * (1 if is_fresh else RESUME_SHARE) - cap.settled, estimate, 1):
        _resume(cap, actor)


def _resume(cap: SpendCap, actor: Actor) -> None:
    if cap.stopped_at is None:
        return
    cap.stopped_at, cap.resumed_at = None, clock.now()
    _append(cap, "resumed", actor)
    for callback in _on_resume:
        callback(cap.organization_id)


def _facts(cap: SpendCap) -> dict[str, Any]:
    facts: dict[str, Any] = {"amount": str(cap.amount), "currency": cap.currency}
    if cap.other_currencies:
        facts["note"] = f"Not counted, because there is no exchange rate: {cap.other_currencies}."
    return facts


def _describe_others(amounts: Mapping[str, Decimal]) -> str:
    """Return amounts such as "0.70 EUR, 12.00 GBP", as many as the column holds."""
    parts = [f"{amount:.2f} {unit}" for unit, amount in sorted(amounts.items())]
    while len(", ".join(parts)) > MAX_OTHERS_LENGTH:
        parts.pop()
    return ", ".join(parts)


def _units(others: str) -> set[str]:
    return {part.split()[-1] for part in others.split(",") if part.strip()}


def _locked(organization_id: int) -> SpendCap | None:
    return fast_rows.fetch_one(SpendCap, "t.organization_id = %s", [organization_id], "organization", lock=True)


def _estimate(source: Source, average: Decimal | None) -> Decimal:
    if average is not None:
        return average
    default: Decimal = settings.SPEND_TEXT_ESTIMATE if source.is_text else settings.SPEND_CALL_ESTIMATE
    return default


def _local_day(zone: str) -> date:
    return clock.now().astimezone(ZoneInfo(zone)).date()


def _bounds(day: date, zone: str) -> tuple[datetime, datetime]:
    start = datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)
    return start, datetime.combine(day + timedelta(days=1), time(), ZoneInfo(zone)).astimezone(UTC)


def _append(cap: SpendCap, verb: str, actor: Actor = SYSTEM, **data: Any) -> None:
    events.append(cap.organization_id, f"spend_cap.{verb}", cap.pk, actor=actor, **data)


def call_hold(organization_id: int, purpose: str) -> Hold | None:
    """Return why a call of the purpose must wait now, or None."""
    return find_hold(organization_id, price_sql.CALLS, purpose)
