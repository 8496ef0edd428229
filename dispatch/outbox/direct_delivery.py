"""Send direct requests from a process without an event loop, such as a worker.

Requests run in a background thread with an event loop, which keeps its connections from one batch to the next. The
caller's thread admits them and records their results.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from dataclasses import dataclass

import structlog
from django.db import DatabaseError, InterfaceError, connection

from dispatch.core.db.errors import is_temporary
from dispatch.core.http import client
from dispatch.outbox import access_tokens, http_delivery, metrics
from dispatch.outbox.http_exchange import Exchange
from dispatch.outbox.services.direct_requests import (
    Admitted,
    DirectRequest,
    DirectResult,
    Held,
    admit_requests,
    end_requests,
    release_requests,
)

log = structlog.get_logger(__name__)

# Requests that end within this interval are recorded together.
GROUP_S = 0.2


@dataclass(frozen=True)
class Closed:
    """A request that was closed because it was canceled. The receiver may have processed it."""

    request: DirectRequest


Ending = DirectResult | Held | Closed


def send_requests(
    requests: Sequence[DirectRequest],
    *,
    may_begin: Callable[[DirectRequest], bool],
    is_canceled: Callable[[DirectRequest], bool],
    poll_s: Callable[[], float],
) -> Iterator[list[Ending]]:
    """Send the requests concurrently and yield their endings in small groups, as soon as they are known.

    A request that its pool does not admit waits for an earlier one of this batch and the same pool to end; if
    there is none, it ends as Held. `may_begin` is asked right before a request is sent or held; requests for
    which it returns False are dropped. `is_canceled` is asked every `poll_s` seconds. If the generator is closed,
    the requests in progress are closed as well.
    """
    waiting, running = list(requests), dict[Future[Exchange], Admitted]()
    try:
        while waiting or running:
            if waiting:
                try:
                    waiting, held = _begin(waiting, running, may_begin)
                except Exception as error:
                    if not (running and is_temporary(error)):
                        raise
                    # The requests in progress would be sent again if they were closed now.
                    log.warning("requests_not_begun", error=str(error).strip())
                    connection.close_if_unusable_or_obsolete()
                    sent = {id(call.request) for call in running.values()}
                    waiting, held = [request for request in waiting if id(request) not in sent], []
                if held:
                    yield held
            ended: list[Ending] = []
            while running and not ended:
                ended = _collect(running, poll_s()) + _close_canceled(running, is_canceled)
            if ended:
                yield ended
    finally:
        for future in running:
            future.cancel()
        _quietly(lambda: release_requests(list(running.values())))


def _begin(
    waiting: Sequence[DirectRequest], running: dict[Future[Exchange], Admitted], may_begin: Callable[..., bool]
) -> tuple[list[DirectRequest], list[Ending]]:
    """Send what is admitted; return the requests that still wait, and those that are held."""
    still: list[DirectRequest] = []
    held: list[Ending] = []
    pending = admit_requests(waiting)
    pools = {call.pool_id for call in running.values()}
    pools |= {answer.pool_id for answer in pending if isinstance(answer, Admitted)}
    unsent = {id(answer): answer for answer in pending if isinstance(answer, Admitted)}
    try:
        for answer in pending:
            if isinstance(answer, Held) and answer.pool_id in pools and answer.why == "slot":
                still.append(answer.request)
            elif may_begin(answer.request):
                if isinstance(answer, Held):
                    held.append(answer)
                else:
                    running[_thread().submit(answer.request)] = unsent.pop(id(answer))
    finally:  # what may not begin frees its slot
        _quietly(lambda: release_requests(list(unsent.values())))
    return still, held


def _collect(running: dict[Future[Exchange], Admitted], poll_s: float) -> list[Ending]:
    """Wait until a request ends, at most `poll_s`; record and return those that have ended."""
    ended, _ = concurrent.futures.wait(running, timeout=poll_s, return_when=FIRST_COMPLETED)
    if not ended:
        return []
    if len(ended) < len(running):
        ended, _ = concurrent.futures.wait(running, timeout=GROUP_S)
    results = []
    for future in ended:
        made, call = future.result(), running.pop(future)
        metrics.calls.labels(made.verdict.outcome).inc()
        metrics.call_seconds.observe(made.elapsed_s)
        results.append(
            DirectResult(call, made.verdict, made.ended_at, made.elapsed_s, made.status_code, made.answer)
        )
    _quietly(lambda: end_requests(results))
    return list(results)


def _close_canceled(
    running: dict[Future[Exchange], Admitted], is_canceled: Callable[[DirectRequest], bool]
) -> list[Ending]:
    """Close the requests that were canceled and have not ended."""
    closed = [future for future, call in running.items() if is_canceled(call.request) and future.cancel()]
    calls = [running.pop(future) for future in closed]
    _quietly(lambda: release_requests(calls))
    return [Closed(call.request) for call in calls]


def _quietly(record: Callable[[], None]) -> None:
    """Record the results of requests. If the database is unavailable, the outcomes of the requests still count.

    Slots that were not freed are free when their leases end.
    """
    try:
        record()
    except (DatabaseError, InterfaceError) as error:
        log.warning("direct_results_not_recorded", error=str(error).strip())
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


class _DeliveryThread:
    """A thread with an event loop that sends requests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outbox-direct", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, request: DirectRequest) -> Future[Exchange]:
        """Start sending the request."""
        return asyncio.run_coroutine_threadsafe(http_delivery.send_direct(request), self._loop)

    def close(self) -> None:
        """Close the connections and stop."""
        asyncio.run_coroutine_threadsafe(_close_client(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _close_client() -> None:
    """Close the requests in progress, and the loop's access tokens and client."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await access_tokens.close()
    await client.close()


_started: _DeliveryThread | None = None
_lock = threading.Lock()


def _thread() -> _DeliveryThread:
    """Return this process's delivery thread, started on first use. A forked process starts another."""
    global _started
    with _lock:
        if _started is None or not _started.is_alive:
            _started = _DeliveryThread()
        return _started


def close() -> None:
    """Stop the delivery thread, if there is one."""
    global _started
    with _lock:
        thread, _started = _started, None
    if thread is not None:
        thread.close()
