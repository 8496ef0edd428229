"""Hold the SQL on prices: rows without one, recording them, and what an organization spent.

The conditions repeat those of the partial indexes in the models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from dispatch.core.db import prepared


@dataclass(frozen=True)
class Source:
    """A table of calls or texts. `began` and `ended` are SQL for when a row was requested and when it ended."""

    kind: str
    table: str
    began: str
    ended: str
    priceable: str
    is_text: bool = False


_TEXT_AT = "COALESCE(requested_at, created_at)"
CALLS = Source(
    "call", "telephony_call", "requested_at", "ended_at", "sid IS NOT NULL AND status IN ('completed', 'lost')"
)
INBOUND_CALLS = Source("inbound_call", "telephony_inboundcall", "created_at", "ended_at", "ended_at IS NOT NULL")
TEXTS = Source(
    "text",
    "telephony_text",
    _TEXT_AT,
    _TEXT_AT,
    "sid IS NOT NULL AND status IN ('submitted', 'sent', 'delivered', 'undelivered', 'received')",
    is_text=True,
)
SOURCES = (CALLS, INBOUND_CALLS, TEXTS)


class Unpriced(NamedTuple):
    """A row whose price is not known."""

    id: int
    sid: str
    began_at: datetime
    ended_at: datetime


def _is_due(source: Source) -> str:
    """Return the condition for rows that ended between %(since)s and %(until)s and are due.

    A row is due again when it is twice as old as it was when it was last asked about.
    """
    return f"""
    price IS NULL AND {source.priceable} AND {source.ended} > %(since)s AND {source.ended} <= %(until)s
    AND (price_checked_at IS NULL
         OR price_checked_at < {source.ended} + (%(now)s::timestamptz - {source.ended}) / 2)
    """


_ANY_IS_DUE = " OR ".join(
    f"EXISTS (SELECT FROM {source.table} WHERE account_id = a.id AND {_is_due(source)})" for source in SOURCES
)
_ACCOUNTS = f"SELECT a.id FROM unnest(%(accounts)s::bigint[]) AS a (id) WHERE {_ANY_IS_DUE}"


def accounts_with_unpriced(
    account_ids: Iterable[int], since: datetime, until: datetime, now: datetime
) -> set[int]:
    """Return those of the accounts for which `unpriced` returns rows of some source."""
    given = {"accounts": prepared.integers(account_ids), "since": since, "until": until, "now": now}
    return {pk for (pk,) in prepared.fetch_by_index(_ACCOUNTS, given)}


def unpriced(
    source: Source, account_id: int, since: datetime, until: datetime, now: datetime, limit: int
) -> list[Unpriced]:
    """Return rows of the account that ended between `since` and `until` and are due, oldest first."""
    statement = f"""
    SELECT id, sid, COALESCE({source.began}, created_at), {source.ended} FROM {source.table}
    WHERE account_id = %(account)s AND {_is_due(source)}
    ORDER BY {source.ended} LIMIT %(limit)s
    """
    given = {"account": account_id, "since": since, "until": until, "now": now, "limit": limit}
    return [Unpriced(*row) for row in prepared.fetch_all(statement, given)]


def mark_checked(source: Source, ids: Sequence[int], now: datetime) -> None:
    """Record that the provider was asked about these rows."""
    statement = f"UPDATE {source.table} SET price_checked_at = %(now)s WHERE id = ANY(%(ids)s::bigint[])"
    prepared.execute(statement, {"ids": prepared.integers(ids), "now": now})


def record(source: Source, prices: Sequence[tuple[int, Decimal, str]]) -> list[tuple[Decimal, str]]:
    """Write (id, price, currency) to rows without a price. Return what was written."""
    statement = f"""
    UPDATE {source.table} r SET price = v.price::numeric, price_unit = v.unit
    FROM unnest(%(ids)s::bigint[], %(prices)s::text[], %(units)s::text[]) AS v (id, price, unit)
    WHERE r.id = v.id AND r.price IS NULL
    RETURNING r.price, r.price_unit
    """
    given = {
        "ids": prepared.integers(pk for pk, _, _ in prices),
        "prices": prepared.texts(str(price) for _, price, _ in prices),
        "units": prepared.texts(unit for _, _, unit in prices),
    }
    return [(price, unit) for price, unit in prepared.fetch_all(statement, given)]


# --- what an organization spent --------------------------------------------------------------------------------

_PRICED = " UNION ALL ".join(
    f"""
    SELECT '{source.kind}' AS kind, {source.began} AS at, price, price_unit FROM {source.table}
    WHERE organization_id = %(organization)s AND price IS NOT NULL
        AND {source.began} >= %(since)s AND {source.began} < %(until)s
    """
    for source in SOURCES
)
# Those without a price that cost something: in progress, ended, and texts.
_OPEN = """
SELECT 'open' AS kind, requested_at AS at FROM telephony_call
WHERE organization_id = %(organization)s AND ended_at IS NULL AND status <> 'created'
    AND requested_at >= %(since)s AND requested_at < %(until)s
"""
_ENDED = f"""
SELECT 'call' AS kind, requested_at AS at FROM telephony_call
WHERE organization_id = %(organization)s AND price IS NULL AND {CALLS.priceable}
    AND account_id IN (SELECT id FROM capacity_provideraccount WHERE organization_id = %(organization)s)
    AND ended_at >= %(since)s AND requested_at >= %(since)s AND requested_at < %(until)s
