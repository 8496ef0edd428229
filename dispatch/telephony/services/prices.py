"""Fetch the prices of calls and texts, which the provider knows some time after their end.

A row is asked about soon after its end, and then at intervals that double, until it is `MAX_AGE` old. Each account
is asked in a thread of the lookups, so that a slow one delays no other. The next account waits a moment for the
thread of a quick one, and for its database connection. Unanswered calls cost nothing and are not asked about.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import structlog
from django.db import transaction

from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.telephony import metrics, price_sql, providers
from dispatch.telephony.price_sql import Source, Unpriced
from dispatch.telephony.providers.base import Price, PriceRequest, ProviderError
from dispatch.telephony.request_threads import LOOKUPS, failing_accounts

log = structlog.get_logger(__name__)

# Rows of one account and kind in a pass.
BATCH = 500
FIRST_AFTER, MAX_AGE = timedelta(seconds=30), timedelta(days=7)
NOT_FETCHED = "prices_not_fetched"
# How long a pass waits for each account before it starts the next, and for all of them together (seconds).
QUICK_S, PATIENCE_S = 0.2, 5.0


def fetch_due_prices() -> None:
    """Start to fetch the due prices of the accounts that work. A busy account waits for the next pass."""
    now = clock.now()
    accounts = ProviderAccount.objects.filter(is_active=True, outage="").order_by("pk")
    working = [pk for pk in accounts.values_list("pk", flat=True) if pk not in failing_accounts]
    due = price_sql.accounts_with_unpriced(working, now - MAX_AGE, now - FIRST_AFTER, now)
    left_s = PATIENCE_S
    for account_id in working:
        if account_id not in due:
            continue
        ended = LOOKUPS.ended
        slot = LOOKUPS.reserve(account_id, (NOT_FETCHED, account_id))
        if slot is None:
            continue
        with slot:
            slot.start(_fetch_of_account, account_id)
        if left_s > 0:
            began = time.monotonic()
            LOOKUPS.wait_for_end(ended, min(QUICK_S, left_s))
            left_s -= time.monotonic() - began


def _fetch_of_account(account_id: int) -> None:
    """Fetch the account's due prices. After a failure, the account is left alone until the next pass."""
    try:
        account = ProviderAccount.objects.get(pk=account_id)
        if providers.for_account(account).has_prices:
            for source in price_sql.SOURCES:
                fetch_prices_of(account, source)
    except ProviderError as error:
        log.warning(NOT_FETCHED, account=account_id, error=str(error))
    except Exception:  # of this account only
        log.exception(NOT_FETCHED, account=account_id)


def fetch_prices_of(account: ProviderAccount, source: Source) -> int:
    """Fetch the due prices of one account and kind, and return how many were recorded.

    Call it outside any transaction. Raises ProviderError.
    """
    now = clock.now()
    rows = price_sql.unpriced(source, account.pk, now - MAX_AGE, now - FIRST_AFTER, now, BATCH)
    if not rows:
        return 0
    # A request that fails counts as asked, so that the rows behind these get their turn.
    price_sql.mark_checked(source, [row.id for row in rows], now)
    known = providers.for_account(account).fetch_prices(
        PriceRequest(
            sids=[row.sid for row in rows],
            since=min(row.began_at for row in rows),
            until=max(row.ended_at for row in rows),
            is_text=source.is_text,
        )
    )
    return record_prices(source, [(row, known[row.sid]) for row in rows if row.sid in known])


def record_prices(source: Source, priced: Sequence[tuple[Unpriced, Price]]) -> int:
    """Write prices, each once. Return how many were new."""
    if not priced:
        return 0
    with transaction.atomic():
        prepared.defer_fsync()
        recorded = price_sql.record(source, [(row.id, price.amount, price.unit) for row, price in priced])
    for amount, unit in recorded:
        if amount > 0:
            metrics.spend.labels(source.kind, unit or "unknown").inc(float(amount))
    return len(recorded)
