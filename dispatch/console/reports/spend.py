"""What calls and texts cost, by day in the organization's time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from accounts.models import Organization
from dispatch.telephony import price_sql


@dataclass(frozen=True)
class DayCost:
    """The known prices of a day in one currency. `calls` includes inbound calls."""

    day: date
    currency: str
    calls: Decimal
    texts: Decimal

    @property
    def total(self) -> Decimal:
        return self.calls + self.texts


@dataclass(frozen=True)
class Spend:
    """The costs of a span, newest day first. `unknown`: how many calls and texts have no price so far."""

    days: list[DayCost]
    unknown: int


def build_spend(organization: Organization, first: date, last: date) -> Spend:
    """Add up the prices of calls and texts that began from `first` to `last`. Days without prices are left out."""
    zone = ZoneInfo(organization.time_zone)
    since = datetime.combine(first, time(), zone).astimezone(UTC)
    until = datetime.combine(last + timedelta(days=1), time(), zone).astimezone(UTC)
    costs: dict[tuple[date, str], dict[str, Decimal]] = {}
    for cost in price_sql.costs_by_day(organization.pk, since, until, organization.time_zone):
        of_day = costs.setdefault((cost.day, cost.currency), {"calls": Decimal(0), "texts": Decimal(0)})
        of_day["texts" if cost.kind == price_sql.TEXTS.kind else "calls"] += cost.cost
    days = [DayCost(day, currency, **parts) for (day, currency), parts in sorted(costs.items(), reverse=True)]
    return Spend(
        days, sum(price_sql.unknown_by_day(organization.pk, since, until, organization.time_zone).values())
    )
