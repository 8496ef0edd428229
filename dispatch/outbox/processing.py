"""One pointer's way: check its token, begin the call, make it, write what came of it.

A `Processor` serves one event loop: our router's, or that of the web process, where somebody's own router posts
its
pointers. Both do the same."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError

from dispatch.core import faults, http_client
from dispatch.core.batching import Batcher, DatabaseThread
from dispatch.outbox import delivery, metrics, publishing
from dispatch.outbox.pointer import check_token
from dispatch.outbox.services import starting
from dispatch.outbox.services.finishing import Result, finish
from dispatch.outbox.services.starting import Call, Refused, ticks

log = structlog.get_logger(__name__)

# What a call leaves of its lease, for writing its result.
LEASE_MARGIN_S = 5.0
MOST = 200
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


@dataclass
class _Running:
    call: Call
    until: float


class Processor:
    """Begins, makes and ends calls, many at once, their transactions in batches."""

    def __init__(self) -> None:
        self._start_thread, self._finish_thread = DatabaseThread("outbox-start"), DatabaseThread("outbox-finish")
        self._starts: Batcher[tuple[int, int], Call | Refused] = Batcher(self._start_thread, _start, MOST)
        self._finishes: Batcher[Result, None] = Batcher(self._finish_thread, _finish, MOST)
        self._running: dict[tuple[int, int], _Running] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def process(self, message_id: str, token: str) -> Refused | None:
        """Works one pointer off; None when a call was made and its result written, else why there was none.

        Raises BadToken (nothing was touched) and django.db errors (nothing is known; the pointer may come
        again)."""
        epoch = check_token(token, message_id)
        call = await self._starts.submit((int(message_id), epoch))
        if isinstance(call, Refused):
            metrics.refused.labels(call.name.lower()).inc()
            return call
        await self._make(call)
        return None

    @property
    def running(self) -> int:
        """How many calls are being made."""
        return len(self._running)

    async def close(self) -> None:
        """Ends what belongs to this event loop. Calls must have ended."""
        if self._renewing:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        await http_client.close()
        for thread in (self._start_thread, self._finish_thread):
            await asyncio.to_thread(thread.close)

    async def _make(self, call: Call) -> None:
        running = self._running[call.id, call.epoch] = _Running(call, call.until)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())
        try:
            if not await self._has_time(running):
                log.warning("the lease ended before the call began", message=call.id, epoch=call.epoch)
                return
            faults.point("outbox.call.before")
            result = await delivery.deliver(call)
            faults.point("outbox.call.after")
            metrics.calls.labels(result.verdict.outcome).inc()
            metrics.call_seconds.observe(result.elapsed_s)
            await self._write(running, result)
        finally:
            self._running.pop((call.id, call.epoch), None)

    async def _has_time(self, running: _Running) -> bool:
        """Whether the whole call fits into what remains of its lease, which is asked to be longer if it does
        not."""
        needed = delivery.timeout_s(running.call) + LEASE_MARGIN_S
        if running.until - ticks() >= needed:
            return True
        await self._prolong([running])
        return running.until - ticks() >= needed

    async def _write(self, running: _Running, result: Result) -> None:
        """Writes the result, again and again while the lease lasts: then it is recovered, and called again."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await self._finishes.submit(result)
            except DatabaseError as error:
                if ticks() + pause >= running.until:
                    raise
                log.warning("a result is not written yet", message=result.call.id, error=str(error).strip())
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _renew(self) -> None:
        while self._running:
            await asyncio.sleep(settings.OUTBOX_LEASE_S / 3)
            due = [r for r in self._running.values() if r.until - ticks() < settings.OUTBOX_LEASE_S * 2 / 3]
            if due:
                try:
                    await self._prolong(due)
                except DatabaseError as error:
                    log.warning("leases could not be renewed", calls=len(due), error=str(error).strip())

    async def _prolong(self, running: Sequence[_Running]) -> None:
        renewed = await self._start_thread.run(lambda: starting.renew([r.call for r in running]))
        for one in running:
            # One that is gone is not renewed again, and a call that has not begun does not begin.
            one.until = renewed.get(one.call.id, 0.0)


def _start(pointers: Sequence[tuple[int, int]]) -> Sequence[Call | Refused]:
    answers, claims = starting.start(pointers)
    publishing.publish(claims)
    return answers


def _finish(results: Sequence[Result]) -> Sequence[None]:
    claim = not publishing.is_down()
    try:
        claims = finish(results, claim=claim)
    except IntegrityError:
        # The unique index refused whom we took for the next: the poller finds the right one.
        if len(results) > 1 or not claim:
            raise
        claims = finish(results, claim=False)
    publishing.publish(claims)
    return [None] * len(results)


_processors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Processor] = weakref.WeakKeyDictionary()


def shared() -> Processor:
    """The running event loop's processor."""
    loop = asyncio.get_running_loop()
    if loop not in _processors:
        _processors[loop] = Processor()
    return _processors[loop]


async def close() -> None:
    """Closes the running loop's processor, if it has one."""
    if processor := _processors.pop(asyncio.get_running_loop(), None):
        await processor.close()
