"""Read the prices of calls and texts from Twilio: one by one if they are few, else from the account's list."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal, DecimalException, InvalidOperation
from typing import TYPE_CHECKING, Any

import structlog

from dispatch.telephony.providers.base import Price, PriceRequest

if TYPE_CHECKING:
    from twilio.rest import Client

log = structlog.get_logger(__name__)

# At most MAX_SINGLE are fetched one by one in a pass. More are looked up in the list, up to MAX_LISTED of it.
MAX_SINGLE, MAX_LISTED, PAGE = 10, 3000, 1000
# The list is read from this long before the first to this long after the last, because clocks differ.
MARGIN = timedelta(minutes=5)
MAX_PRICE, EXACT = Decimal(10) ** 8, Decimal("0.000001")
_UNIT = re.compile(r"[A-Z]{3}")


def fetch_prices(client: Client, wanted: PriceRequest, server_behind: Callable[[], timedelta]) -> dict[str, Price]:
    """Return the prices that Twilio knows, by SID. Raises the SDK's exceptions.

    The list also contains calls of other systems that use the account. Ids that it does not show are
    fetched one by one, some in each pass.
    """
    from twilio.base.exceptions import TwilioRestException

    resources = client.messages if wanted.is_text else client.calls
    found: dict[str, Price] = {}
    left = list(wanted.sids)
    if len(left) > MAX_SINGLE:
        listed = {item.sid: item for item in _list(client, wanted, server_behind)}
        found = _prices(listed[sid] for sid in left if sid in listed)
        left = [sid for sid in left if sid not in listed]
    single = []
    for sid in left[:MAX_SINGLE]:
        try:
            single.append(resources(sid).fetch())
        except TwilioRestException as error:
            if error.status != 404:
                raise
    return found | _prices(single)


def _list(client: Client, wanted: PriceRequest, server_behind: Callable[[], timedelta]) -> list[Any]:
    client.calls.list(limit=1, page_size=1)  # its response has the provider's time
    since, until = wanted.since - server_behind() - MARGIN, wanted.until - server_behind() + MARGIN
    if wanted.is_text:
        return client.messages.list(
            date_sent_after=since, date_sent_before=until, limit=MAX_LISTED, page_size=PAGE
        )
    return client.calls.list(start_time_after=since, start_time_before=until, limit=MAX_LISTED, page_size=PAGE)


def _prices(resources: Iterable[Any]) -> dict[str, Price]:
    found = ((item.sid, parse_price(item.price, item.price_unit)) for item in resources)
    return {sid: price for sid, price in found if price is not None}


def parse_price(price: str | None, unit: str | None) -> Price | None:
    """Return what Twilio charged: it reports a charge as a negative number. None if there is no usable price."""
    if not price:
        return None
    try:
        amount = -Decimal(price)
        if not amount.is_finite() or abs(amount) >= MAX_PRICE:
            raise InvalidOperation
        amount = amount.quantize(EXACT)
    except DecimalException:
        log.warning("price_unreadable", price=str(price)[:40])
        return None
    currency = (unit or "").upper()
    return Price(amount, currency if _UNIT.fullmatch(currency) else "")
