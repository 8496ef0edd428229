"""Process one pointer: check its token, start and make the attempt, and record the result.

A `Processor` serves one event loop: that of the built-in router, or that of the web process, to which external
routers post pointers. Both behave the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, connections

from dispatch.core import fault_injection
from dispatch.core.db.batcher import Batcher, DatabaseThread
from dispatch.core.http import client
from dispatch.core.runtime.fair_shares import AsyncShares, SharesClosed
from dispatch.outbox import access_tokens, http_delivery, metrics, publisher
from dispatch.outbox.pointer import check_token
from dispatch.outbox.services import attempts, target_health
from dispatch.outbox.services.attempt_results import AttemptResult, finish_attempts
from dispatch.outbox.services.attempts import DeliveryAttempt, NoShare, PointerRefused, StartResult, ticks
from dispatch.outbox.services.scheduling import Claim

log = structlog.get_logger(__name__)

# The part of a lease that is reserved for recording the result.
LEASE_MARGIN_S = 5.0
MAX_BATCH = 200
# While one thread waits for the database, the other can record the next results.
FINISH_THREADS = 2
# Pointers that may wait for shares of their organizations; more go back to the queue for a while.
MAX_WAITING = 5000
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0
# How often the messages of waiting pointers are marked as held. A mark lasts three times as long.
HOLD_RENEWAL_S = 5.0
# Pause between tries to record a result while its group is locked. An intake locks it for milliseconds.
FIRST_LOCK_PAUSE_S, MAX_LOCK_PAUSE_S = 0.01, 1.0
# For how long to try to record a result once its lease is lost. Meanwhile its message may be locked: by the start
# of its next attempt for milliseconds.
LATE_S = 10.0


class NotAdmitted(Exception):
    """The pointer was not processed, and nothing was changed: too many wait already, or the process stops."""


@dataclass(eq=False)
class Ticket:
    """One pointer being processed, and the organization whose share it holds (None: none yet)."""

    id: int
    epoch: int
    holds: int | None = None

    @property
    def pointer(self) -> tuple[int, int]:
        return self.id, self.epoch


@dataclass
class _Running:
    call: DeliveryAttempt
    ticket: Ticket
    until: float


@dataclass(frozen=True)
class Handover:
    """What a router goes on with: attempts that have been started, and messages that have been claimed.

    `ended` pointers make room for it, although their tasks may not know it yet.
    """

    begun: Sequence[tuple[Ticket, DeliveryAttempt]]
    claims: Sequence[Claim]
    ended: int


class Processor:
    """Start, make and finish many attempts concurrently, with batched transactions.

    `max_calls` is divided among organizations: a pointer beyond its organization's share waits here, and
    `on_wait` is called. None: as many attempts as callers ask for.

    Messages claimed when others end are published on the queue. With `hand_over`, their attempts are started in
    the same transaction, if nothing has to be waited for, and given to it with the remaining ones. It is called
    in a thread; RuntimeError from it means that nobody took them.
    """

    def __init__(self, max_calls: int | None = None) -> None:
        self._shares = AsyncShares(max_calls) if max_calls is not None else None
        self._waiting: set[tuple[int, int]] = set()
        self.on_wait: Callable[[], None] = lambda: None
        self.hand_over: Callable[[Handover], object] | None = None
        self.max_waiting = MAX_WAITING
        self._start_thread = DatabaseThread("outbox-start")
        self._finish_threads = [DatabaseThread(f"outbox-finish-{n}") for n in range(FINISH_THREADS)]
        self._starts: Batcher[Ticket, StartResult] = Batcher(self._start_thread, self._start_attempts, MAX_BATCH)
        self._finishes: Batcher[AttemptResult, bool] = Batcher(
            self._finish_threads, self._finish_attempts, MAX_BATCH
        )
        self._publishing = _PublishThread()
        self._running: dict[tuple[int, int], _Running] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._holding: asyncio.Task[None] | None = None

    async def process(self, message_id: str, token: str) -> PointerRefused | None:
        """Process one pointer; return None after an attempt, else the reason why there was none.

        The attempt's result has then been recorded. Raises BadToken and NotAdmitted (nothing was changed) and
        django.db errors (the outcome is unknown; the pointer may be delivered again).
        """
        return await self.process_epoch(int(message_id), check_token(token, message_id))

    async def process_epoch(self, message_id: int, epoch: int) -> PointerRefused | None:
        """Process a message that was claimed in this epoch, as `process` does."""
        ticket = Ticket(message_id, epoch)
        try:
            call = await self._starts.submit(ticket)
            if isinstance(call, NoShare):
                call = await self._start_later(ticket, call.organization_id)
            if isinstance(call, PointerRefused):
                metrics.refused.labels(call.name.lower()).inc()
                return call
            assert isinstance(call, DeliveryAttempt)
            await self._make(call, ticket)
        finally:
            self._release_share(ticket)
        return None

    async def _start_later(self, ticket: Ticket, organization_id: int) -> StartResult:
        """Wait for a share of the organization, then start the attempt."""
        assert self._shares
        if ticket.pointer in self._waiting:
            # A copy of a pointer that waits. It stays on the queue: it may be the same entry, redelivered.
            raise NotAdmitted
        if len(self._waiting) >= self.max_waiting:
            raise NotAdmitted
        self._waiting.add(ticket.pointer)
        self.on_wait()
        if self._holding is None or self._holding.done():
            self._holding = asyncio.create_task(self._keep_holds())
        try:
            await self._shares.take(organization_id)
        except SharesClosed:
            raise NotAdmitted from None
        finally:
            self._waiting.discard(ticket.pointer)
        ticket.holds = organization_id
        return await self._starts.submit(ticket)

    @property
    def waiting(self) -> int:
        """Return how many pointers wait for a share of their organization."""
        return len(self._waiting)

    def stop_waiting(self) -> None:
        """Raise NotAdmitted for pointers that wait for a share, and for those that would."""
        if self._shares:
            self._shares.close()

    @property
    def running(self) -> int:
        """Return how many attempts are in progress."""
        return len(self._running)

    async def close(self) -> None:
        """Close what belongs to this event loop. No attempt may be in progress."""
        for task in (self._renewing, self._holding):
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await access_tokens.close()
        await client.close()
        for thread in (self._start_thread, *self._finish_threads):
            await asyncio.to_thread(thread.close)
        await asyncio.to_thread(self._publishing.close)

    def _start_attempts(self, tickets: Sequence[Ticket]) -> Sequence[StartResult]:
        # Of several copies of a pointer, the first one gets the attempt: that is the one that holds a share.
        order = sorted(tickets, key=lambda ticket: ticket.holds is None)
        first: dict[tuple[int, int], Ticket] = {}
        for ticket in order:
            first.setdefault(ticket.pointer, ticket)

        def admit(pointer: tuple[int, int], organization_id: int) -> bool:
            ticket = first[pointer]
            if ticket.holds is None and shares is not None and shares.try_take(organization_id):
                ticket.holds = organization_id
            return ticket.holds is not None

        shares = self._shares
        answers, claims = attempts.start_attempts(
            [ticket.pointer for ticket in order], admit if shares is not None else None
        )
        ended = sum(isinstance(answer, PointerRefused) for answer in answers)
        self._pass_on(Handover((), claims, ended), self.hand_over)
        by_ticket = dict(zip(order, answers, strict=True))
        return [by_ticket[ticket] for ticket in tickets]

    def _finish_attempts(self, results: Sequence[AttemptResult]) -> Sequence[bool]:
        """Return for each result whether it was recorded.

        A result whose group is locked is not, so that it does not delay the others.
        """
        left = self._finish(results)
        try:
            target_health.disable_gone([result for result in results if result not in left])
        except DatabaseError:
            # The results are recorded: another try would record them a second time, as late.
            log.exception("endpoints_not_disabled")
        held = {(result.call.id, result.call.epoch) for result in left}
        return [(result.call.id, result.call.epoch) not in held for result in results]

    def _finish(self, results: Sequence[AttemptResult]) -> Sequence[AttemptResult]:
        """Record the results and claim the next messages; return the results of locked groups."""
        if (hand_over := self.hand_over) is not None and not publisher.is_down():
            try:
                return self._finish_and_begin(results, hand_over)
            except DatabaseError as error:  # the results alone may succeed
                log.warning("next_attempts_not_begun", results=len(results), error=str(error).strip())
        claim = not publisher.is_down()
        try:
            finished = finish_attempts(results, claim=claim)
        except IntegrityError:
            # The unique index rejected the next message claimed: leave the choice to the poller.
            if len(results) > 1 or not claim:
                raise
            finished = finish_attempts(results, claim=False)
        self._pass_on(Handover((), finished.claims, len(results) - len(finished.left)), hand_over)
        return finished.left

    def _finish_and_begin(
        self, results: Sequence[AttemptResult], hand_over: Callable[[Handover], object]
    ) -> Sequence[AttemptResult]:
        """Do what `_finish` does, and start the next attempts in the same transaction.

        Each takes over the slot and the share of one that ended.
        """
        pointers = [(result.call.id, result.call.epoch) for result in results]
        tickets = {pointer: self._running[pointer].ticket for pointer in pointers}
        finished = finish_attempts(results, start=True)
        for result in finished.left:
            del tickets[result.call.id, result.call.epoch]
        shares: dict[int | None, list[Ticket]] = defaultdict(list)
        for ticket in tickets.values():
            shares[ticket.holds].append(ticket)
        begun = []
        for call in finished.begun:
            shares[call.organization_id].pop().holds = None
            begun.append((Ticket(call.id, call.epoch, call.organization_id), call))
        self._pass_on(Handover(begun, finished.claims, len(tickets)), hand_over)
        return finished.left

    def _pass_on(self, handover: Handover, hand_over: Callable[[Handover], object] | None) -> None:
        """Give it to `hand_over`, or publish the claims. Called in a thread, after the commit.

        A router that stops takes back `self.hand_over`, but still makes attempts that have begun.
        """
        if hand_over is not None and (handover.begun or handover.claims):
            with contextlib.suppress(RuntimeError):
                hand_over(handover)
                return
        # Nobody makes attempts that have begun: the event loop has ended. Their leases lapse.
        self.publish(handover.claims)

    async def go_on(self, ticket: Ticket, call: DeliveryAttempt) -> None:
        """Make an attempt that `hand_over` was given. Raises django.db errors if its result is not recorded."""
        try:
            await self._make(call, ticket)
        finally:
            self._release_share(ticket)

    def _release_share(self, ticket: Ticket) -> None:
        if self._shares and ticket.holds is not None:
            self._shares.release(ticket.holds)

    def publish(self, claims: Sequence[Claim]) -> None:
        """Publish the claims soon, in this order. Works from any thread."""
        self._publishing.submit(claims)

    async def _make(self, call: DeliveryAttempt, ticket: Ticket) -> None:
        running = self._running[call.id, call.epoch] = _Running(call, ticket, call.until)
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
        """Record the result, retrying while the lease lasts, and LATE_S after it was found lost.

        Recovery takes over after the lease, and the message is sent again. A late result whose message stays
        locked is recorded without its response.
        """
        pause, lock_pause = FIRST_PAUSE_S, FIRST_LOCK_PAUSE_S
        lost_at: float | None = None
        while True:
            error = None
            try:
                if await self._finishes.submit(result):
                    return
            except DatabaseError as raised:
                error = raised
            if ticks() + (pause if error else 0) >= running.until:
                lost_at = ticks() if lost_at is None else lost_at
                if result.is_last_try or (error and ticks() - lost_at >= LATE_S):
                    if error:
                        raise error
                    log.warning("group_locked", message=result.call.id, group=result.call.group_id)
                    return
                result = replace(result, is_last_try=ticks() - lost_at >= LATE_S)
            if error:
                log.warning("attempt_result_not_recorded", message=result.call.id, error=str(error).strip())
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_S)
            else:
                await asyncio.sleep(lock_pause)
                lock_pause = min(lock_pause * 2, MAX_LOCK_PAUSE_S)

    async def _keep_leases(self) -> None:
        while self._running:
            await asyncio.sleep(settings.OUTBOX_LEASE_S / 3)
            due = [r for r in self._running.values() if r.until - ticks() < settings.OUTBOX_LEASE_S * 2 / 3]
            if due:
                try:
                    await self._renew_leases(due)
                except DatabaseError as error:
                    log.warning("lease_renewal_failed", calls=len(due), error=str(error).strip())

    async def _keep_holds(self) -> None:
        """Record which pointers wait here, so that recovery neither publishes nor requeues their messages."""
        while self._waiting:
            pointers = sorted(self._waiting)
            try:
                await self._start_thread.run(functools.partial(attempts.hold_queued, pointers, 3 * HOLD_RENEWAL_S))
            except DatabaseError as error:
                log.warning("waiting_pointers_not_held", pointers=len(pointers), error=str(error).strip())
            await asyncio.sleep(HOLD_RENEWAL_S)

    async def _renew_leases(self, running: Sequence[_Running]) -> None:
        renewed = await self._start_thread.run(lambda: attempts.renew_leases([r.call for r in running]))
        for attempt in running:
            # A lost lease cannot be renewed; an attempt that has not begun yet is then not made.
            attempt.until = renewed.get((attempt.call.id, attempt.call.epoch), 0.0)


class _PublishThread:
    """Publish claims in a dedicated thread, so that a slow queue delays no result."""

    def __init__(self) -> None:
        self._thread = DatabaseThread("outbox-publish")
        self._waiting: deque[Claim] = deque()

    def submit(self, claims: Sequence[Claim]) -> None:
        """Publish the claims soon, in this order. Works from any thread."""
        if claims:
            self._waiting.extend(claims)
            self._thread.start(self._publish)

    def close(self) -> None:
        """Publish what was submitted, then close the connections."""
        self._thread.close()

    def _publish(self) -> None:
        claims: list[Claim] = []
        with contextlib.suppress(IndexError):
            while True:
                claims.append(self._waiting.popleft())
        if not claims:
            return
        try:
            publisher.publish_pointers(claims)
        except Exception:
            # The messages stay QUEUED: `publish_overdue` publishes them again.
            log.exception("pointers_not_published", messages=len(claims))
            connections.close_all()


_processors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Processor] = weakref.WeakKeyDictionary()


def shared_processor(max_calls: int | None = None) -> Processor:
    """Return the running event loop's processor; the first caller decides about `max_calls`."""
    loop = asyncio.get_running_loop()
    if loop not in _processors:
        _processors[loop] = Processor(max_calls)
    return _processors[loop]


async def close_processor() -> None:
    """Close the running loop's processor, if it has one."""
    if processor := _processors.pop(asyncio.get_running_loop(), None):
        await processor.close()
