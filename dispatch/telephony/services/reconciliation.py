"""Reconcile calls with the provider: interrupted requests, unknown outcomes, missing ends, unconfirmed hang-ups.

Each public function is one pass over the due calls and returns how many it handled.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from dispatch.core import clock
from dispatch.core.db.isolation import run_each, run_unlocked, unlocked_ids
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.telephony import providers, rules
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import CallGone, ProviderError
from dispatch.telephony.rules import ListedCall
from dispatch.telephony.services import missed_reports
from dispatch.telephony.services.account_turns import FailedAccounts, take_turns
from dispatch.telephony.services.call_requests import end_after_commit, end_at_provider, mark_lost
from dispatch.telephony.services.call_status import apply_report
from dispatch.telephony.services.calls import PROVIDER, lock_call, notify_handler, transition, update_fields

log = structlog.get_logger(__name__)

BATCH = 200
ASK_AGAIN = timedelta(seconds=60)
HANG_UP_AGAIN = timedelta(seconds=15)
Status = Call.Status
_failed_calls = RecentlyBlocked(60.0, longest_s=3600.0)
# Statuses of calls with a SID. `unknown` is one of them if the provider reported only statuses that we don't know.
OPEN_AT_PROVIDER = (Status.UNKNOWN, Status.SUBMITTED, Status.RINGING, Status.ANSWERED)


def mark_interrupted_requests_unknown() -> int:
    """Mark requests without a recorded outcome as unknown, long after they must have ended.

    Their process died before or after it sent the request.
    """
    limit = clock.now() - timedelta(seconds=settings.PROVIDER_TIMEOUT_S)
    due = Call.objects.filter(status=Status.REQUESTING, send_by__lt=limit).order_by("id")
    return run_unlocked(_mark_unknown, due, BATCH, event="call_not_reconciled", skipped=_failed_calls)


def _mark_unknown(call_id: int) -> int:
    with transaction.atomic():
        call = lock_call(call_id)
        changed = call.status == Status.REQUESTING and transition(
            call, Status.UNKNOWN, data={"why": "the request was interrupted"}
        )
    if changed:
        notify_handler(call)
    return int(changed)


def resolve_unknown_calls() -> int:
    """Look up calls with an unknown outcome in the provider's list.

    A matching listed call is adopted. After two empty listings, a minute apart and long after the request, the
    call was not placed, and only then may another attempt start. If no listing succeeds for a day, the call is
    lost.
    """
    now = clock.now()
    # Accounts are loaded with each call, so that an account that can't be decrypted doesn't stop the others.
    unknown = Call.objects.filter(status=Status.UNKNOWN, sid=None).order_by("id")
    waiting = (call for call in unknown if not call.empty_listings or _listing_counts(call, now))
    # For the other calls, another listing now would prove nothing new.
    due, failed = take_turns(waiting, BATCH), FailedAccounts()
    return run_each(lambda call: _resolve_unknown(call, now, failed), due, event="call_not_reconciled")


def _resolve_unknown(call: Call, now: datetime, failed: FailedAccounts) -> int:
    listed = _listed(call, failed)
    if listed is not None:
        return _resolve(call.pk, listed, now)
    if not _is_given_up(call, now):
        return 0
    mark_lost(call.pk, "the provider never listed its calls")
    return 1


def _listing_counts(call: Call, now: datetime) -> bool:
    assert call.send_by is not None
    return rules.listing_counts(
        now,
        call.send_by,
        call.checked_at if call.empty_listings else None,
        settings.PROVIDER_TIMEOUT_S,
        settings.UNKNOWN_LISTING_GAP_S,
    )


def _listed(call: Call, failed: FailedAccounts) -> list[ListedCall] | None:
    if call.account_id in failed:
        return None
    try:
        return providers.for_account(call.account).find_calls(str(call.to_phone), str(call.from_phone))
    except (ProviderError, CallGone, providers.UnknownProvider) as error:
        failed.add(call.account_id)
        log.warning("provider_call_listing_failed", call=call.pk, error=str(error))
        return None


def _resolve(call_id: int, listed: list[ListedCall], asked_at: datetime) -> int:
    with transaction.atomic():
        call = lock_call(call_id)
        if call.status != Status.UNKNOWN or call.sid is not None or call.requested_at is None:
            return 0
        # Organizations may share an account at the provider, which then lists the calls of all of them.
        account_calls = Call.objects.filter(account__account_sid=call.account.account_sid)
        known: set[Any] = set(
            account_calls.filter(sid__in=[listed_call.sid for listed_call in listed]).values_list("sid", flat=True)
        )
        ours = rules.find_our_call(listed, call.requested_at, known)
        if ours is not None:
            update_fields(call, sid=ours.sid)
            changed = transition(call, ours.status, actor=PROVIDER, data={"found": "in the provider's list"})
            if call.cancel_requested_at is not None and call.ended_at is None:
                end_after_commit(call)
        elif not _listing_counts(call, asked_at):
            return 0
        elif call.empty_listings:
            changed = transition(call, Status.NOT_PLACED, error_message="the provider has no such call")
        else:
            update_fields(call, empty_listings=1, checked_at=asked_at)
            return 0
    if changed:
        notify_handler(call)
    return int(changed)


def fetch_ends() -> int:
    """Ask the provider about calls of which a report was missed, and then about those whose end is overdue."""
    return fetch_missed_reports() + fetch_overdue_ends()


def fetch_missed_reports() -> int:
    """Ask the provider about calls of which a webhook met an unavailable database, so that lines are free soon."""
    remembered = missed_reports.remembered_calls()
    if not remembered:
        return 0
    now = clock.now()
    still_open = Call.objects.filter(pk__in=remembered, ended_at=None)
    settled = set(remembered) - set(still_open.values_list("pk", flat=True))
    asked = take_turns(still_open.filter(status__in=OPEN_AT_PROVIDER, sid__isnull=False).order_by("id"), BATCH)
    failed = FailedAccounts()

    def ask(call: Call) -> int:
        if answered := _ask_for_end(call, now, failed):
            settled.add(call.pk)
        return answered

    done = run_each(ask, asked, event="call_not_reconciled")
    missed_reports.forget_calls(settled)
    return done


def fetch_overdue_ends() -> int:
    """Ask the provider about calls whose end is overdue. A call that the provider does not know is lost."""
    now = clock.now()
    due = _not_asked_since(now - ASK_AGAIN).filter(status__in=OPEN_AT_PROVIDER, sid__isnull=False)
    overdue = (call for call in due.order_by("id") if _end_expected_by(call) <= now)
    asked, failed = take_turns(overdue, BATCH), FailedAccounts()
    return run_each(lambda call: _ask_for_end(call, now, failed), asked, event="call_not_reconciled")


def _end_expected_by(call: Call) -> datetime:
    since = call.requested_at or call.created_at
    return rules.end_expected_by(since, call.answered_at, call.ring_timeout_s, call.time_limit_s)


def _ask_for_end(call: Call, now: datetime, failed: FailedAccounts) -> int:
    """Ask the provider about the call, and return 1 if its state is known afterwards."""
    if call.account_id in failed and not _is_given_up(call, now):
        return 0
    Call.objects.filter(pk=call.pk).update(checked_at=now)
    try:
        assert call.sid is not None
        apply_report(call.pk, providers.for_account(call.account).fetch(call.sid))
    except CallGone:
        mark_lost(call.pk, "the provider does not know it")
    except (ProviderError, providers.UnknownProvider) as error:
        failed.add(call.account_id)
        log.warning("provider_call_fetch_failed", call=call.pk, error=str(error))
        if not _is_given_up(call, now):
            return 0
        mark_lost(call.pk, "the provider gave no answer")
    return 1


def _is_given_up(call: Call, now: datetime) -> bool:
    """Return whether the call is so old that it must have ended, even if the provider had queued it for a day."""
    return now > (call.requested_at or call.created_at) + rules.GIVE_UP_AFTER


def repeat_hang_ups() -> int:
    """Repeat the hang-up requests of calls that are still open."""
    due = _not_asked_since(clock.now() - HANG_UP_AGAIN).filter(
        cancel_requested_at__isnull=False, sid__isnull=False, status__in=OPEN_AT_PROVIDER
    )
    return run_each(_hang_up, unlocked_ids(due, BATCH), event="call_not_reconciled")


def _hang_up(call_id: int) -> int:
    end_at_provider(call_id)
    return 1


def _not_asked_since(moment: datetime) -> QuerySet[Call]:
    calls: QuerySet[Call] = Call.objects.filter(Q(checked_at=None) | Q(checked_at__lt=moment), ended_at=None)
    return calls