"""
_TEXTS = f"""
SELECT 'text' AS kind, {_TEXT_AT} AS at FROM telephony_text
WHERE organization_id = %(organization)s AND price IS NULL AND {TEXTS.priceable} AND direction = 'out'
    AND account_id IN (SELECT id FROM capacity_provideraccount WHERE organization_id = %(organization)s)
    AND {_TEXT_AT} >= %(since)s AND {_TEXT_AT} < %(until)s
UNION ALL
SELECT 'text' AS kind, requested_at AS at FROM telephony_text
WHERE organization_id = %(organization)s AND status IN ('requesting', 'unknown') AND sid IS NULL
    AND requested_at >= %(since)s AND requested_at < %(until)s
"""
_UNKNOWN = f"{_OPEN} UNION ALL {_ENDED} UNION ALL {_TEXTS}"

_SPENT = f"""
SELECT COALESCE(NULLIF(price_unit, ''), %(currency)s::text) AS currency, sum(GREATEST(price, 0))
FROM ({_PRICED}) AS priced GROUP BY 1 ORDER BY 1
"""
_WAITING = f"SELECT kind, count(*) FROM ({_UNKNOWN}) AS waiting GROUP BY kind"

_BY_DAY = f"""
SELECT (at AT TIME ZONE %(zone)s)::date, kind, price_unit, sum(price)
FROM ({_PRICED}) AS priced GROUP BY 1, 2, 3
"""
_WAITING_BY_DAY = f"""
SELECT (at AT TIME ZONE %(zone)s)::date, count(*) FROM ({_UNKNOWN}) AS waiting GROUP BY 1
"""

_RATES = """
SELECT from_currency, rate FROM telephony_exchangerate
WHERE organization_id = %(organization)s AND to_currency = %(currency)s
"""
_AVERAGE = """
SELECT avg(GREATEST(price, 0)) FROM (
    SELECT price, ntile(10) OVER (ORDER BY price) AS tenth, count(*) OVER () AS prices FROM (
        SELECT price * COALESCE(x.rate, 1) AS price FROM {table} p
        LEFT JOIN telephony_exchangerate x ON x.organization_id = p.organization_id
            AND x.from_currency = p.price_unit AND x.to_currency = %(currency)s::text
        WHERE p.organization_id = %(organization)s AND price IS NOT NULL
            AND (price_unit IN ('', %(currency)s::text) OR x.rate IS NOT NULL) AND {began} >= %(since)s
        ORDER BY {began} DESC LIMIT %(limit)s
    ) AS latest
) AS ranked WHERE tenth < 10 AND prices >= 10
"""


@dataclass(frozen=True)
class Spent:
    """What calls and texts of a span cost.

    `known`: the sum of the prices in one currency, and of those that an exchange rate converts into it, without
    credits. `others`: such sums of other currencies, which are never added to it. `open_calls`, `calls`, `texts`:
    how many have no price: calls in progress, ended calls, and outbound texts.
    """

    known: Decimal
    others: dict[str, Decimal]
    open_calls: int
    calls: int
    texts: int


def spent_between(organization_id: int, since: datetime, until: datetime, currency: str) -> Spent:
    """Return what the organization's calls and texts that began in the span cost.

    A price without a currency counts as one in `currency`.
    """
    given = {"organization": organization_id, "since": since, "until": until}
    by_currency: dict[str, Decimal] = dict(prepared.fetch_all(_SPENT, {**given, "currency": currency}))
    waiting: dict[str, int] = dict(prepared.fetch_all(_WAITING, given))
    known = by_currency.pop(currency, Decimal(0))
    for unit, rate in prepared.fetch_all(_RATES, {"organization": organization_id, "currency": currency}):
        known += by_currency.pop(unit, Decimal(0)) * rate
    others = {unit: amount for unit, amount in by_currency.items() if amount}
    return Spent(known, others, waiting.get("open", 0), waiting.get("call", 0), waiting.get("text", 0))


def average_price(
    source: Source, organization_id: int, since: datetime, limit: int, currency: str
) -> Decimal | None:
    """Return the average of the latest prices since then, in the currency, or None if they are fewer than ten.

    Prices in another currency count if there is an exchange rate.
    The highest tenth is left out, so that a single huge price does not make all later calls look expensive. A
    credit counts as zero.
    """
    statement = _AVERAGE.format(table=source.table, began=source.began)
    given = {"organization": organization_id, "since": since, "limit": limit, "currency": currency}
    average: Decimal | None = prepared.fetch_all(statement, given)[0][0]
    return average


class DailyCost(NamedTuple):
    """The cost of one kind on one day in one currency."""

    day: date
    kind: str
    currency: str
    cost: Decimal


def costs_by_day(organization_id: int, since: datetime, until: datetime, zone: str) -> list[DailyCost]:
    """Return the known costs by local day, kind and currency."""
    given = {"organization": organization_id, "since": since, "until": until, "zone": zone}
    return [DailyCost(*row) for row in prepared.fetch_all(_BY_DAY, given)]


def unknown_by_day(organization_id: int, since: datetime, until: datetime, zone: str) -> dict[date, int]:
    """Return how many calls and texts have no price, by local day."""
    given: dict[str, Any] = {"organization": organization_id, "since": since, "until": until, "zone": zone}
    return dict(prepared.fetch_all(_WAITING_BY_DAY, given))
