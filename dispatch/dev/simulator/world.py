"""Hold the simulator's whole state: accounts, calls, messages, handsets, faults, complaints."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from .calls import Call
from .clock import Clock, SteppedClock, Timer
from .config import AccountConfig, Config, NumberConfig, Timing
from .engine import Engine
from .faults import Faults
from .feed import Feed
from .formats import mask
from .handsets import Handsets
from .messages import Message, check_fate
from .webhooks import Attempt, Reply, Webhooks

T = TypeVar("T")


@dataclass
class Account:
    """Hold an account in use: its configuration, its numbers, its open calls, and its requests in progress."""

    config: AccountConfig
    numbers: dict[str, NumberConfig] = field(default_factory=dict)
    open_calls: int = 0
    open_requests: int = 0
    max_open_requests: int = 0
    opted_out: set[tuple[str, str]] = field(default_factory=set)
    # When the texts that wait at each number will have left.
    texts_until: dict[str, float] = field(default_factory=dict)

    def owns(self, number: str) -> bool:
        return self.config.owns_any_number or number in self.numbers


@dataclass
class Lines:
    """Count the simultaneous calls of one caller number: `open` from create to end, `live` from dialing to end."""

    open: int = 0
    live: int = 0
    max_open: int = 0
    max_live: int = 0


class World:
    """Hold state and small shared services. `reset` restores the initial configuration."""

    def __init__(
        self,
        config: Config,
        *,
        seed: int = 1,
        speed: float = 1.0,
        manual: bool = False,
        allow_remote: bool = False,
        quiet: bool = False,
    ) -> None:
        self.config = config
        self.seed = seed
        self.quiet = quiet
        self.clock: Clock = SteppedClock(speed) if manual else Clock(speed)
        self.webhooks = Webhooks(self.clock, config.timing.webhook_floor, allow_remote)
        self.timing = config.timing
        self.feed = Feed()
        self.closing = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: set[Timer] = set()
        self._clear()

    def _clear(self) -> None:
        self.set_timing(self.config.timing)
        self.rng = random.Random(self.seed)
        self.accounts = {a.sid: Account(a, {n.number: n for n in a.numbers}) for a in self.config.accounts}
        self.handsets = Handsets(self.seed)
        for number, behaviours in self.config.handsets.items():
            self.handsets.set(number, behaviours)
        self.texts = {number: check_fate(text_fate) for number, text_fate in self.config.texts.items()}
        self.faults = Faults(self.seed)
        for fault in self.config.faults:
            self.faults.add(fault)
        self.calls: dict[str, Call] = {}
        self.calls_to: dict[str, list[Call]] = defaultdict(list)
        self.messages: dict[str, Message] = {}
        self.lines: dict[str, Lines] = defaultdict(Lines)
        self.asked: dict[str, int] = defaultdict(int)
        self.created: dict[str, int] = defaultdict(int)
        self.complaints: list[dict[str, Any]] = []
        self.rejections: deque[dict[str, Any]] = deque(maxlen=1000)
        self.engine = Engine(self)

    def set_timing(self, timing: Timing) -> None:
        """Use these durations from now on. Timers that are set keep theirs."""
        self.timing = timing
        self.webhooks.floor = timing.webhook_floor

    async def reset(self) -> None:
        """Discard all calls: their tasks end and nothing more is sent for them."""
        for call in self.calls.values():
            call.drop_timers()
        await self.stop_tasks()
        self._cancel_stray_timers()
        self._clear()
        self.feed.publish({"kind": "reset"})

    def _cancel_stray_timers(self) -> None:
        for queue in self.engine.queues():
            if queue.timer is not None:
                queue.timer.cancel()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def stop_tasks(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in the background. `reset` and the end of the process cancel it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def later(self, seconds: float, fn: Callable[[], object]) -> None:
        """Set a timer that belongs to no call; `reset` cancels it."""

        def fire() -> None:
            self._timers.discard(timer)
            fn()

        timer = self.clock.later(seconds, fire)
        self._timers.add(timer)

    def patience(self, call: Call, seconds: float) -> float:
        """Return how long to wait for a person: longer for one who operates a phone while time is scaled."""
        if self.clock.manual or call.behaviour.get("do") != "manual":
            return seconds
        return max(seconds, self.timing.hand_floor * self.clock.speed)

    async def pause(self, seconds: float) -> None:
        """Wait that many real seconds, or until the simulator stops."""
        try:
            await asyncio.wait_for(self.closing.wait(), seconds)
        except TimeoutError:
            return

    async def settle(self) -> None:
        """Return when no webhook is in progress and no task can run at this moment."""
        quiet = 0
        while quiet < 8:
            if self.webhooks.in_flight:
                quiet = 0
                await self.webhooks.idle()
            await asyncio.sleep(0)
            quiet += 1

    async def post(self, call: Call, url: str, method: str, params: dict[str, str], purpose: str) -> Reply:
        """Send a webhook about a call, signed with its account's token, and record it in the call's history."""
        fault = self.faults.webhook(purpose, call.to, call.from_)
        if fault is not None and fault.kind == "webhook_lost":
            call.record(Attempt(purpose, method, url, params, 1, 0, "ct", 0.0))
            return Reply(0, error="ct")
        token = self.accounts[call.account_sid].config.auth_token
        late = fault.span() if fault is not None else 0.0
        return await self.webhooks.send(token, url, method, params, purpose, call.record, late)

    def add_call(self, call: Call) -> None:
        self.calls[call.sid] = call
        self.calls_to[call.to].append(call)
        if call.direction != "inbound":
            self.created[call.to] += 1
        self.lines_changed(call, open_=1)
        if len(self.calls) > self.config.keep_calls:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = next(iter(self.calls.values()))
        if oldest.over:
            del self.calls[oldest.sid]
            self.calls_to[oldest.to].remove(oldest)

    def lines_changed(self, call: Call, *, open_: int = 0, live: int = 0) -> None:
        lines = self.lines[call.from_]
        lines.open += open_
        lines.live += live
        lines.max_open = max(lines.max_open, lines.open)
        lines.max_live = max(lines.max_live, lines.live)

    def call_changed(self, call: Call, line: str) -> None:
        """Publish a line of a call's story."""
        self.feed.publish(
            {
                "kind": "call",
                "sid": call.sid,
                "status": call.status,
                "phone": call.phone,
                "to": call.to,
                "line": line,
            }
        )
        self.log(f"{call.sid[:10]} {mask(call.from_)} > {mask(call.to)} {line}")

    def complain(self, about: str, text: str, call: Call | None = None) -> None:
        """Record a mistake of the user's code. Tests assert there are none."""
        entry = {"about": about, "text": text, "call": call.sid if call is not None else None}
        self.complaints.append(entry)
        self.feed.publish({"kind": "complaint", **entry})
        self.log(f"COMPLAINT {about}: {text}")

    def log(self, line: str) -> None:
        if not self.quiet:
            print(f"simulator {self.clock.now():10.2f}  {line}", file=sys.stderr, flush=True)  # noqa: T201

    def lines_json(self) -> dict[str, dict[str, int]]:
        return {number: asdict(lines) for number, lines in self.lines.items()}
