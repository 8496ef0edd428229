"""Loops of the dispatcher process for calls and texts: placing, sending, and reconciliation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import repeat
from threading import BoundedSemaphore

import structlog
from django.conf import settings
from django.db import connections

from dispatch.core import clock
from dispatch.core.db import lock_waits
from dispatch.core.db.isolation import FailureRule, record_failure
from dispatch.core.db.lock_waits import RecentlyBlocked, limit_lock_waits
from dispatch.core.runtime.loops import Loop, Tally
from dispatch.telephony import sql
from dispatch.telephony.models import Call
from dispatch.telephony.services import (
    call_requests,
    inbound,
    keys,
    number_rests,
    prices,
    probes,
    reconciliation,
    sms_requests,
    spend_caps,
)
from dispatch.telephony.services.sms import TEXT_LOOP

log = structlog.get_logger(__name__)

BATCH = 64
MAX_CONCURRENT_REQUESTS = 8  # concurrent requests to the provider
MAX_CONCURRENT_TEXTS = 4
SOON_S = 0.02
# Calls and texts whose rows another session had locked. They are skipped for a while.
_blocked_calls, _blocked_texts = RecentlyBlocked(5.0), RecentlyBlocked(5.0)
_SKIP_CALL, _SKIP_TEXT = FailureRule(_blocked_calls.add), FailureRule(_blocked_texts.add)


def place_due() -> float | None:
    """Place created calls that are due, and return the seconds until the next is due.

    Such calls were deferred by a rate limit or the provider, or left behind by a dead process. Claims are
    sequential, because each takes a token of the rate limit: alerts first, then offers, then others. Only the
    requests to the provider run concurrently. A call is claimed only when a thread is free to request it.
    """
    due, tally = sql.calls_to_place(clock.now(), BATCH, but=_blocked_calls.keys()), Tally()
    requests = [request for call_id in due if (request := _claim_call(call_id, tally)) is not None]
    for request in requests:
        request.result()
    tally.check()
    if len(due) == BATCH:
        return 0.0
    next_at = sql.next_to_place(now := clock.now())
    if next_at is None:
        return None
    return min(max((next_at - now).total_seconds(), SOON_S), settings.CALL_PLACER_INTERVAL_S)


def send_due() -> float | None:
    """Send created texts that are due. Return the seconds until the next is due."""
    due, tally = sql.texts_to_send(clock.now(), BATCH, but=_blocked_texts.keys()), Tally()
    if due:
        list(_text_threads().map(_send_text, due, repeat(tally)))
    tally.check()
    if len(due) == BATCH:
        return 0.0
    next_at = sql.next_to_send(now := clock.now())
    if next_at is None:
        return None
    return min(max((next_at - now).total_seconds(), SOON_S), settings.CALL_PLACER_INTERVAL_S)


def reconcile_texts() -> None:
    """Reconcile texts and inbound calls.

    Resolves texts with an unknown outcome, processes received texts that were left behind, ends texts whose
    delivery will no longer be reported, and ends inbound calls whose end was not reported.
    """
    sms_requests.resolve_unknown_texts()
    inbound.process_unprocessed_texts()
    sms_requests.end_unreported_texts()
    inbound.end_unreported_calls()


def apply_unhandled_keys() -> float | None:
    """Apply the pressed keys that their webhooks did not apply. Runs again immediately after a full batch."""
    applied = max(keys.apply_unhandled_keys(), inbound.apply_unhandled_inbound_keys())
    return 0.0 if applied >= keys.BATCH else None


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the thread pool. It persists between passes, because its threads keep provider connections."""
    return ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, thread_name_prefix="placer")


@cache
def _text_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_CONCURRENT_TEXTS, thread_name_prefix="texts")


_free_threads = BoundedSemaphore(MAX_CONCURRENT_REQUESTS)


def _claim_call(call_id: int, tally: Tally) -> Future[None] | None:
    """Claim a call once a thread is free. Return the future of its request, or None if no request is made."""
    _free_threads.acquire()
    request = None
    try:
        with limit_lock_waits(lock_waits.LOOP_S):
            call, changed = call_requests.claim_for_placing(call_id)
        if changed and call.status == Call.Status.REQUESTING:
            request = _threads().submit(_request_call, call, tally)
        else:
            tally.succeeded()
    except Exception as error:
        record_failure(call_id, error, event="call_claim_failed", rule=_SKIP_CALL, count=tally)
    finally:
        if request is None:
            _free_threads.release()
    return request


def _request_call(call: Call, tally: Tally) -> None:
    try:
        call_requests.request_from_provider(call)
        tally.succeeded()
    except Exception:
        log.exception("call_request_failed", call=call.pk)
        tally.failed()
    finally:
        connections.close_all()
        _free_threads.release()


def _send_text(text_id: int, tally: Tally) -> None:
    try:
        with limit_lock_waits(lock_waits.LOOP_S):
            sms_requests.send_text(text_id)
        tally.succeeded()
    except Exception as error:
        record_failure(text_id, error, event="text_request_failed", rule=_SKIP_TEXT, count=tally)
    finally:
        connections.close_all()


def _reconciler(name: str, reconcile: Callable[[], int]) -> Loop:
    def step() -> None:
        reconcile()  # its result is a count, not a delay

    return Loop(name, step, settings.CALL_RECONCILER_INTERVAL_S, elected=True)


# Each is a separate loop, so that a slow provider delays only one of them.
RECONCILERS = [
    _reconciler("calls_cut_off", reconciliation.mark_interrupted_requests_unknown),
    _reconciler("calls_unknown", reconciliation.resolve_unknown_calls),
    _reconciler("calls_hang_up", reconciliation.repeat_hang_ups),
    _reconciler("calls_end", reconciliation.fetch_ends),
]


def probe_accounts() -> None:
    """Probe the accounts whose requests fail, so that calls resume within seconds of the recovery."""
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
    Loop("placer", place_due, settings.CALL_PLACER_INTERVAL_S, elected=True),
    Loop(TEXT_LOOP, send_due, settings.CALL_PLACER_INTERVAL_S, elected=True),
    Loop("texts_reconciler", reconcile_texts, settings.CALL_RECONCILER_INTERVAL_S, elected=True),
    Loop("prices", fetch_prices, settings.PRICE_INTERVAL_S, elected=True),
    Loop("number_health", judge_numbers, settings.NUMBER_HEALTH_INTERVAL_S, elected=True),
    Loop("spend_caps", count_spending, settings.SPEND_CAP_INTERVAL_S, elected=True),
    Loop("account_probes", probe_accounts, interval_s=1.0, elected=True),
    Loop("calls_keys", apply_unhandled_keys, settings.AUDITOR_INTERVAL_S, elected=True),
    *RECONCILERS,
]
