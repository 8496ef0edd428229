"""The router: takes pointers from the queue and works them off, each in its own task."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor

import structlog
from django.conf import settings
from django.db import DatabaseError

from dispatch.core import faults
from dispatch.core.batching import Batcher, DatabaseThread
from dispatch.core.ids import read_id
from dispatch.outbox import processing, queues
from dispatch.outbox.models import QuarantinedPointer
from dispatch.outbox.pointer import BadPointer, BadToken, MessagePointer
from dispatch.outbox.processing import Processor
from dispatch.outbox.queues import Delivery, QueueUnavailable
from dispatch.outbox.services.starting import Refused

log = structlog.get_logger(__name__)

RECEIVE = 200
WAIT_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
# Calls that run when we are asked to stop have this long to end; what is left is recovered by its lease.
STOP_S = 8.0
# A pointer whose database was away comes again after this long.
AGAIN_S = 5.0
LONGEST_KEPT = 4000


class Router:
    """One router; any number may run."""

    def __init__(self, name: str = "") -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._consumer = queues.consumer(self.name)
        self._receiving = ThreadPoolExecutor(1, thread_name_prefix="outbox-receive")
        self._acking = DatabaseThread("outbox-ack")
        self._acks: Batcher[Delivery, None] = Batcher(self._acking, self._ack_many, RECEIVE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()

    async def run(self, stopping: asyncio.Event) -> None:
        """Works until `stopping` is set, then lets running calls end. Survives a queue that is away."""
        processor = processing.shared()
        stopped = asyncio.create_task(stopping.wait())
        try:
            pause = FIRST_PAUSE_S
            while not stopping.is_set():
                room = settings.OUTBOX_ROUTER_CALLS - len(self._tasks)
                if room <= 0:
                    self._room.clear()
                    await asyncio.wait(
                        [stopped, asyncio.ensure_future(self._room.wait())], return_when="FIRST_COMPLETED"
                    )
                    continue
                try:
                    received = await self._receive(min(room, RECEIVE))
                    pause = FIRST_PAUSE_S
                except QueueUnavailable as error:
                    log.warning("the queue cannot be reached", error=str(error), again_in_s=pause)
                    await asyncio.wait([stopped], timeout=pause)
                    pause = min(pause * 2, LONGEST_PAUSE_S)
                    continue
                for delivery in received:
                    task = asyncio.create_task(self._handle(processor, delivery))
                    self._tasks.add(task)
                    task.add_done_callback(self._done)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=STOP_S)
        finally:
            stopped.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await processing.close()
            self._receiving.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(self._acking.close)
            self._consumer.close()

    async def _receive(self, most: int) -> list[Delivery]:
        return await asyncio.get_running_loop().run_in_executor(
            self._receiving, self._consumer.receive, most, WAIT_S
        )

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.set()
        if not task.cancelled() and (error := task.exception()):
            log.error("a pointer was not worked off", exc_info=error)

    async def _handle(self, processor: Processor, delivery: Delivery) -> None:
        try:
            pointer = MessagePointer.from_json(delivery.pointer_json)
            if read_id(pointer.id) is None:
                raise BadPointer("its id is not one of ours")
            refused = await processor.process(pointer.id, pointer.authToken)
            if refused is Refused.UNKNOWN:
                raise BadPointer("no message has this id")
        except BadPointer as error:
            await self._quarantine(delivery, str(error))
        except BadToken as error:
            # Of an epoch that recovery ended long ago: no news.
            if str(error) != "expired":
                await self._quarantine(delivery, f"its token is not valid: {error}")
        except DatabaseError as error:
            log.warning("the database is away, the pointer comes again", error=str(error).strip())
            await self._later(delivery)
            return
        faults.point("outbox.ack.before")
        try:
            await self._acks.submit(delivery)
        except QueueUnavailable as error:
            log.debug("not acknowledged: it comes again and does nothing", error=str(error))

    def _ack_many(self, deliveries: object) -> list[None]:
        items = list(deliveries)  # type: ignore[call-overload]
        self._consumer.ack_many(items)
        return [None] * len(items)

    async def _later(self, delivery: Delivery) -> None:
        try:
            await asyncio.to_thread(delivery.release, AGAIN_S)
        except QueueUnavailable as error:
            log.debug("not released: it comes again by itself", error=str(error))

    async def _quarantine(self, delivery: Delivery, reason: str) -> None:
        log.error("a pointer nobody can read is quarantined", reason=reason)
        content = delivery.pointer_json[:LONGEST_KEPT].replace("\x00", "\ufffd")
        await self._acking.run(lambda: QuarantinedPointer.objects.create(reason=reason[:200], content=content))


async def run(stopping: asyncio.Event) -> None:
    """The dispatcher's service."""
    if not settings.OUTBOX_ENABLED:
        await stopping.wait()
        return
    await Router().run(stopping)
