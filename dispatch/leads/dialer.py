"""Run the dialer: an asyncio service, in any number of processes, that turns ready leads into calls.

Pullers claim batches from the ready queues (`claims.claim_leads`, in threads with separate database connections).
Each call is then requested in a separate task, at its turn. The provider's responses are written in batches.
Between reservation and commit, a batch with a lease holds the leads; when the lease ends, other dialers take them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError

from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, fault_injection
from dispatch.core.db.batcher import Batcher, DatabaseThread
from dispatch.core.http import client as http_client
from dispatch.core.redis.client import REDIS_ERRORS, connect
from dispatch.leads import counters, precheck, redis_queue
from dispatch.leads.rules.retries import Verdict
from dispatch.leads.services import claim_failures, claims, completion
from dispatch.leads.services.claims import CallToRequest, ClaimResult, PrecheckRequest
from dispatch.telephony import providers
from dispatch.telephony.providers.base import Outcome, RateLimited, Rejected, Unknown
from dispatch.telephony.services import bulk as telephony
from dispatch.telephony.services.bulk import RequestResult

log = structlog.get_logger(__name__)

MAX_RESULTS = 500
# Time for requests in progress to finish on shutdown.
STOP_S = 8.0
LAPSED = RateLimited(0.0, "the claim lapsed before it was sent")


class Dialer:
    """A dialer. Any number of dialers may run, even in one process."""

    def __init__(self, name: str = "") -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._claimers = [DatabaseThread(f"leads-claim-{n}") for n in range(settings.LEADS_CLAIMERS)]
        self._settler = DatabaseThread("leads-settle")
        self._looker = DatabaseThread("leads-cancelled")
        self._cancelled: Batcher[int, bool] = Batcher(self._looker, telephony.cancelled, settings.LEADS_BATCH)
        self._answers: list[RequestResult] = []
        self._answered = asyncio.Event()
        self._lates: list[float] = []  # lateness (s) of requested calls, not counted yet
        self._askers = ThreadPoolExecutor(settings.LEADS_ASK_THREADS, thread_name_prefix="leads-ask")
        self._tasks: set[asyncio.Task[None]] = set()
        self._bells = [asyncio.Event() for _ in self._claimers]
        self._idle: set[int] = set()  # pullers that wait for a wakeup
        self._room = asyncio.Event()
        self._in_flight = 0
        # A claimed lead is called even if something is paused meanwhile. If the provider's client blocks, the
        # pullers therefore claim no more leads than there are free threads to request calls. A client counts as
        # blocking until it is known not to be.
        self._blocks = True
        self._unasked: set[int] = set()  # calls
        self._turn = PoolRotation()

    async def run(self, stopping: asyncio.Event) -> None:
        """Claim and call leads until `stopping` is set, then finish the calls in progress."""
        listener = PubSubListener(asyncio.get_running_loop(), self._hear)
        listener.start()
        heartbeat_task = asyncio.create_task(self._beat(stopping))
        writer_task = asyncio.create_task(self._settle())
        try:
            pullers = [self._pull(n, stopping) for n in range(len(self._claimers))]
            await asyncio.gather(*pullers, self._wake_at_the_end(stopping))
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    while self._in_flight:
                        await _wait(self._room, IDLE_S)
                        self._room.clear()
        finally:
            heartbeat_task.cancel()
            writer_task.cancel()
            listener.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(heartbeat_task, writer_task, *self._tasks, return_exceptions=True)
            await http_client.close()
            with suppress(*redis_queue.UNAVAILABLE):
                await asyncio.to_thread(redis_queue.deregister, self.name)
            self._askers.shutdown(wait=False, cancel_futures=True)
            for thread in (*self._claimers, self._settler, self._looker):
                await asyncio.to_thread(thread.close)

    # --- Claiming

    async def _pull(self, index: int, stopping: asyncio.Event) -> None:
        thread, bell, is_redis_down = self._claimers[index], self._bells[index], False
        loop = asyncio.get_running_loop()

        def committed(claimed: ClaimResult) -> None:
            """Start requests from the claiming thread while Redis is still being updated."""
            loop.call_soon_threadsafe(self._start, claimed)

        while not stopping.is_set():
            free = self._free()
            if free <= 0:
                self._room.clear()
                await _wait(self._room, IDLE_S)
                continue
            bell.clear()
            most = min(free, settings.LEADS_BATCH)
            try:
                claimed = await thread.run(
                    lambda most=most: self._turn.take(self.name, most, committed)  # type: ignore[misc]
                )
            except redis_queue.UNAVAILABLE as error:
                if not is_redis_down:
                    log.warning("claims_paused_redis_unavailable", error=str(error))
                is_redis_down = True
                await _wait(stopping, TROUBLE_S)
                continue
            except DatabaseError as error:
                log.warning("claim_batch_failed", error=str(error).strip())
                await _wait(stopping, TROUBLE_S)
                continue
            except Exception:  # the reserved leads are requeued, or ready again when their lease ends
                log.exception("leads_claim_failed")
                await _wait(stopping, TROUBLE_S)
                continue
            is_redis_down = False
            if not claimed.taken:
                began = time.monotonic()
                self._idle.add(index)
                await _wait(bell, claimed.wait_s)
                self._idle.discard(index)
                if claimed.why in NO_LINES:
                    counters.line_wait.observe(time.monotonic() - began)

    def _free(self) -> int:
        """Return how many more leads may be claimed."""
        free = settings.LEADS_IN_FLIGHT - self._in_flight
        return min(free, settings.LEADS_ASK_THREADS - len(self._unasked)) if self._blocks else free

    def _start(self, claimed: ClaimResult) -> None:
        self._count(len(claimed.calls) + len(claimed.questions))
        self._unasked.update(request.call_id for request in claimed.calls)
        for request in claimed.calls:
            self._spawn(self._ask(request, claimed.accounts[request.call.account_id]))
        if claimed.questions:
            self._spawn(self._question(claimed.questions))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _count(self, leads: int) -> None:
        """Add to the number of leads in progress. A negative number subtracts."""
        self._in_flight += leads
        counters.in_flight.set(self._in_flight)
        if leads < 0:
            self._room.set()

    # --- Requesting

    async def _ask(self, request: CallToRequest, account: ProviderAccount) -> None:
        while (early_s := (request.turn_at - clock.now()).total_seconds()) > 0:
            await asyncio.sleep(early_s)
        fault_injection.crash_point("leads.ask.before")
        try:
            if await self._is_cancelled(request.call_id):
                outcome: Outcome = RateLimited(0.0, "cancelled before it was sent")
            else:
                self._lates.append(max(0.0, (clock.now() - request.due_at).total_seconds()))
                outcome = await self._outcome(request, account)
        finally:
            self._began(request.call_id)
        fault_injection.crash_point("leads.ask.after")
        self._answers.append(RequestResult(request.call_id, request.call, outcome))
        self._answered.set()

    async def _is_cancelled(self, call_id: int) -> bool:
        """Return whether the person has opted out since the claim; also True if that can't be determined."""
        try:
            return await self._cancelled.submit(call_id)
        except Exception as error:
            log.warning("lead_call_not_checked", call=call_id, error=str(error).strip())
            return True

    async def _outcome(self, request: CallToRequest, account: ProviderAccount) -> Outcome:
        try:
            provider = providers.for_account(account)
        except Exception as error:
            log.exception("provider_unusable", account=account.pk)
            return Rejected(False, "", str(error)[:255], "configuration")
        self._blocks = not provider.is_async
        try:
            order = telephony.build_request(request.call, request.call_id, account.provider, 0.0)
            if provider.is_async:
                self._began(request.call_id)
                left_s = _seconds_left(request)
                return await provider.place_async(replace(order, leave_within_s=left_s)) if left_s > 0 else LAPSED
            loop = asyncio.get_running_loop()

            def place() -> Outcome:
                loop.call_soon_threadsafe(self._began, request.call_id)
                client = providers.for_account(account)
                left_s = _seconds_left(request)  # measured now, after any wait for this thread
                return client.place(replace(order, leave_within_s=left_s)) if left_s > 0 else LAPSED

            return await loop.run_in_executor(self._askers, place)
        except Exception as error:  # the provider violates its contract; it may have requested the call
            log.exception("provider_raised", account=account.pk)
            return Unknown(type(error).__name__)

    def _began(self, call_id: int) -> None:
        """Record that the request for the call is being sent, or that it will not be sent."""
        self._unasked.discard(call_id)
        if self._blocks:
            self._room.set()

    async def _question(self, questions: Sequence[PrecheckRequest]) -> None:
        """Ask the campaigns' systems about the leads, then claim the leads again."""
        try:
            verdicts = await asyncio.gather(
                *(precheck.run_precheck(question.lead, question.campaign) for question in questions),
                return_exceptions=True,
            )
            fault_injection.crash_point("leads.precheck.answered")
            await self._take_up(list(zip(questions, verdicts, strict=True)))
        finally:
            self._count(-len(questions))

    async def _take_up(self, asked: list[tuple[PrecheckRequest, Verdict | BaseException]]) -> None:
        answered, failed = [], []
        for question, verdict in asked:
            if isinstance(verdict, BaseException):
                log.error("precheck_failed", lead_id=question.lead.id, exc_info=verdict)
                failed.append(question.pair)
            else:
                answered.append((question, verdict))
        thread = self._claimers[0]
        await thread.run(lambda: claims.requeue_reservations(self.name, failed))
        if answered:
            try:
                self._start(await thread.run(lambda: claims.claim_answered(self.name, answered)))
            except Exception:  # the leads are requeued
                log.exception("leads_claim_failed", leads=len(answered))

    # --- Writing responses

    async def _settle(self) -> None:
        """Write the provider's responses. Those that arrive while a batch is being written form the next batch."""
        while True:
            if not self._answers:
                self._answered.clear()
                await self._answered.wait()
            batch, self._answers = self._answers[:MAX_RESULTS], self._answers[MAX_RESULTS:]
            lates, self._lates = self._lates, []
            counters.observe_many(counters.due_to_dial, lates)
            await self._settle_batch(batch)
            self._count(-len(batch))

    async def _settle_batch(self, batch: list[RequestResult]) -> None:
        try:
            locked_elsewhere = await self._settler.run(lambda: _write(batch))
            if locked_elsewhere:
                self._count(len(locked_elsewhere))
                asyncio.get_running_loop().call_later(TROUBLE_S, self._settle_again, locked_elsewhere)
        except Exception as error:
            if len(batch) == 1:  # the reconcilers of calls and claims end it
                log.exception("call_outcome_not_recorded", call=batch[0].call_id)
                return
            log.warning("outcome_batch_failed", calls=len(batch), error=str(error).strip())
            for answer in batch:
                await self._settle_batch([answer])

    def _settle_again(self, answers: list[RequestResult]) -> None:
        self._answers += answers
        self._answered.set()

    # --- Wakeups and heartbeat

    def _hear(self, message: str) -> None:
        kind, _, pool = message.partition(":")
        if kind == "line":
            self._turn.line_freed(int(pool))
        if kind == "one":  # a single lead: waking one puller is enough, and the message names the pool
            for which in self._idle:
                if not self._bells[which].is_set():
                    self._turn.hint(int(pool))
                    self._bells[which].set()
                    return
        for bell in self._bells:
            bell.set()

    async def _wake_at_the_end(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._room.set()
        for bell in self._bells:
            bell.set()

    async def _beat(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                await asyncio.to_thread(redis_queue.heartbeat, self.name)
            except redis_queue.UNAVAILABLE as error:
                log.debug("heartbeat_failed", error=str(error))
            await _wait(stopping, settings.LEADS_HEARTBEAT_S)


def _seconds_left(request: CallToRequest) -> float:
    """Return the seconds within which the request must be sent.

    If 0 or less, the claim has lapsed, and nothing may be sent.
    """
    return (request.send_by - clock.now()).total_seconds()


def _write(answers: Sequence[RequestResult]) -> list[RequestResult]:
    """Write the responses. Return those whose leads another session has locked, to be written later."""
    locked_elsewhere: list[RequestResult] = []
    for other in completion.record_outcomes(answers, locked_elsewhere):
        telephony.record_result(other)
    return locked_elsewhere


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def run_dialer(stopping: asyncio.Event) -> None:
    """Run the dialer as a service of the dispatcher process."""
    await Dialer().run(stopping)


# Pause while nothing is ready. A wakeup ends it earlier; the timeout is for a missed wakeup.
IDLE_S = 1.0
TROUBLE_S = 1.0
NO_LINES = ("lines_busy", "pool_full")


class PoolRotation:
    """Choose the next pool in rotation, skipping pools that have to wait."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: dict[int, tuple[float, str]] = {}  # pool → not before (monotonic), why
        self._hints: list[int] = []
        self._lock = threading.Lock()

    def take(self, worker: str, most: int, committed: Callable[[ClaimResult], None]) -> ClaimResult:
        """Claim a batch from the first ready pool in rotation, or return how long to wait.

        `committed`: see `claims.claim_leads`.
        """
        now, wait_s, why = time.monotonic(), IDLE_S, "empty"
        for pool_id in self._rooms():
            until, reason = self._waiting.get(pool_id, (0.0, ""))
            if until > now:
                wait_s, why = min(wait_s, until - now), reason
                continue
            self._last = pool_id
            try:
                claimed = claims.claim_leads(worker, pool_id, most, committed)
            except Exception as error:
                if claim_failures.is_outage(error):
                    raise
                log.exception("leads_pool_failed", pool=pool_id)
                claimed = ClaimResult(why="error", wait_s=TROUBLE_S)
            if claimed.wait_s > 0:
                longest = settings.LEADS_TICK_S if claimed.why in NO_LINES else IDLE_S
                this_s = min(claimed.wait_s, longest)
                with self._lock:
                    self._waiting[pool_id] = (time.monotonic() + this_s, claimed.why)
                wait_s, why = min(wait_s, this_s), claimed.why
            if claimed.taken:
                return claimed
        return ClaimResult(why=why, wait_s=wait_s)

    def line_freed(self, pool_id: int) -> None:
        with self._lock:
            if self._waiting.get(pool_id, (0.0, ""))[1] in NO_LINES:
                del self._waiting[pool_id]

    def hint(self, pool_id: int) -> None:
        """Mark a pool as having a new ready lead, for the next idle puller.

        Busy pullers continue the rotation, because otherwise a pool with a steady trickle of leads would delay the
        others.
        """
        with self._lock:
            self._hints.append(pool_id)

    def _rooms(self) -> Iterator[int]:
        """Yield the pools to check: first those marked as having new leads, then every ready pool in rotation."""
        with self._lock:
            hints, self._hints = dict.fromkeys(self._hints), []
        yield from hints
        yield from (pool_id for pool_id in self._in_turn(redis_queue.ready_pools()) if pool_id not in hints)

    def _in_turn(self, pools: list[int]) -> list[int]:
        with self._lock:
            self._waiting = {pool: until for pool, until in self._waiting.items() if pool in pools}
        return [p for p in pools if p > self._last] + [p for p in pools if p <= self._last]


class PubSubListener(threading.Thread):
    """Listens on the wakeup channel and passes its messages on.

    After an outage it wakes the dialer once, because messages may have been missed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, hear: object) -> None:
        super().__init__(name="leads-bell", daemon=True)
        self._loop, self._hear = loop, hear
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        missed = False
        while not self._over.is_set():
            try:
                listener = connect(socket_timeout=5).pubsub(ignore_subscribe_messages=True)
                listener.subscribe(redis_queue.wakeup_channel())
                if missed:
                    self._tell("due")
                missed = False
                while not self._over.is_set():
                    message = listener.get_message(timeout=0.5)
                    if message and isinstance(message["data"], bytes):
                        self._tell(message["data"].decode())
                listener.close()
            except REDIS_ERRORS as error:
                log.debug("wakeup_channel_unavailable", error=str(error))
                missed = True
                self._over.wait(TROUBLE_S)
            except RuntimeError:  # the event loop is closed
                return

    def _tell(self, message: str) -> None:
        self._loop.call_soon_threadsafe(self._hear, message)  # type: ignore[arg-type]
