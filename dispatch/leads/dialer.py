"""The dialer: an asyncio service, in any number of processes, that turns ready leads into calls.

Pullers take batches out of the rooms (`claiming.claim`, in threads with database connections of their own); each
call is then asked for in a task of its own, in its turn; what the provider answers is written in batches. Between
taking and writing a lead is held by this dialer's name, under which its heart beats."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError

from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, faults, http_client
from dispatch.core.batching import DatabaseThread
from dispatch.leads import measures, prechecks, schedule
from dispatch.leads.rules.facts import Verdict
from dispatch.leads.services import claiming, ending
from dispatch.leads.services.claiming import Claimed, Question, ToAsk
from dispatch.leads.turns import IDLE_S, NO_LINES, TROUBLE_S, Ears, Turn
from dispatch.telephony import providers
from dispatch.telephony.providers.base import Outcome, RateLimited, Rejected, Unknown
from dispatch.telephony.services import batches as telephony
from dispatch.telephony.services.batches import Answered

log = structlog.get_logger(__name__)

SETTLE_MOST = 500
# Calls that are being asked for when we are asked to stop have this long.
STOP_S = 8.0


class Dialer:
    """One dialer; any number may run, in one process too."""

    def __init__(self, name: str = "") -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._claimers = [DatabaseThread(f"leads-claim-{n}") for n in range(settings.LEADS_CLAIMERS)]
        self._settler = DatabaseThread("leads-settle")
        self._answers: list[Answered] = []
        self._answered = asyncio.Event()
        self._lates: list[float] = []  # of those asked for and not yet counted, how late they were
        self._askers = ThreadPoolExecutor(settings.LEADS_ASK_THREADS, thread_name_prefix="leads-ask")
        self._tasks: set[asyncio.Task[None]] = set()
        self._bells = [asyncio.Event() for _ in self._claimers]
        self._idle: set[int] = set()  # pullers that wait for their bell
        self._room = asyncio.Event()
        self._in_flight = 0
        # What is claimed is called, whatever is paused meanwhile: where the provider's client blocks, no claimer
        # claims more than there are threads to ask for it at once. Until one is known, it is taken for one that
        # does.
        self._blocks = True
        self._unasked: set[int] = set()  # calls
        self._turn = Turn()

    async def run(self, stopping: asyncio.Event) -> None:
        """Works until `stopping` is set, then lets what is under way end."""
        ears = Ears(asyncio.get_running_loop(), self._hear)
        ears.start()
        beating = asyncio.create_task(self._beat(stopping))
        settling = asyncio.create_task(self._settle())
        try:
            pullers = [self._pull(n, stopping) for n in range(len(self._claimers))]
            await asyncio.gather(*pullers, self._wake_at_the_end(stopping))
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    while self._in_flight:
                        await _wait(self._room, IDLE_S)
                        self._room.clear()
        finally:
            beating.cancel()
            settling.cancel()
            ears.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(beating, settling, *self._tasks, return_exceptions=True)
            await http_client.close()
            with suppress(*schedule.UNAVAILABLE):
                await asyncio.to_thread(schedule.leave, self.name)
            self._askers.shutdown(wait=False, cancel_futures=True)
            for thread in (*self._claimers, self._settler):
                await asyncio.to_thread(thread.close)

    # --- Taking

    async def _pull(self, which: int, stopping: asyncio.Event) -> None:
        thread, bell, away = self._claimers[which], self._bells[which], False
        loop = asyncio.get_running_loop()

        def committed(claimed: Claimed) -> None:
            """In the claimer's thread: the provider is asked while Redis is still being told."""
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
            except schedule.UNAVAILABLE as error:
                if not away:
                    log.warning("no leads are taken until Redis is back", error=str(error))
                away = True
                await _wait(stopping, TROUBLE_S)
                continue
            except DatabaseError as error:
                log.warning("a batch of leads could not be claimed", error=str(error).strip())
                await _wait(stopping, TROUBLE_S)
                continue
            away = False
            if not claimed.taken:
                began = time.monotonic()
                self._idle.add(which)
                await _wait(bell, claimed.wait_s)
                self._idle.discard(which)
                if claimed.why in NO_LINES:
                    measures.line_wait.observe(time.monotonic() - began)

    def _free(self) -> int:
        """How many more may be taken."""
        free = settings.LEADS_IN_FLIGHT - self._in_flight
        return min(free, settings.LEADS_ASK_THREADS - len(self._unasked)) if self._blocks else free

    def _start(self, claimed: Claimed) -> None:
        self._count(len(claimed.calls) + len(claimed.questions))
        self._unasked.update(to_ask.call_id for to_ask in claimed.calls)
        for to_ask in claimed.calls:
            self._spawn(self._ask(to_ask, claimed.accounts[to_ask.call.account_id]))
        if claimed.questions:
            self._spawn(self._question(claimed.questions))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _count(self, leads: int) -> None:
        """So many more leads are under way, or fewer."""
        self._in_flight += leads
        measures.in_flight.set(self._in_flight)
        if leads < 0:
            self._room.set()

    # --- Asking

    async def _ask(self, to_ask: ToAsk, account: ProviderAccount) -> None:
        while (early_s := (to_ask.turn_at - clock.now()).total_seconds()) > 0:
            await asyncio.sleep(early_s)
        self._lates.append(max(0.0, (clock.now() - to_ask.due_at).total_seconds()))
        faults.point("leads.ask.before")
        try:
            outcome = await self._outcome(to_ask, account)
        finally:
            self._began(to_ask.call_id)
        faults.point("leads.ask.after")
        self._answers.append(Answered(to_ask.call_id, to_ask.call, outcome))
        self._answered.set()

    async def _outcome(self, to_ask: ToAsk, account: ProviderAccount) -> Outcome:
        left_s = (to_ask.send_by - clock.now()).total_seconds()
        if left_s <= 0:  # this process slept; nothing was sent
            return RateLimited(0.0, "the claim had lapsed before it was sent")
        order = telephony.order(to_ask.call, to_ask.call_id, account.provider, left_s)
        try:
            provider = providers.for_account(account)
        except Exception as error:
            log.exception("the account's provider cannot be used", account=account.pk)
            return Rejected(False, "", str(error)[:255], "configuration")
        self._blocks = not provider.is_async
        try:
            if provider.is_async:
                self._began(to_ask.call_id)
                return await provider.place_async(order)
            loop = asyncio.get_running_loop()

            def place() -> Outcome:
                loop.call_soon_threadsafe(self._began, to_ask.call_id)
                return providers.for_account(account).place(order)

            return await loop.run_in_executor(self._askers, place)
        except Exception as error:  # a provider that breaks its word; it may have asked
            log.exception("the provider raised", account=account.pk)
            return Unknown(type(error).__name__)

    def _began(self, call_id: int) -> None:
        """The provider is being asked for that call, or will not be."""
        self._unasked.discard(call_id)
        if self._blocks:
            self._room.set()

    async def _question(self, questions: Sequence[Question]) -> None:
        """Asks the campaigns' own systems, then takes the leads up again."""
        try:
            verdicts = await asyncio.gather(
                *(prechecks.ask(question.lead, question.campaign) for question in questions),
                return_exceptions=True,
            )
            faults.point("leads.precheck.answered")
            await self._take_up(list(zip(questions, verdicts, strict=True)))
        finally:
            self._count(-len(questions))

    async def _take_up(self, asked: list[tuple[Question, Verdict | BaseException]]) -> None:
        answered, failed = [], []
        for question, verdict in asked:
            if isinstance(verdict, BaseException):
                log.error("a pre-check failed", lead_id=question.lead.id, exc_info=verdict)
                failed.append(question.pair)
            else:
                answered.append((question, verdict))
        thread = self._claimers[0]
        await thread.run(lambda: claiming.put_back(self.name, failed))
        if answered:
            try:
                self._start(await thread.run(lambda: claiming.claim_answered(self.name, answered)))
            except DatabaseError as error:
                log.warning("a batch of leads could not be claimed", error=str(error).strip())

    # --- Writing what was answered

    async def _settle(self) -> None:
        """Writes the provider's answers: what comes while one batch is written is the next."""
        while True:
            if not self._answers:
                self._answered.clear()
                await self._answered.wait()
            batch, self._answers = self._answers[:SETTLE_MOST], self._answers[SETTLE_MOST:]
            lates, self._lates = self._lates, []
            measures.observe_many(measures.due_to_dial, lates)
            await self._settle_batch(batch)
            self._count(-len(batch))

    async def _settle_batch(self, batch: list[Answered]) -> None:
        try:
            await self._settler.run(lambda: _write(batch))
        except Exception as error:
            if len(batch) == 1:  # the reconcilers of calls and claims end it
                log.exception("the outcome of a call could not be written", call=batch[0].call_id)
                return
            log.warning("a batch of outcomes failed, one by one now", calls=len(batch), error=str(error).strip())
            for answer in batch:
                await self._settle_batch([answer])

    # --- Being woken, and being seen to live

    def _hear(self, message: str) -> None:
        what, _, pool = message.partition(":")
        if what == "line":
            self._turn.line_freed(int(pool))
        if what == "one":  # a single lead: one puller is enough, and need not look for the room
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
                await asyncio.to_thread(schedule.beat, self.name)
            except schedule.UNAVAILABLE as error:
                log.debug("the heart could not beat", error=str(error))
            await _wait(stopping, settings.LEADS_HEARTBEAT_S)


def _write(answers: Sequence[Answered]) -> None:
    for other in ending.settle(answers):
        telephony.settle_one(other)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def run(stopping: asyncio.Event) -> None:
    """The dispatcher's service."""
    await Dialer().run(stopping)
