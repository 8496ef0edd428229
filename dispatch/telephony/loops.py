"""The dispatcher's loops over calls and texts: who places and sends them, and the reconcilers of what nobody
reported."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import BoundedSemaphore

import structlog
from django.conf import settings
from django.db import connections

from dispatch.core import clock
from dispatch.core.loops import Loop
from dispatch.telephony import sql
from dispatch.telephony.models import Call
from dispatch.telephony.services import incoming, placing, reconciling, sending
from dispatch.telephony.services.texting import TEXT_LOOP

log = structlog.get_logger(__name__)

BATCH = 64
AT_ONCE = 8  # requests under way at the provider
TEXTS_AT_ONCE = 4
SOON_S = 0.02


def place_due() -> float | None:
    """Places created calls whose time has come (held back by a rate or the provider, or left by a process that
    died); the seconds until the next is due.

    Claimed one after another, since the claim takes a turn at the rate: alerts before offers before others. Only
    the provider is asked for several at once, and no call is claimed before there is a thread to ask for it."""
    due = sql.calls_to_place(clock.now(), BATCH)
    asked = [request for call_id in due if (request := _claim(call_id)) is not None]
    for request in asked:
        request.result()
    if len(due) == BATCH:
        return 0.0
    coming = sql.next_to_place(now := clock.now())
    if coming is None:
        return None
    return min(max((coming - now).total_seconds(), SOON_S), settings.CALL_PLACER_INTERVAL_S)


def send_due() -> float | None:
    """Sends created texts whose time has come; the seconds until the next is due."""
    due = sql.texts_to_send(clock.now(), BATCH)
    if due:
        list(_text_threads().map(_send, due))
    if len(due) == BATCH:
        return 0.0
    coming = sql.next_to_send(now := clock.now())
    if coming is None:
        return None
    return min(max((coming - now).total_seconds(), SOON_S), settings.CALL_PLACER_INTERVAL_S)


def look_after_texts() -> None:
    """Settles texts of unknown outcome, deals with received ones that were left behind, and waits no longer for
    what nobody will report."""
    sending.settle_doubts()
    incoming.deal_with_left_behind()
    sending.stop_waiting_for_reports()
    incoming.end_forgotten_calls()


@cache
def _threads() -> ThreadPoolExecutor:
    """Kept from pass to pass, for each thread keeps its connections to the providers."""
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="placer")


@cache
def _text_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(TEXTS_AT_ONCE, thread_name_prefix="texts")


_free = BoundedSemaphore(AT_ONCE)


def _claim(call_id: int) -> Future[None] | None:
    """Claims a call as soon as a thread is free to ask for it; the request, if one is made."""
    _free.acquire()
    request = None
    try:
        call, changed = placing.claim(call_id)
        if changed and call.status == Call.Status.REQUESTING:
            request = _threads().submit(_ask, call)
    except Exception:  # one call's trouble must not hold up the others
        log.exception("a call could not be claimed", call=call_id)
    finally:
        if request is None:
            _free.release()
    return request


def _ask(call: Call) -> None:
    try:
        placing.ask(call)
    except Exception:
        log.exception("a call could not be placed", call=call.pk)
    finally:
        connections.close_all()
        _free.release()


def _send(text_id: int) -> None:
    try:
        sending.send(text_id)
    except Exception:  # one text's trouble must not hold up the others
        log.exception("a text could not be sent", text=text_id)
    finally:
        connections.close_all()


def _reconciler(name: str, one_pass: Callable[[], int]) -> Loop:
    def step() -> None:
        one_pass()  # how many it dealt with is no pause

    return Loop(name, step, settings.CALL_RECONCILER_INTERVAL_S, elected=True)


# Each a loop of its own: a provider that keeps one of them waiting does not hold up the others.
RECONCILERS = [
    _reconciler("calls_cut_off", reconciling.doubt_cut_off_requests),
    _reconciler("calls_unknown", reconciling.settle_unknowns),
    _reconciler("calls_hang_up", reconciling.hang_up_again),
    _reconciler("calls_end", reconciling.ask_for_ends),
]

LOOPS = [
    Loop("placer", place_due, settings.CALL_PLACER_INTERVAL_S, elected=True),
    Loop(TEXT_LOOP, send_due, settings.CALL_PLACER_INTERVAL_S, elected=True),
    Loop("texts_reconciler", look_after_texts, settings.CALL_RECONCILER_INTERVAL_S, elected=True),
    *RECONCILERS,
]
