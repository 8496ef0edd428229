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
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError

from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, fault_injection
from dispatch.core.db import prepared
from dispatch.core.db.batcher import Batcher, DatabaseThread
from dispatch.core.http import client as http_client
from dispatch.core.runtime.precise_timer import PreciseTimer
from dispatch.leads import counters, precheck, redis_queue, sql
from dispatch.leads.pool_rotation import EMPTY, IDLE_S, NO_LINES, SHARE_USED, TROUBLE_S, PoolRotation
from dispatch.leads.response_writer import ResponseWriter
from dispatch.leads.rules import geography
from dispatch.leads.rules.fairness import fair_share
from dispatch.leads.rules.retries import Verdict
from dispatch.leads.services import claims
from dispatch.leads.services.claim_batches import CallToRequest, ClaimResult, PrecheckRequest
from dispatch.leads.thread_shares import ThreadShares
from dispatch.leads.wakeups import PubSubListener
from dispatch.telephony import providers
from dispatch.telephony.providers.base import CallRequest, Outcome, RateLimited, Rejected, Unknown
from dispatch.telephony.providers.connections import close_idle_client
from dispatch.telephony.services import bulk as telephony
from dispatch.telephony.services.bulk import RequestResult

log = structlog.get_logger(__name__)

# How long a few free places wait for more before leads are claimed (seconds).
LINGER_S = 0.02
# How long before its turn a call is checked for the last time. The event loop may wake its task a millisecond
# late, and the check takes another half.
CHECKED_BEFORE_S = 0.003
# Time for requests in progress to finish on shutdown.
STOP_S = 8.0
LAPSED = RateLimited(0.0, "the claim lapsed before it was sent")


