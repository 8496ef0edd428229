"""Stop the requests of failing provider accounts with a circuit breaker, and resume them after the outage.

During an outage, an account makes no calls and sends no texts. The state is on the account's row, so that every
process shares it. An outage begins if the provider refuses the account as a whole, or after `MAX_FAILED_REQUESTS`
consecutive failures. Meanwhile a loop of telephony probes the account, which costs nothing and calls nobody. If a
probe succeeds after a failed probe, the outage ends. If all probes succeed, requests are on trial: a successful
request ends the outage, and a failed request delays the next trial. A deactivated account has no outage: nothing
uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models import F, Max, Q, QuerySet

from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock, events
from dispatch.core.db import prepared

log = structlog.get_logger(__name__)

Outage = ProviderAccount.Outage

# Fields of an account on which the provider's answer depends, besides its token. After a change of one of them,
# the requests that failed prove nothing.
CREDENTIALS = frozenset(
    {"provider", "account_sid", "api_key_sid", "api_key_secret", "region", "edge", "is_active"}
)
MAX_FAILED_REQUESTS = 3
# Interval between probes of a failing account, and the maximum delay before another trial (seconds).
PROBE_S, MAX_TRIAL_S = 5.0, 60.0
# If no request was made within this time of a trial, a job that had stopped waiting is resumed to make a request.
UNUSED_TRIAL_S = 300.0
# A claimed probe without a result is claimed again after this many seconds.
PROBE_LEASE_S = 30.0

DESCRIPTIONS = {
    Outage.REFUSED: "The phone provider refused our account",
    Outage.NO_ANSWER: "The phone provider does not respond",
}

_STATE = [
    "outage", "outage_reason", "outage_since", "failed_requests", "is_on_trial", "trials", "has_failed_probe",
    "probe_at",
]  # fmt: skip

_SUCCESS = """
UPDATE capacity_provideraccount a
SET outage = '', outage_reason = '', outage_since = NULL, failed_requests = 0, is_on_trial = false, trials = 0,
    has_failed_probe = false, probe_at = NULL,
    outage_ended_at = CASE WHEN before.outage <> '' THEN %(now)s::timestamptz ELSE a.outage_ended_at END
