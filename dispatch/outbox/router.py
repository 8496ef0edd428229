"""Run the router: take pointers from the queue and process each in its own task."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog
from django.conf import settings
from django.db import DatabaseError

from dispatch.core import fault_injection
from dispatch.core.db.batcher import Batcher, DatabaseThread
from dispatch.core.ids import read_id
from dispatch.outbox import metrics, queues
from dispatch.outbox import processor as outbox_processor
from dispatch.outbox.models import QuarantinedPointer
from dispatch.outbox.pointer import BadPointer, BadToken, MessagePointer
from dispatch.outbox.processor import Handover, NotAdmitted, Processor, Ticket
from dispatch.outbox.queues import Delivery, QueueUnavailable
from dispatch.outbox.services.attempts import DeliveryAttempt, PointerRefused
from dispatch.outbox.services.scheduling import Claim

log = structlog.get_logger(__name__)

RECEIVE = 200
WAIT_S = 1.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 5.0
# On shutdown, attempts in progress have the longest timeout plus this to end and to be recorded. The others are
# recovered when their leases lapse.
STOP_MARGIN_S = 2.0
# Delay before a pointer is redelivered if the database was unavailable.
AGAIN_S = 5.0
MAX_QUARANTINED_CHARACTERS = 4000


class Router:
    """Receive pointers and process them. Any number of routers may run.

    At most OUTBOX_ROUTER_CALLS attempts are in progress, divided among organizations. With OUTBOX_HAND_OVER, the
    message that follows one that ended here is processed here as well, without a pointer on the queue.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._consumer = queues.consumer(self.name)
        self._receiving = ThreadPoolExecutor(1, thread_name_prefix="outbox-receive")
        self._acking = DatabaseThread("outbox-ack")
        self._acks: Batcher[Delivery, None] = Batcher(
            self._acking, self._ack_many, RECEIVE, whole=(QueueUnavailable,)
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()

    async def run(self, stopping: asyncio.Event) -> None:
        """Process pointers until `stopping` is set, then wait for running attempts.

        While the queue is unreachable, log a warning and retry.
        """
        processor = outbox_processor.shared_processor(settings.OUTBOX_ROUTER_CALLS)
        processor.on_wait = self._room.set
        if settings.OUTBOX_HAND_OVER:
            take_over, loop = partial(self._take_over, processor), asyncio.get_running_loop()
            processor.hand_over = partial(loop.call_soon_threadsafe, take_over)
        if self._consumer.max_held is not None:
            processor.max_waiting = max(0, self._consumer.max_held - settings.OUTBOX_ROUTER_CALLS)
        stopped = asyncio.create_task(stopping.wait())
        try:
            pause = FIRST_PAUSE_S
            while not stopping.is_set():
                room = self._room_left(processor)
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
                    log.warning("queue_unreachable", error=str(error), again_in_s=pause)
                    await asyncio.wait([stopped], timeout=pause)
                    pause = min(pause * 2, MAX_PAUSE_S)
                    continue
                for delivery in received:
                    self._start(self._handle(processor, delivery))
            processor.hand_over = None
            processor.stop_waiting()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.OUTBOX_MAX_TIMEOUT_S + STOP_MARGIN_S):
                    while self._tasks:  # a batch that was being recorded may still add some
                        await asyncio.wait(self._tasks)
        finally:
            stopped.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await outbox_processor.close_processor()
            self._receiving.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(self._acking.close)
            self._consumer.close()

    async def _receive(self, most: int) -> list[Delivery]:
        return await asyncio.get_running_loop().run_in_executor(
            self._receiving, self._consumer.receive, most, WAIT_S
        )

    def _room_left(self, processor: Processor) -> int:
        return settings.OUTBOX_ROUTER_CALLS - (len(self._tasks) - processor.waiting)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _take_over(self, processor: Processor, handover: Handover) -> None:
        """Make the attempts that have begun. Process claimed messages while there is room; publish the others."""
        for ticket, call in handover.begun:
            self._start(self._go_on(processor, ticket, call))
        ended = handover.ended - len(handover.begun)
        room = max(0, self._room_left(processor) + ended) if processor.hand_over else 0
        for claim in handover.claims[:room]:
            self._start(self._continue(processor, claim))
        handed_over = len(handover.begun) + len(handover.claims[:room])
        metrics.published.labels("handed_over").inc(handed_over)
        processor.publish(handover.claims[room:])

    async def _go_on(self, processor: Processor, ticket: Ticket, call: DeliveryAttempt) -> None:
        try:
            await processor.go_on(ticket, call)
        except DatabaseError as error:
            log.warning("attempt_result_lost", message=call.id, error=str(error).strip())

    async def _continue(self, processor: Processor, claim: Claim) -> None:
        """Process a claimed message that has no pointer on the queue; publish one if that does not succeed."""
        try:
            await processor.process_epoch(claim.id, claim.epoch)
        except NotAdmitted:
            processor.publish([claim])
        except DatabaseError as error:
            log.warning("message_published_database_unavailable", error=str(error).strip())
            processor.publish([claim])

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.set()
        if not task.cancelled() and (error := task.exception()):
            log.error("pointer_processing_failed", exc_info=error)

    async def _handle(self, processor: Processor, delivery: Delivery) -> None:
        try:
            pointer = MessagePointer.from_json(delivery.pointer_json)
            if read_id(pointer.id) is None:
                raise BadPointer("its id is not a message id")
            refused = await processor.process(pointer.id, pointer.authToken)
            if refused is PointerRefused.UNKNOWN:
                raise BadPointer("no message has this id")
        except BadPointer as error:
            await self._quarantine(delivery, str(error))
        except BadToken as error:
            # An expired token is expected: recovery ended its epoch long ago.
            if str(error) != "expired":
                await self._quarantine(delivery, f"its token is not valid: {error}")
        except NotAdmitted:
            await self._later(delivery)
            return
        except DatabaseError as error:
            log.warning("pointer_released_database_unavailable", error=str(error).strip())
            await self._later(delivery)
            return
        fault_injection.crash_point("outbox.ack.before")
        try:
            await self._acks.submit(delivery)
        except QueueUnavailable as error:
            log.debug("pointer_ack_failed", error=str(error))

    def _ack_many(self, deliveries: object) -> list[None]:
        items = list(deliveries)  # type: ignore[call-overload]
        self._consumer.ack_many(items)
        return [None] * len(items)

    async def _later(self, delivery: Delivery) -> None:
        try:
            await asyncio.to_thread(delivery.release, AGAIN_S)
        except QueueUnavailable as error:
            log.debug("pointer_release_failed", error=str(error))

    async def _quarantine(self, delivery: Delivery, reason: str) -> None:
        log.error("pointer_quarantined", reason=reason)
        content = delivery.pointer_json[:MAX_QUARANTINED_CHARACTERS].replace("\x00", "\ufffd")
        await self._acking.run(lambda: QuarantinedPointer.objects.create(reason=reason[:200], content=content))


async def run_router(stopping: asyncio.Event) -> None:
    """Run the router as a service of the dispatcher process."""
    if not settings.OUTBOX_ENABLED:
        await stopping.wait()
        return
    await Router().run(stopping)