class Dialer:
    """A dialer. Any number of dialers may run, even in one process."""

    def __init__(self, name: str = "") -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._claimers = [DatabaseThread(f"leads-claim-{n}") for n in range(settings.LEADS_CLAIMERS)]
        self._writer = ResponseWriter(self._add_in_flight, self._end_in_flight)
        self._cancel_checker = DatabaseThread("leads-cancelled")
        self._cancelled: Batcher[int, bool] = Batcher(
            self._cancel_checker, telephony.cancelled, settings.LEADS_BATCH
        )
        self._request_threads = ThreadPoolExecutor(settings.LEADS_ASK_THREADS, thread_name_prefix="leads-ask")
        self._tasks: set[asyncio.Task[None]] = set()
        self._wakeups = [asyncio.Event() for _ in self._claimers]
        self._idle: set[int] = set()  # pullers that wait for a wakeup
        self._looked_at = 0.0  # when an idle puller last began to look for ready leads, in monotonic seconds
        self._capacity_freed = asyncio.Event()
        self._in_flight = 0
        self._held: Counter[int] = Counter()  # leads in progress by organization
        self._claiming: dict[int, tuple[int, int]] = {}  # puller → organization and leads that it may claim now
        self._claiming_lock = threading.Lock()
        self._limited: set[int] = set()  # idle pullers that wait for an organization's share
        # A claimed lead is called even if something is paused meanwhile. If the provider's client blocks, the
        # pullers therefore claim no more leads than there are free threads to request calls. A client counts as
        # blocking until it is known not to be.
        self._blocks = True
        self._unsent: dict[int, int] = {}  # call → organization
        self._sending: Counter[int] = Counter()  # requests in threads by organization
        self._unanswered: Counter[int] = Counter()  # claimed calls without a response by organization
        self._max_requests: dict[int, int] = {}  # organization → concurrent requests of its provider's client
        self._shares = ThreadShares(settings.LEADS_ASK_THREADS)
        self._rotation = PoolRotation()

    async def run(self, stopping: asyncio.Event) -> None:
        """Claim and call leads until `stopping` is set, then finish the calls in progress."""
        listener = PubSubListener(asyncio.get_running_loop(), self._handle_message)
        listener.start()
        self._claimers[0].start(_load_places)
        self._timer = PreciseTimer()
        heartbeat_task = asyncio.create_task(self._send_heartbeats(stopping))
        writer_task = asyncio.create_task(self._writer.run())
        try:
            pullers = [self._run_puller(n, stopping) for n in range(len(self._claimers))]
            await asyncio.gather(*pullers, self._wake_at_the_end(stopping))
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    while self._in_flight:
                        await _wait(self._capacity_freed, IDLE_S)
                        self._capacity_freed.clear()
        finally:
            heartbeat_task.cancel()
            writer_task.cancel()
            listener.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(heartbeat_task, writer_task, *self._tasks, return_exceptions=True)
            await asyncio.to_thread(self._timer.close)
            await http_client.close()
            await close_idle_client()
            with suppress(*redis_queue.UNAVAILABLE):
                await asyncio.to_thread(redis_queue.deregister, self.name)
            self._request_threads.shutdown(wait=False, cancel_futures=True)
            for thread in (*self._claimers, self._cancel_checker):
                await asyncio.to_thread(thread.close)
            await asyncio.to_thread(self._writer.close)

    # --- Claiming

    async def _run_puller(self, index: int, stopping: asyncio.Event) -> None:
        thread, wakeup, is_redis_down = self._claimers[index], self._wakeups[index], False
        loop = asyncio.get_running_loop()

        def committed(claimed: ClaimResult) -> None:
            """Start requests from the claiming thread while Redis is still being updated."""
            loop.call_soon_threadsafe(self._start_requests, claimed)

        while not stopping.is_set():
            if not await self._wait_for_capacity():
                continue
            wakeup.clear()
            try:
                claimed = await thread.run(
                    lambda: self._rotation.claim_batch(self.name, partial(self._limit_claim, index), committed)
                )
            except redis_queue.UNAVAILABLE as error:
                if not is_redis_down:
                    redis_queue.log_unavailable("claims_paused", error)
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
            finally:
                self._end_claim(index)
            is_redis_down = False
            if not claimed.taken:
                began = time.monotonic()
                self._idle.add(index)
                if claimed.why == SHARE_USED:
                    self._limited.add(index)
                if claimed.why == EMPTY and claimed.wait_s >= IDLE_S:
                    await self._wait_in_turn(wakeup)
                else:
                    await _wait(wakeup, claimed.wait_s)
                self._idle.discard(index)
                self._limited.discard(index)
                if claimed.why in NO_LINES:
                    counters.line_wait.observe(time.monotonic() - began)

    async def _wait_in_turn(self, wakeup: asyncio.Event) -> None:
        """Wait for a wakeup, or until no idle puller has looked for ready leads for IDLE_S."""
        while not wakeup.is_set() and (left_s := self._looked_at + IDLE_S - time.monotonic()) > 0:
            await _wait(wakeup, left_s)
        self._looked_at = time.monotonic()

    async def _wait_for_capacity(self) -> bool:
        """Wait until leads may be claimed; return whether they may be.

        A few free places wait a moment for more: a transaction costs about as much for one lead as for many.
        """
        most = settings.LEADS_ASK_THREADS if self._blocks else settings.LEADS_BATCH
        ends_at = time.monotonic() + LINGER_S
        while (free := self._count_free()) < max(1, most // 4):
            left_s = ends_at - time.monotonic()
            if left_s <= 0 and free > 0:
                break
            self._capacity_freed.clear()
            await _wait(self._capacity_freed, left_s if free > 0 else IDLE_S)
            if free <= 0:
                return False
        return True

    def _count_free(self) -> int:
        """Return how many more leads may be claimed."""
        free = settings.LEADS_IN_FLIGHT - self._in_flight
        return min(free, settings.LEADS_ASK_THREADS - len(self._unsent)) if self._blocks else free

    def _limit_claim(self, index: int, organization_id: int) -> int:
        """Return how many more leads of the organization this puller may claim now.

        Slow pre-checks and requests of one organization leave room for the others. Runs in the claiming threads.
        """
        with self._claiming_lock:
            self._claiming.pop(index, None)
            others = list(self._claiming.values())
            claiming = sum(leads for _, leads in others)
            own_claiming = sum(leads for owner, leads in others if owner == organization_id)
            free = settings.LEADS_IN_FLIGHT - self._in_flight - claiming
            held = self._held[organization_id] + own_claiming
            most = min(fair_share(held, free), self._count_free(), settings.LEADS_BATCH)
            if self._blocks:
                most = min(most, self._count_request_places(organization_id, claiming, own_claiming))
            elif max_requests := self._max_requests.get(organization_id):  # as many may wait as are being made
                most = min(most, 2 * max_requests - self._unanswered[organization_id] - own_claiming)
            if most > 0:
                self._claiming[index] = organization_id, most
            return most

    def _count_request_places(self, organization_id: int, claiming: int, own_claiming: int) -> int:
        """Return how many more leads of the organization its share of the request threads allows.

        As many calls may wait for a thread as there are threads. An account that hangs takes only the share of its
        organization. `claiming`: leads that other pullers may claim now; `own_claiming`: of the organization.
        """
        unsent = list(self._unsent.values())
        held = unsent.count(organization_id) + self._sending[organization_id] + own_claiming
        free = 2 * settings.LEADS_ASK_THREADS - len(unsent) - self._sending.total() - claiming
        return fair_share(held, free)

    def _end_claim(self, index: int) -> None:
        with self._claiming_lock:
            self._claiming.pop(index, None)

    def _start_requests(self, claimed: ClaimResult) -> None:
        self._add_in_flight(request.call.organization_id for request in claimed.calls)
        self._add_in_flight(question.lead.organization_id for question in claimed.questions)
        self._unanswered.update(request.call.organization_id for request in claimed.calls)
        self._unsent.update((request.call_id, request.call.organization_id) for request in claimed.calls)
        due = []
        for request in claimed.calls:
            if _seconds_until(request.turn_at) <= CHECKED_BEFORE_S:
                due.append(request)
            else:
                self._spawn(self._request_at_its_turn(request, claimed.accounts[request.call.account_id]))
        if due:
            self._spawn(self._request_due(due, claimed.accounts))
        if claimed.questions:
            self._spawn(self._run_prechecks(claimed.questions))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_in_flight(self, organizations: Iterable[int]) -> None:
        """Add leads of these organizations to those in progress."""
        added = Counter(organizations)
        self._held.update(added)
        self._in_flight += added.total()
        counters.in_flight.set(self._in_flight)

    def _end_in_flight(self, organizations: Iterable[int]) -> None:
        """Remove leads of these organizations from those in progress."""
        ended = Counter(organizations)
        self._held -= ended
        self._in_flight -= ended.total()
        counters.in_flight.set(self._in_flight)
        self._capacity_freed.set()
        for index in self._limited:
            self._wakeups[index].set()

    # --- Requesting

    async def _request_due(self, requests: Sequence[CallToRequest], accounts: dict[int, ProviderAccount]) -> None:
        """Check the calls with one query, and request each. If it fails, each is checked alone."""
        fault_injection.crash_point("leads.ask.before")
        ids = [request.call_id for request in requests]
        try:
            cancelled = await self._cancel_checker.run(lambda: telephony.cancelled(ids))
        except Exception as error:
            log.warning("lead_calls_not_checked", calls=len(ids), error=str(error).strip())
            for request in requests:
                self._spawn(self._check_and_request(request, accounts[request.call.account_id]))
            return
        for request, is_cancelled in zip(requests, cancelled, strict=True):
            self._spawn(self._request_call(request, accounts[request.call.account_id], is_cancelled))

    async def _request_at_its_turn(self, request: CallToRequest, account: ProviderAccount) -> None:
        await asyncio.sleep(_seconds_until(request.turn_at) - CHECKED_BEFORE_S)
        fault_injection.crash_point("leads.ask.before")
        await self._check_and_request(request, account)

    async def _check_and_request(self, request: CallToRequest, account: ProviderAccount) -> None:
        await self._request_call(request, account, await self._is_cancelled(request.call_id))

    async def _request_call(self, request: CallToRequest, account: ProviderAccount, is_cancelled: bool) -> None:
        try:
            if is_cancelled:
                outcome: Outcome = RateLimited(0.0, "canceled before it was sent")
            else:
                while (early_s := _seconds_until(request.turn_at)) > 0:
                    await self._timer.sleep(early_s)
                self._writer.lateness.append(max(0.0, (clock.now() - request.due_at).total_seconds()))
                outcome = await self._send_request(request, account)
        finally:
            self._unanswered[request.call.organization_id] -= 1
            self._discard_unsent(request.call_id)
        fault_injection.crash_point("leads.ask.after")
        self._writer.add(RequestResult(request.call_id, request.call, outcome))

    async def _is_cancelled(self, call_id: int) -> bool:
        """Return whether the person has opted out since the claim; also True if that can't be determined."""
        try:
            return await self._cancelled.submit(call_id)
        except Exception as error:
            log.warning("lead_call_not_checked", call=call_id, error=str(error).strip())
            return True

    async def _send_request(self, request: CallToRequest, account: ProviderAccount) -> Outcome:
        try:
            provider = providers.for_account(account)
        except Exception as error:
            log.exception("provider_unusable", account=account.pk)
            return Rejected(False, "", str(error)[:255], "configuration")
        self._blocks = not provider.is_async
        self._max_requests[request.call.organization_id] = provider.max_requests
        try:
            left_s = _seconds_left(request)
            order = telephony.build_request(request.call, request.call_id, account.provider, left_s)
            if provider.is_async:
                self._discard_unsent(request.call_id)
                return await provider.place_async(order) if left_s > 0 else LAPSED
            if not await self._shares.acquire(account.pk, request.call_id, _seconds_left(request)):
                return LAPSED
            try:
                return await self._send_in_thread(request, account, order)
            finally:
                self._shares.release(account.pk, request.call_id)
        except Exception as error:  # the provider violates its contract; it may have requested the call
            log.exception("provider_raised", account=account.pk)
            return Unknown(type(error).__name__)

    async def _send_in_thread(
        self, request: CallToRequest, account: ProviderAccount, order: CallRequest
    ) -> Outcome:
        def place() -> Outcome:
            client = providers.for_account(account)
            left_s = _seconds_left(request)  # measured now, after any wait for this thread
            return client.place(replace(order, leave_within_s=left_s)) if left_s > 0 else LAPSED

        self._discard_unsent(request.call_id)
        self._sending[request.call.organization_id] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._request_threads, place)
        finally:
            self._sending[request.call.organization_id] -= 1

    def _discard_unsent(self, call_id: int) -> None:
        """Record that the request for the call is being sent, or that it will not be sent."""
        self._unsent.pop(call_id, None)
        if self._blocks:
            self._capacity_freed.set()

    async def _run_prechecks(self, questions: Sequence[PrecheckRequest]) -> None:
        """Ask the campaigns' systems about the leads, then claim the leads again."""
        try:
            verdicts = await asyncio.gather(
                *(precheck.run_precheck(question.lead, question.campaign) for question in questions),
                return_exceptions=True,
            )
            fault_injection.crash_point("leads.precheck.answered")
            await self._apply_verdicts(list(zip(questions, verdicts, strict=True)))
        finally:
            self._end_in_flight(question.lead.organization_id for question in questions)

    async def _apply_verdicts(self, asked: list[tuple[PrecheckRequest, Verdict | BaseException]]) -> None:
        answered, failed = [], []
        for question, verdict in asked:
            if isinstance(verdict, BaseException):
                log.error("precheck_failed", lead_id=question.lead.id, exc_info=verdict)
                failed.append(question.reservation)
            else:
                answered.append((question, verdict))
        thread = self._claimers[0]
        await thread.run(lambda: claims.requeue_reservations(self.name, failed))
        if answered:
            try:
                self._start_requests(await thread.run(lambda: claims.claim_answered(self.name, answered)))
            except Exception:  # the leads are requeued
                log.exception("leads_claim_failed", leads=len(answered))

    # --- Wakeups and heartbeat

    def _handle_message(self, message: str) -> None:
        kind, _, pool = message.partition(":")
        if kind in ("one", "line"):  # of a pool with a free line: waking one puller is enough
            self._rotation.release_pause(int(pool))
            for which in self._idle:
                if not self._wakeups[which].is_set():
                    if kind == "one":
                        self._rotation.mark_ready(int(pool))
                    self._wakeups[which].set()
                    return
        for wakeup in self._wakeups:
            wakeup.set()

    async def _wake_at_the_end(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._capacity_freed.set()
        for wakeup in self._wakeups:
            wakeup.set()

    async def _send_heartbeats(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                await asyncio.to_thread(redis_queue.heartbeat, self.name)
            except redis_queue.UNAVAILABLE as error:
                log.debug("heartbeat_failed", error=str(error))
            await _wait(stopping, settings.LEADS_HEARTBEAT_S)


def _seconds_until(moment: datetime) -> float:
    return (moment - clock.now()).total_seconds()


def _seconds_left(request: CallToRequest) -> float:
    """Return the seconds within which the request must be sent.

    If 0 or less, the claim has lapsed, and nothing may be sent.
    """
    return (request.send_by - clock.now()).total_seconds()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _load_places() -> None:
    """Load what locates leads, so that the first lead that becomes due does not wait for it."""
    ((is_any_waiting,),) = prepared.fetch_by_index(f"SELECT {sql.IS_ANY_WAITING}", {})
    if is_any_waiting:
        geography.load_places()


async def run_dialer(stopping: asyncio.Event) -> None:
    """Run the dialer as a service of the dispatcher process."""
    await Dialer().run(stopping)
