"""Probe accounts whose requests fail: does the provider respond, and does it accept the account?"""

from __future__ import annotations

from dispatch.capacity import account_outages
from dispatch.capacity.models import ProviderAccount
from dispatch.core.runtime import reachability
from dispatch.telephony import providers
from dispatch.telephony.providers.base import Rejected
from dispatch.telephony.request_threads import PROBES

LOOP = "account_probes"


def probe_accounts() -> int:
    """Probe the accounts that are due, each in a thread, so that no probe delays another. Return how many."""
    due = account_outages.claim_due_probes(PROBES.free)
    for account_id in due:
        slot = PROBES.reserve(account_id, account_id)
        if slot is not None:  # otherwise its last probe is still running
            slot.start(_probe, account_id)
    return len(due)


def _probe(account_id: int) -> None:
    """Record the result of a probe. After a failure, the probe is claimed again when its lease expires.

    A failure that may be this host's own begins no outage.
    """
    account = ProviderAccount.objects.get(pk=account_id)
    failure = _failure_of(account)
    is_silent = failure is not None and failure[0] == account_outages.Outage.NO_ANSWER
    if is_silent and not account.outage and reachability.process.may_be_cut_off(LOOP):
        account_outages.defer_probe(account_id)
        return
    account_outages.record_probe(account_id, failure)


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
