"""Move calls from queued to their end: calls-per-second queue, ringing, conversation, hang-up."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from . import callbacks
from .calls import (
    BUSY,
    CANCELED,
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    NO_ANSWER,
    QUEUED,
    RINGING,
    Call,
    Order,
    Over,
    Signal,
)
from .clock import Timer
from .errors import ApiError
from .formats import new_sid
from .handsets import Script
from .voice import Next, Voice

if TYPE_CHECKING:
    from .world import Account, World

DAY = 86_400.0


class Queue:
    """Hold an account's waiting calls, started in order at its rate of calls per second."""

    def __init__(self) -> None:
        self.calls: deque[Call] = deque()
        self.next_slot = 0.0
        self.timer: Timer | None = None

    def wait(self, now: float, calls_per_second: float) -> float:
        """Return how long a further call would wait: simulated seconds, without the time to accept it."""
        started_s = max(0.0, self.next_slot - now)
        longest_s = started_s + len(self.calls) / calls_per_second
        if longest_s <= DAY:
            return longest_s
        return started_s + sum(not call.over for call in self.calls) / calls_per_second


class Engine:
    """Run all calls in progress: one task per live call, woken only by signals and timers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._queues: dict[str, Queue] = {}

    def queues(self) -> list[Queue]:
        return list(self._queues.values())

    def place(self, account: Account, order: Order) -> Call:
        """Queue a new outbound call.

        Raise ApiError 10004 if the account has too many, and 22005 if the call would wait for more than a day.
        """
        limit = account.config.max_concurrent
        if limit is not None and account.open_calls >= limit:
            raise ApiError(10004)
        queue = self._queues.setdefault(account.config.sid, Queue())
        if queue.wait(self.world.clock.now(), account.config.calls_per_second) > DAY:
            raise ApiError(22005)
        call = self._new(account, order, "outbound-api")
        call.set_status(QUEUED)
        call.note("created, queued")
        queue.calls.append(call)
        if queue.timer is None:
            self._plan(account, queue)
        return call

    def _new(self, account: Account, order: Order, direction: str) -> Call:
        world = self.world
        call = Call(new_sid("CA"), account.config.sid, order, world.clock, direction)
        call.created_at = world.clock.now()
        call.created_date = call.updated_date = world.clock.wall()
        call.changed = world.call_changed
        call.prices = account.config.prices
        account.open_calls += 1
        world.add_call(call)
        return call

    def _plan(self, account: Account, queue: Queue) -> None:
        while queue.calls and queue.calls[0].over:
            queue.calls.popleft()
        if not queue.calls:
            queue.timer = None
            return
        ready = queue.calls[0].created_at + self.world.timing.accept
        slot = max(ready, queue.next_slot)
        queue.timer = self.world.clock.later(
            slot - self.world.clock.now(), lambda: self._start(account, queue, slot)
        )

    def _start(self, account: Account, queue: Queue, slot: float) -> None:
        while queue.calls and queue.calls[0].over:
            queue.calls.popleft()
        if queue.calls:
            queue.next_slot = slot + 1.0 / account.config.calls_per_second
            self.begin(queue.calls.popleft())
        self._plan(account, queue)

    def begin(self, call: Call) -> None:
        """Dial: the call has reached the head of the queue."""
        world = self.world
        call.started_at, call.started_date = world.clock.now(), world.clock.wall()
        world.lines_changed(call, live=1)
        if call.started_at - call.created_at > DAY:
            call.error_code = 20429
            self.finish(call, FAILED, "simulator")
            return
        call.behaviour, rng = world.handsets.next_for(call.to)
        call.script = Script(call, call.behaviour, rng)
        call.note("dialing")
        callbacks.fire(world, call, "initiated", "initiated")
        world.spawn(self._outbound(call))

    def dial(self, parent: Call, order: Order) -> Call:
        """Start a leg of a Dial. It is not queued: the provider starts it at once."""
        call = self._new(self.world.accounts[parent.account_sid], order, "outbound-dial")
        call.parent_sid = parent.sid
        call.set_status(QUEUED)
        call.note(f"created by a Dial of {parent.sid[:10]}")
        self.begin(call)
        return call

    def end_leg(self, call: Call) -> None:
        """End a leg of a Dial: it rings no longer, or its conversation is over."""
        if call.answered_at is None:
            call.sip = 487
        self.finish(call, CANCELED if call.answered_at is None else COMPLETED, "dial")
        call.wake()

    async def _bridge(self, call: Call) -> None:
        """Let the person of a leg talk to the caller until either hangs up. Raises Over."""
        parent = self.world.calls[call.parent_sid]
        call.is_bridged = True
        call.note(f"talks to {parent.phone}")
        parent.signal("leg")
        while True:
            signal = await call.wait(None)
            if signal is not None and signal.kind in {"hang_up", "complete"}:
                raise Over(COMPLETED, signal.reason or signal.by)

    async def _outbound(self, call: Call) -> None:
        try:
            await self._ring(call)
            self.pick_up(call)
            order = call.order
            voice = Voice(self.world, call)
            if order.machine_detection and order.detects_in_background:
                voice.detect_later()
            elif order.machine_detection:
                await voice.detect()
            source = Next(order.url, order.method) if order.url else Next("", document=order.twiml)
            if order.url or not call.parent_sid:
                await voice.run(source)
            if call.parent_sid:
                await self._bridge(call)
            self.finish(call, COMPLETED, "twiml")
        except Over as over:
            self._end(call, over)
        except Exception as error:  # the simulator must survive the unexpected, and report it
            self.world.complain("simulator", f"{type(error).__name__}: {error}", call)
            call.error_code = 20500
            self.finish(call, FAILED, "simulator")

    def _end(self, call: Call, over: Over) -> None:
        call.error_code = over.error_code or call.error_code
        call.sip = over.sip or call.sip
        self.finish(call, over.status, over.by)

    async def _ring(self, call: Call) -> None:
        """Return when the call is answered. Raise Over if it ends unanswered."""
        await self._until(call, call.clock.now() + self.world.timing.dial)
        call.set_status(RINGING)
        call.note("rings")
        callbacks.fire(self.world, call, "ringing", RINGING)
        if call.script is not None:
            call.script.ringing()
        limit = self.world.patience(call, call.order.timeout + self.world.timing.ring_buffer)
        if not await self._until(call, call.clock.now() + limit):
            raise Over(NO_ANSWER, "timeout", sip=480)

    async def _until(self, call: Call, until: float) -> bool:
        """Return True if answered before that time."""
        while True:
            signal = await call.wait(until)
            if signal is None:
                return False
            if signal.kind == "answer" and call.status == RINGING:
                return True
            self._while_ringing(call, signal)

    def _while_ringing(self, call: Call, signal: Signal) -> None:
        if signal.kind == "hang_up":
            raise Over(NO_ANSWER, signal.by, sip=480)
        if signal.kind == "busy":
            raise Over(BUSY, signal.by, sip=486)
        if signal.kind == "reject":
            raise Over(BUSY, signal.by, sip=603)
        if signal.kind == "fail":
            call.reported_code = signal.error_code
            raise Over(FAILED, signal.by, error_code=signal.error_code, sip=signal.sip or 404)
        if signal.kind == "key":
            call.keys.append({"at": call.age(), "key": signal.key, "by": signal.by, "used": False})
            call.note(f"key {signal.key} pressed before the answer")

    def pick_up(self, call: Call) -> None:
        """Mark the call answered; from now on it is billed."""
        call.answered_at = call.clock.now()
        call.set_status(IN_PROGRESS)
        call.note("answered")
        callbacks.fire(self.world, call, "answered", IN_PROGRESS)
        if call.order.send_digits:
            call.note(f"sends digits {call.order.send_digits}")
        limit = self.world.patience(call, call.order.time_limit)
        call.later(limit, lambda: call.signal("complete", by="simulator", reason="time limit"))
        if call.script is not None:
            call.script.answered()

    def finish(self, call: Call, status: str, by: str, *, tell: bool = True) -> None:
        """End the call. Idempotent. `tell` False: no callback (canceled in the queue)."""
        if call.over:
            return
        world = self.world
        call.drop_timers()
        call.ended_at, call.ended_date, call.ended_by = world.clock.now(), world.clock.wall(), by
        call.set_status(status)
        world.accounts[call.account_sid].open_calls -= 1
        world.lines_changed(call, open_=-1, live=-1 if call.started_at is not None else 0)
        call.note(f"over: {status}, by {by}" + (f", error {call.error_code}" if call.error_code else ""))
        if call.parent_sid in world.calls:
            world.calls[call.parent_sid].signal("leg")
        if tell:
            callbacks.fire(world, call, "completed", status)

    def hang_up(self, call: Call, status: str) -> None:
        """End the call for the REST API: `canceled` only before the answer, `completed` always.

        A queued call ends at once, without a callback. A dialed call goes on for `hang_up` seconds: it rings, may
        be answered, and keys are heard.
        """
        delay = self.world.timing.hang_up
        if delay and call.started_at is not None:
            call.note(f"the API requests its end, which takes {delay:g} s")
            call.later(delay, lambda: self._end_for_api(call, status))
        else:
            self._end_for_api(call, status)

    def _end_for_api(self, call: Call, status: str) -> None:
        if call.answered_at is None:
            call.sip = 487
            self.finish(call, CANCELED, "api", tell=call.started_at is not None)
        elif status == COMPLETED:
            self.finish(call, COMPLETED, "api")
        else:
            call.note("cancel requested too late: the call is in progress")
        call.wake()

    def receive(self, account: Account, order: Order, behaviour: dict[str, Any]) -> Call:
        """Place a person's call to one of the account's numbers."""
        call = self._new(account, order, "inbound")
        call.started_at, call.started_date = call.created_at, call.created_date
        self.world.lines_changed(call, live=1)
        call.behaviour = behaviour
        call.script = Script(call, behaviour, self.world.rng)
        call.set_status(RINGING)
        call.note("rings our number")
        self.world.spawn(self._inbound(call))
        return call

    async def _inbound(self, call: Call) -> None:
        try:
            await asyncio.sleep(0)
            voice = Voice(self.world, call)
            await voice.run(Next(call.order.url, call.order.method))
            self.finish(call, COMPLETED if call.answered_at is not None else NO_ANSWER, "twiml")
        except Over as over:
            self._end(call, over)
        except Exception as error:
            self.world.complain("simulator", f"{type(error).__name__}: {error}", call)
            call.error_code = 20500
            self.finish(call, FAILED, "simulator")
