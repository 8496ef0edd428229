"""Loops of the dispatcher process for calls and texts: placing, sending, and reconciliation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.conf import settings

from dispatch.capacity import account_outages
from dispatch.core import clock
from dispatch.core.db import lock_waits
from dispatch.core.db.isolation import FailureRule, record_failure
from dispatch.core.db.lock_waits import RecentlyBlocked, limit_lock_waits
from dispatch.core.runtime import reachability
from dispatch.core.runtime.fair_threads import FairThreads, Slot
from dispatch.core.runtime.loops import Loop, Tally
from dispatch.telephony import sql
from dispatch.telephony.models import Call
from dispatch.telephony.request_threads import CALLS, HANG_UPS, LOOKUPS, TEXTS, WAIT_S
from dispatch.telephony.services import (
    call_requests,
    hang_ups,
    inbound,
    keys,
    number_rests,
    prices,
    probes,
    reconciliation,
    sms_requests,
    spend_caps,
)
from dispatch.telephony.services.calls import HANG_UP_LOOP
from dispatch.telephony.services.sms import TEXT_LOOP

BATCH = 64
SOON_S = 0.02
# Interval of the loop of hang-ups, which is notified of each (seconds).
HANG_UP_INTERVAL_S = 1.0
# Calls and texts whose rows another session had locked. They are skipped for a while.
_blocked_calls, _blocked_texts = RecentlyBlocked(5.0), RecentlyBlocked(5.0)
_SKIP_CALL, _SKIP_TEXT = FailureRule(_blocked_calls.add), FailureRule(_blocked_texts.add)


def place_due() -> float | None:
    """Place created calls that are due, and return the seconds until the next is due.

    Such calls were deferred by a rate limit or the provider, left behind by a dead process, or created while all
    slots of their account were busy. Claims are sequential, because each takes a token of the rate limit: alerts
    first, then offers, then others. A call is claimed only when its account has a free slot to request it, and
    none while only another host reaches the provider, which takes over soon.
    """
    if reachability.process.is_relieved(call_requests.PLACER):
        return None
    ended, full, tally = CALLS.ended, CALLS.full_keys(), Tally()
    but = CALLS.items() | _blocked_calls.keys()
    due, has_waiting = sql.calls_to_place(clock.now(), BATCH, but, full), bool(full)
    for row in due:
        slot = CALLS.reserve(row.account_id, row.id)
        if slot is None:
            has_waiting = True
        else:
            _place_call(slot, row.id, tally)
    tally.check()
    if has_waiting:
        CALLS.wait_for_end(ended, WAIT_S)
    if has_waiting or len(due) == BATCH:
        return 0.0
    return _until(sql.next_to_place(clock.now()))


def _place_call(slot: Slot, call_id: int, tally: Tally) -> None:
    with slot:
        try:
            with limit_lock_waits(lock_waits.LOOP_S):
                call, changed = call_requests.claim_for_placing(call_id)
        except Exception as error:
            record_failure(call_id, error, event="call_claim_failed", rule=_SKIP_CALL, count=tally)
            return
        if changed and call.status == Call.Status.REQUESTING:
            call_requests.start_request(slot, call)
        tally.succeeded()


def send_due() -> float | None:
    """Send created texts that are due. Return the seconds until the next is due."""
    if reachability.process.is_relieved(TEXT_LOOP):
        return None
    ended, full = TEXTS.ended, TEXTS.full_keys()
    but = TEXTS.items() | _blocked_texts.keys()
    due, has_waiting = sql.texts_to_send(clock.now(), BATCH, but, full), bool(full)
    for row in due:
        slot = TEXTS.reserve(row.account_id, row.id)
        if slot is None:
            has_waiting = True
        else:
            slot.start(_send_text, row.id)
    if has_waiting:
        TEXTS.wait_for_end(ended, WAIT_S)
    if has_waiting or len(due) == BATCH:
        return 0.0
    return _until(sql.next_to_send(clock.now()))


def _send_text(text_id: int) -> None:
    try:
        with limit_lock_waits(lock_waits.LOOP_S):
            sms_requests.send_text(text_id)
    except Exception as error:
        record_failure(text_id, error, event="text_request_failed", rule=_SKIP_TEXT)


def _until(next_at: datetime | None) -> float | None:
    """Return the seconds until `next_at`, or None if that is later than the interval."""
    if next_at is None or (wait_s := (next_at - clock.now()).total_seconds()) > settings.CALL_PLACER_INTERVAL_S:
        return None
    return max(wait_s, SOON_S)


def reconcile_texts() -> float | None:
    """Reconcile texts and inbound calls.

    Resolves texts with an unknown outcome, processes received texts that were left behind, ends texts whose
    delivery will no longer be reported, and ends inbound calls whose end was not reported.
    """
    ended = LOOKUPS.ended
    has_more = sms_requests.resolve_unknown_texts()
    inbound.process_unprocessed_texts()
    sms_requests.end_unreported_texts()
    inbound.end_unreported_calls()
    return _again(LOOKUPS, ended, has_more)


def apply_unhandled_keys() -> float | None:
    """Apply the pressed keys that their webhooks did not apply. Runs again immediately after a full batch."""
    applied = max(keys.apply_unhandled_keys(), inbound.apply_unhandled_inbound_keys())
    return 0.0 if applied >= keys.BATCH else None


def _again(threads: FairThreads, ended: int, has_more: bool) -> float | None:
    """Return 0 if more requests may be due, after a brief wait for a free thread; otherwise None."""
    if not has_more and not threads.full_keys():
        return None
    threads.wait_for_end(ended, WAIT_S)
    return 0.0


def _requesting_loop(
    name: str, threads: FairThreads, start: Callable[[], bool], interval_s: float, due: str = ""
) -> Loop:
    def step() -> float | None:
        ended = threads.ended
        return _again(threads, ended, start())

    return Loop(name, step, interval_s, elected=True, needs_provider=True, due=due)


def mark_interrupted_requests() -> None:
    """Mark interrupted call requests as unknown."""
    reconciliation.mark_interrupted_requests_unknown()


_INTERVAL_S = settings.CALL_RECONCILER_INTERVAL_S
RECONCILERS = [
    Loop("calls_cut_off", mark_interrupted_requests, _INTERVAL_S, elected=True),
    _requesting_loop("calls_unknown", LOOKUPS, reconciliation.resolve_unknown_calls, _INTERVAL_S),
    _requesting_loop(HANG_UP_LOOP, HANG_UPS, hang_ups.hang_up_due, HANG_UP_INTERVAL_S, sql.IS_HANG_UP_DUE),
    _requesting_loop("calls_end", LOOKUPS, reconciliation.fetch_ends, _INTERVAL_S),
]


def probe_accounts() -> None:
    """Probe the accounts whose requests fail, so that calls resume within seconds of the recovery."""
    if not reachability.process.is_relieved(probes.LOOP):
        probes.probe_accounts()


def fetch_prices() -> None:
    """Fetch the prices of ended calls and texts."""
    prices.fetch_due_prices()


def judge_numbers() -> None:
    """Let unhealthy caller numbers rest."""
    number_rests.judge_numbers()


def count_spending() -> None:
    """Count what organizations with a spending cap have spent; stop and resume their calls and texts."""
    spend_caps.count_all()


LOOPS = [
    Loop(
        call_requests.PLACER,
        place_due,
        settings.CALL_PLACER_INTERVAL_S,
        elected=True,
        needs_provider=True,
        due=sql.IS_CALL_TO_PLACE,
    ),
    Loop(
        TEXT_LOOP,
        send_due,
        settings.CALL_PLACER_INTERVAL_S,
        elected=True,
        needs_provider=True,
        due=sql.IS_TEXT_TO_SEND,
    ),
    Loop("texts_reconciler", reconcile_texts, _INTERVAL_S, elected=True, needs_provider=True),
    Loop("prices", fetch_prices, settings.PRICE_INTERVAL_S, elected=True, needs_provider=True),
    Loop("number_health", judge_numbers, settings.NUMBER_HEALTH_INTERVAL_S, elected=True),
    Loop("spend_caps", count_spending, settings.SPEND_CAP_INTERVAL_S, elected=True),
    Loop(
        probes.LOOP,
        probe_accounts,
        interval_s=1.0,
        elected=True,
        needs_provider=True,
        due=account_outages.IS_PROBE_DUE,
    ),
    Loop("calls_keys", apply_unhandled_keys, settings.AUDITOR_INTERVAL_S, elected=True, due=sql.IS_KEY_UNHANDLED),
    *RECONCILERS,
]
