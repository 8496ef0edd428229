"""Probe accounts whose requests fail: does the provider respond, and does it accept the account?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import structlog
from django.db import connections

from dispatch.capacity import account_outages
from dispatch.capacity.models import ProviderAccount
from dispatch.telephony import providers
from dispatch.telephony.providers.base import Rejected

log = structlog.get_logger(__name__)

BATCH = 64
MAX_CONCURRENT_PROBES = 8


def probe_accounts() -> int:
    """Probe the accounts that are due, each in a thread, so that no probe delays another. Return how many."""
    due = account_outages.claim_due_probes(BATCH)
    list(_threads().map(_probe, due))
    return len(due)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_CONCURRENT_PROBES, thread_name_prefix="probes")


def _probe(account_id: int) -> None:
    try:
        account_outages.record_probe(account_id, _failure_of(ProviderAccount.objects.get(pk=account_id)))
    except Exception:  # claimed again after its lease expires
        log.exception("account_probe_failed", account=account_id)
    finally:
        connections.close_all()


def _failure_of(account: ProviderAccount) -> tuple[str, str] | None:
    try:
        outcome = providers.for_account(account).check_account()
    except providers.UnknownProvider as error:
        return account_outages.Outage.REFUSED, str(error)
    if outcome is None:
        return None
    if isinstance(outcome, Rejected):
        return account_outages.Outage.REFUSED, outcome.reason
    return account_outages.Outage.NO_ANSWER, outcome.reason