FROM (
    SELECT id, outage, outage_since FROM capacity_provideraccount
    WHERE id = %(id)s AND (outage <> '' OR failed_requests > 0) FOR NO KEY UPDATE
) before
WHERE a.id = before.id
RETURNING a.organization_id, a.name, before.outage, before.outage_since
"""

# Active accounts that are due for a probe, and deactivated ones whose outage has not ended.
_DUE = "(is_active OR outage <> '') AND probe_at <= %(now)s"
# The SQL condition that the loop has one of them to claim.
IS_PROBE_DUE = f"EXISTS (SELECT FROM capacity_provideraccount WHERE {_DUE})"
_CLAIM_PROBES = f"""
UPDATE capacity_provideraccount SET probe_at = %(until)s
WHERE id = ANY(ARRAY(
    SELECT id FROM capacity_provideraccount WHERE {_DUE}
    ORDER BY probe_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING id, is_active
"""


# The condition that calls may be placed from an OutboundNumber now: neither it nor its pool is paused, and its
# account has no outage.
IS_USABLE = Q(Q(account__outage="") | Q(account__is_on_trial=True)) & Q(
    is_paused=False, pool__is_paused=False, account__is_active=True
)

_on_end: list[Callable[[int], None]] = []
_on_unused_trial: list[Callable[[int], None]] = []


def on_end(callback: Callable[[int], None]) -> None:
    """Register a callback, called with the organization's id in the transaction that ends an outage."""
    if callback not in _on_end:
        _on_end.append(callback)


def on_unused_trial(callback: Callable[[int], None]) -> None:
    """Register a callback, called with the organization's id if requests are on trial but no job makes any."""
    if callback not in _on_unused_trial:
        _on_unused_trial.append(callback)


def describe(account: ProviderAccount) -> str:
    """Describe the outage with the provider's reason, in English; empty if there is no outage."""
    if not account.outage:
        return ""
    description = DESCRIPTIONS[Outage(account.outage)]
    return f"{description}: {account.outage_reason}" if account.outage_reason else description


def is_usable(account: ProviderAccount) -> bool:
    """Return whether the account may make requests now."""
    return not account.outage or account.is_on_trial


def record_success(account_id: int) -> None:
    """Record that the provider accepted a request of the account. One statement, which usually matches no row."""
    with transaction.atomic(savepoint=False):
        begin_success(account_id)()


def end_outage(account_id: int) -> None:
    """End the outage of an account that was deactivated, because no request and no probe of it will.

    Jobs that wait for it resume, and use the other accounts. Usually runs in the transaction that deactivates it.
    """
    record_success(account_id)


def begin_success(account_id: int) -> Callable[[], None]:
    """Run the statement of `record_success`. Return a function that completes it in the same transaction."""
    find_rows = prepared.fetch_later(_SUCCESS, {"id": account_id, "now": clock.now()})

    def complete() -> None:
        for organization_id, name, outage, since in find_rows():
            if outage:
                _append_end(organization_id, account_id, name, outage, since)
                for callback in _on_end:
                    callback(organization_id)

    return complete


def record_failure(account_id: int, outage: str, reason: str, *, is_certain: bool = False) -> bool:
    """Record a failed request of the account. Return whether the account is in an outage now.

    `is_certain`: every other request would fail too, so the outage begins immediately.
    """
    with transaction.atomic():
        account = _locked(account_id)
        if account is None:
            return False
        now = clock.now()
        account.failed_requests = min(account.failed_requests + 1, 1000)
        if account.outage:
            if account.is_on_trial:
                account.is_on_trial, account.trials = False, min(account.trials + 1, 20)
                pause_s = min(PROBE_S * 2**account.trials, MAX_TRIAL_S)
                account.probe_at = now + timedelta(seconds=pause_s)
        elif is_certain or account.failed_requests >= MAX_FAILED_REQUESTS:
            account.outage, account.outage_reason, account.outage_since = outage, reason[:255], now
            account.has_failed_probe = False
            account.probe_at = now + timedelta(seconds=PROBE_S)
            _append(
                account,
                "outage_began",
                description=describe(account),
                outage=outage,
                reason=reason[:255],
                fallback=_fallbacks_of(account),
            )
            log.warning("account_outage_began", account=account.pk, outage=outage, reason=reason)
        elif account.probe_at is None:
            account.probe_at = now
        account.save(update_fields=_STATE)
        return bool(account.outage)


def claim_due_probes(limit: int) -> list[int]:
    """Claim accounts that are due for a probe, and return their ids. Report each result with `record_probe`.

    Also end the outages of accounts that a process of an earlier version deactivated: it left them open.
    """
    now = clock.now()
    until = now + timedelta(seconds=PROBE_LEASE_S)
    active_ids = []
    for account_id, is_active in prepared.fetch_all(_CLAIM_PROBES, {"now": now, "until": until, "limit": limit}):
        if is_active:
            active_ids.append(account_id)
        else:
            end_outage(account_id)
    return active_ids


def record_probe(account_id: int, failure: tuple[str, str] | None) -> None:
    """Record the result of a probe. `failure`: the outage that it proves, and the reason; None if it succeeded."""
    with transaction.atomic():
        account = _locked(account_id)
        if account is None:
            return
        next_probe_at = clock.now() + timedelta(seconds=PROBE_S)
        if failure is not None:
            if not account.outage:
                record_failure(account_id, *failure, is_certain=failure[0] == Outage.REFUSED)
                ProviderAccount.objects.filter(pk=account_id).update(has_failed_probe=True, probe_at=next_probe_at)
                return
            account.has_failed_probe, account.is_on_trial, account.probe_at = True, False, next_probe_at
        elif account.outage and account.has_failed_probe:
            record_success(account_id)
            return
        elif account.outage:
            if account.is_on_trial:
                for callback in _on_unused_trial:
                    callback(account.organization_id)
            account.is_on_trial = True
            account.probe_at = clock.now() + timedelta(seconds=UNUSED_TRIAL_S)
        else:
            account.probe_at = None
        account.save(update_fields=_STATE)


def defer_probe(account_id: int) -> None:
    """Repeat a claimed probe after the usual pause, because its result proves nothing."""
    ProviderAccount.objects.filter(pk=account_id).update(probe_at=clock.now() + timedelta(seconds=PROBE_S))


def probe_now(account_id: int, *, is_changed: bool = True) -> None:
    """Make an account in an outage due for a probe now.

    `is_changed`: its credentials have changed, so a successful probe ends the outage without a trial.
    """
    failing = ProviderAccount.objects.filter(pk=account_id).exclude(outage="")
    failing.update(probe_at=clock.now(), **({"has_failed_probe": True} if is_changed else {}))


def outage_of_pool(pool_id: int, number_id: int | None = None) -> ProviderAccount | None:
    """Return the account whose outage prevents calls from a pool, or None.

    `number_id`: consider only this number of the pool.
    """
    numbers = OutboundNumber.objects.filter(
        pool_id=pool_id, is_paused=False, pool__is_paused=False, account__is_active=True
    )
    if number_id is not None:
        numbers = numbers.filter(pk=number_id)
    failing = numbers.exclude(account__outage="").filter(account__is_on_trial=False)
    number = failing.select_related("account").order_by("pk").first()
    return number.account if number else None


def fallback_of_pool(pool_id: int) -> DispatchPool | None:
    """Return the pool whose numbers replace this pool's during an outage, or None.

    They place job offers, alert calls and calls about changed jobs, and send texts. The pool belongs to the same
    organization, whatever the rows say.
    """
    pools = DispatchPool.objects.filter(
        pk=pool_id, fallback__organization_id=F("organization_id"), fallback__is_paused=False
    )
    pool = pools.select_related("fallback").first()
    return pool.fallback if pool else None


def switched_at(pool_id: int) -> datetime | None:
    """Return since when the pool's calls are placed from its fallback; None if they are not."""
    account = outage_of_pool(pool_id)
    if account is None or _usable_numbers(pool_id).exists():
        return None
    fallback = fallback_of_pool(pool_id)
    if fallback is None or not _usable_numbers(fallback.pk).exists():
        return None
    return account.outage_since


def substitute_senders(number: OutboundNumber) -> list[OutboundNumber]:
    """Return the numbers that may send the number's texts, because its account has an outage.

    They are those of its pool, or else of the pool's fallback, whose account works. Empty without an outage.
    """
    if is_usable(number.account):
        return []
    fallback = fallback_of_pool(number.pool_id)
    for pool_id in (number.pool_id, fallback.pk if fallback else None):
        if pool_id is not None:
            usable = _usable_numbers(pool_id).filter(sends_texts=True, organization_id=number.organization_id)
            if found := list(usable.select_related("account").order_by("pk")):
                return found
    return []


def _usable_numbers(pool_id: int) -> QuerySet[OutboundNumber]:
    numbers: QuerySet[OutboundNumber] = OutboundNumber.objects.filter(IS_USABLE, pool_id=pool_id)
    return numbers


def _fallbacks_of(account: ProviderAccount) -> str:
    """Name the fallbacks of the pools that have numbers of the account, for people."""
    pools = DispatchPool.objects.filter(numbers__account=account, numbers__is_paused=False)
    names = pools.filter(fallback__organization_id=F("organization_id")).values_list("fallback__name", flat=True)
    return ", ".join(sorted(set(names)))


def last_end(organization_id: int) -> datetime | None:
    """Return when the organization's last outage ended; None during an outage, or if there was none."""
    accounts = ProviderAccount.objects.filter(organization_id=organization_id)
    if accounts.filter(is_active=True).exclude(outage="").exists():
        return None
    ended: datetime | None = accounts.aggregate(Max("outage_ended_at"))["outage_ended_at__max"]
    return ended


def _locked(account_id: int) -> ProviderAccount | None:
    """Lock an active account. Late results of a deactivated account count for nothing."""
    active = ProviderAccount.objects.filter(pk=account_id, is_active=True)
    rows: Any = active.select_for_update(no_key=True, of=("self",))
    account: ProviderAccount | None = rows.first()
    return account


def _append(account: ProviderAccount, verb: str, **data: Any) -> None:
    events.append(account.organization_id, f"account.{verb}", account.pk, name=account.name, **data)


def _append_end(organization_id: int, account_id: int, name: str, outage: str, since: datetime | None) -> None:
    lasted_s = round((clock.now() - since).total_seconds()) if since else 0
    kind = "account.outage_ended"
    events.append(organization_id, kind, account_id, name=name, outage=outage, lasted_s=lasted_s)
    log.info("account_outage_ended", account=account_id, outage=outage, lasted_s=lasted_s)
