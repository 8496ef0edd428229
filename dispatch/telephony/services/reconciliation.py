"""Reconcile calls with the provider: interrupted requests, unknown outcomes, missing ends.

Each public function is one pass over the due calls. Requests run in threads, with a share for each account.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.db.isolation import run_unlocked
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.telephony import providers, request_threads, rules, sql
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import CallGone, ProviderError
from dispatch.telephony.request_threads import LOOKUPS, DueRow, failing_accounts, start_due
from dispatch.telephony.rules import ListedCall
from dispatch.telephony.services import missed_reports
from dispatch.telephony.services.call_status import apply_report
from dispatch.telephony.services.calls import (
    PROVIDER,
    lock_call,
    mark_lost,
    notify_handler,
    schedule_hang_up,
    transition,
    update_fields,
)

log = structlog.get_logger(__name__)

BATCH = 200
ASK_AGAIN = timedelta(seconds=60)
UNKNOWN, END = "call_not_resolved", "call_end_not_fetched"
Status = Call.Status
OPEN_AT_PROVIDER = (Status.UNKNOWN, Status.SUBMITTED, Status.RINGING, Status.ANSWERED)
_failed_calls = RecentlyBlocked(60.0, longest_s=3600.0)
_unresolved_calls, _unasked_calls = (
    RecentlyBlocked(60.0, longest_s=3600.0),
    RecentlyBlocked(60.0, longest_s=3600.0),
)


def mark_interrupted_requests_unknown() -> int:
    """Mark requests without a recorded outcome as unknown, long after they must have ended.

    Their process died before or after it sent the request. Also schedules the hang-ups that an older version
    requested. Return how many calls became unknown.
    """
    sql.schedule_missing_hang_ups(clock.now())
    limit = clock.now() - timedelta(seconds=settings.PROVIDER_TIMEOUT_S)
    due = Call.objects.filter(status=Status.REQUESTING, ended_at=None, send_by__lt=limit).order_by("id")
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


def resolve_unknown_calls() -> bool:
    """Look up calls with an unknown outcome in the provider's list. Return whether more are due.

    A matching listed call is adopted. After two empty listings, a minute apart and long after the request, the
    call was not placed, and only then may another attempt start. If no listing succeeds for a day, the call is
    lost.
    """
    but = request_threads.busy_ids(LOOKUPS, UNKNOWN) | _unresolved_calls.keys()
    full = LOOKUPS.full_keys() | failing_accounts.ids()
    due = sql.unknown_rows(Call, clock.now(), BATCH, but, full)
    has_waiting = start_due(
        LOOKUPS, due, _claim_listing, _resolve_unknown, event=UNKNOWN, skipped=_unresolved_calls
    )
    return has_waiting or len(due) == BATCH


def _claim_listing(call_id: int) -> Call | None:
    with transaction.atomic():
        prepared.defer_fsync()
        call = lock_call(call_id, "account")
        now = clock.now()
        if call.status != Status.UNKNOWN or call.sid is not None:
            return None
        if call.empty_listings:  # `checked_at` is when the first listing was empty
            return call if _listing_counts(call, now) else None
        update_fields(call, checked_at=now)
        return call


def _resolve_unknown(call: Call) -> None:
    asked_at = clock.now()
    listed = _listed(call)
    if listed is not None:
        _resolve(call.pk, listed, asked_at)
    elif _is_given_up(call, asked_at):
        mark_lost(call.pk, "the provider never listed its calls")
    else:  # the accounts' next calls have their turn first
        Call.objects.filter(pk=call.pk, status=Status.UNKNOWN).update(checked_at=asked_at)


def _listing_counts(call: Call, now: datetime) -> bool:
    assert call.send_by is not None
    return rules.listing_counts(
        now,
        call.send_by,
        call.checked_at if call.empty_listings else None,
        settings.PROVIDER_TIMEOUT_S,
        settings.UNKNOWN_LISTING_GAP_S,
    )


def _listed(call: Call) -> list[ListedCall] | None:
    try:
        listed = providers.for_account(call.account).find_calls(str(call.to_phone), str(call.from_phone))
    except (ProviderError, CallGone, providers.UnknownProvider) as error:
        failing_accounts.add(call.account_id)
        log.warning("provider_call_listing_failed", call=call.pk, error=str(error))
        return None
    failing_accounts.discard(call.account_id)
    return listed


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
                schedule_hang_up(call)
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


def fetch_ends() -> bool:
    """Ask the provider about calls of which a report was missed, and about those whose end is overdue.

    Return whether more are due.
    """
    has_missed = fetch_missed_reports()
    return fetch_overdue_ends() or has_missed


def fetch_missed_reports() -> bool:
    """Ask the provider about calls of which a webhook met an unavailable database, so that lines are free soon."""
    remembered = set(missed_reports.remembered_calls())
    if not remembered:
        return False
    still_open = Call.objects.filter(pk__in=remembered, ended_at=None).exclude(status=Status.CREATED)
    missed_reports.forget_calls(remembered - set(still_open.values_list("pk", flat=True)))
    # Without a SID yet: the report overtook the response, whose process may be paused. It is asked about later.
    known = still_open.filter(status__in=OPEN_AT_PROVIDER, sid__isnull=False)
    due = {pk: DueRow(pk, account_id) for pk, account_id in known.values_list("pk", "account_id")}
    but = request_threads.busy_ids(LOOKUPS, END) | _unasked_calls.keys()
    full = LOOKUPS.full_keys() | failing_accounts.ids()
    rows = [due[pk] for pk in sorted(due.keys() - but) if due[pk].account_id not in full][:BATCH]
    return start_due(LOOKUPS, rows, _claim_end, _ask_for_missed_report, event=END, skipped=_unasked_calls)


def _ask_for_missed_report(call: Call) -> None:
    if _ask_for_end(call):
        missed_reports.forget_calls([call.pk])


def fetch_overdue_ends() -> bool:
    """Ask the provider about calls whose end is overdue. Return whether more are due.

    A call that the provider does not know is lost.
    """
    but = request_threads.busy_ids(LOOKUPS, END) | _unasked_calls.keys()
    full = LOOKUPS.full_keys() | failing_accounts.ids()
    now = clock.now()
    due = sql.overdue_ends(now, now - ASK_AGAIN, BATCH, but, full)
    has_waiting = start_due(LOOKUPS, due, _claim_end, _ask_for_end, event=END, skipped=_unasked_calls)
    return has_waiting or len(due) == BATCH


def _claim_end(call_id: int) -> Call | None:
    with transaction.atomic():
        prepared.defer_fsync()
        call = lock_call(call_id, "account")
        if call.ended_at is not None:
            return None
        update_fields(call, checked_at=clock.now())
        return call


def _ask_for_end(call: Call) -> bool:
    """Ask the provider about the call, and return whether its state is known afterwards."""
    assert call.sid is not None
    try:
        report = providers.for_account(call.account).fetch(call.sid)
    except CallGone:
        mark_lost(call.pk, "the provider does not know it")
    except (ProviderError, providers.UnknownProvider) as error:
        failing_accounts.add(call.account_id)
        log.warning("provider_call_fetch_failed", call=call.pk, error=str(error))
        if not _is_given_up(call, clock.now()):
            return False
        mark_lost(call.pk, "the provider gave no answer")
    else:
        failing_accounts.discard(call.account_id)
        apply_report(call.pk, report)
    return True


def _is_given_up(call: Call, now: datetime) -> bool:
    """Return whether the call is so old that it must have ended, even if the provider had queued it for a day."""
    return now > (call.requested_at or call.created_at) + rules.GIVE_UP_AFTER
