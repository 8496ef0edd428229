"""Process one pointer: check its token, start and make the attempt, and record the result.

A `Processor` serves one event loop: that of the built-in router, or that of the web process, to which external
routers post pointers. Both behave the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError

from dispatch.core import fault_injection
from dispatch.core.db.batcher import Batcher, DatabaseThread
from dispatch.core.http import client
from dispatch.outbox import http_delivery, metrics, publisher
from dispatch.outbox.pointer import check_token
from dispatch.outbox.services import attempts, target_health
from dispatch.outbox.services.attempt_results import AttemptResult, finish_unlocked
from dispatch.outbox.services.attempts import DeliveryAttempt, PointerRefused, ticks

log = structlog.get_logger(__name__)

# The part of a lease that is reserved for recording the result.
LEASE_MARGIN_S = 5.0
MAX_BATCH = 200
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0
# Pause between tries to record a result while its group is locked. An intake locks it for milliseconds.
FIRST_LOCK_PAUSE_S, MAX_LOCK_PAUSE_S = 0.01, 1.0


@dataclass
class _Running:
    call: DeliveryAttempt
    until: float


class Processor:
    """Start, make and finish many attempts concurrently, with batched transactions."""

    def __init__(self) -> None:
        self._start_thread, self._finish_thread = DatabaseThread("outbox-start"), DatabaseThread("outbox-finish")
        self._starts: Batcher[tuple[int, int], DeliveryAttempt | PointerRefused] = Batcher(
            self._start_thread, _start_attempts, MAX_BATCH
        )
        self._finishes: Batcher[AttemptResult, bool] = Batcher(self._finish_thread, _finish_attempts, MAX_BATCH)
        self._running: dict[tuple[int, int], _Running] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def process(self, message_id: str, token: str) -> PointerRefused | None:
        """Process one pointer; return None after an attempt, else the reason why there was none.

        The attempt's result has then been recorded. Raises BadToken (nothing was changed) and django.db errors
        (the outcome is unknown; the pointer may be delivered again).
        """
        epoch = check_token(token, message_id)
        call = await self._starts.submit((int(message_id), epoch))
        if isinstance(call, PointerRefused):
            metrics.refused.labels(call.name.lower()).inc()
            return call
        await self._make(call)
        return None

    @property
    def running(self) -> int:
        """Return how many attempts are in progress."""
        return len(self._running)

    async def close(self) -> None:
        """Close what belongs to this event loop. No attempt may be in progress."""
        if self._renewing:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        await client.close()
        for thread in (self._start_thread, self._finish_thread):
            await asyncio.to_thread(thread.close)

    async def _make(self, call: DeliveryAttempt) -> None:
        running = self._running[call.id, call.epoch] = _Running(call, call.until)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._keep_leases())
        try:
            if not await self._has_time(running):
                log.warning("lease_ended_before_attempt", message=call.id, epoch=call.epoch)
                return
            fault_injection.crash_point("outbox.call.before")
            result = await http_delivery.deliver_message(call)
            fault_injection.crash_point("outbox.call.after")
            metrics.calls.labels(result.verdict.outcome).inc()
            metrics.call_seconds.observe(result.elapsed_s)
            await self._write_result(running, result)
        finally:
            self._running.pop((call.id, call.epoch), None)

    async def _has_time(self, running: _Running) -> bool:
        """Return whether the attempt's full timeout fits into its lease; renew the lease if it does not."""
        needed = http_delivery.timeout_s(running.call) + LEASE_MARGIN_S
        if running.until - ticks() >= needed:
            return True
        await self._renew_leases([running])
        return running.until - ticks() >= needed

    async def _write_result(self, running: _Running, result: AttemptResult) -> None:
        """Record the result, retrying while the lease lasts.

        After that, recovery takes over and the message is sent again.
        """
        pause, lock_pause = FIRST_PAUSE_S, FIRST_LOCK_PAUSE_S
        while True:
            try:
                if await self._finishes.submit(result):
                    return
                if ticks() >= running.until:
                    log.warning("group_locked", message=result.call.id, group=result.call.group_id)
                    return
                await asyncio.sleep(lock_pause)
                lock_pause = min(lock_pause * 2, MAX_LOCK_PAUSE_S)
            except DatabaseError as error:
                if ticks() + pause >= running.until:
                    raise
                log.warning("attempt_result_not_recorded", message=result.call.id, error=str(error).strip())
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_S)

    async def _keep_leases(self) -> None:
        while self._running:
            await asyncio.sleep(settings.OUTBOX_LEASE_S / 3)
            due = [r for r in self._running.values() if r.until - ticks() < settings.OUTBOX_LEASE_S * 2 / 3]
            if due:
                try:
                    await self._renew_leases(due)
                except DatabaseError as error:
                    log.warning("lease_renewal_failed", calls=len(due), error=str(error).strip())

    async def _renew_leases(self, running: Sequence[_Running]) -> None:
        renewed = await self._start_thread.run(lambda: attempts.renew_leases([r.call for r in running]))
        for attempt in running:
            # A lost lease cannot be renewed; an attempt that has not begun yet is then not made.
            attempt.until = renewed.get(attempt.call.id, 0.0)


def _start_attempts(pointers: Sequence[tuple[int, int]]) -> Sequence[DeliveryAttempt | PointerRefused]:
    answers, claims = attempts.start_attempts(pointers)
    publisher.publish_pointers(claims)
    return answers


def _finish_attempts(results: Sequence[AttemptResult]) -> Sequence[bool]:
    """Return for each result whether it was recorded: a result whose group is locked must not delay the others."""
    claim = not publisher.is_down()
    try:
        claims, left = finish_unlocked(results, claim=claim)
    except IntegrityError:
        # The unique index rejected the next message claimed: leave the choice to the poller.
        if len(results) > 1 or not claim:
            raise
        claims, left = finish_unlocked(results, claim=False)
    publisher.publish_pointers(claims)
    target_health.disable_gone([result for result in results if result not in left])
    held = {(result.call.id, result.call.epoch) for result in left}
    return [(result.call.id, result.call.epoch) not in held for result in results]


_processors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Processor] = weakref.WeakKeyDictionary()


def shared_processor() -> Processor:
    """Return the running event loop's processor."""
    loop = asyncio.get_running_loop()
    if loop not in _processors:
        _processors[loop] = Processor()
    return _processors[loop]


async def close_processor() -> None:
    """Close the running loop's processor, if it has one."""
    if processor := _processors.pop(asyncio.get_running_loop(), None):
        await processor.close()
