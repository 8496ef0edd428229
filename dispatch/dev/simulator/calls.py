"""Define a simulated call: its create request, state and full history."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .clock import Clock, Timer
from .config import Prices
from .formats import display, price, rfc2822
from .webhooks import Attempt

if TYPE_CHECKING:
    from .handsets import Script

QUEUED, RINGING, IN_PROGRESS = "queued", "ringing", "in-progress"
COMPLETED, BUSY, FAILED, NO_ANSWER, CANCELED = "completed", "busy", "failed", "no-answer", "canceled"
TERMINAL = {COMPLETED, BUSY, FAILED, NO_ANSWER, CANCELED}
API_VERSION = "2010-04-01"
SUBRESOURCES = (
    "events",
    "notifications",
    "payments",
    "recordings",
    "siprec",
    "streams",
    "transcriptions",
    "user_defined_message_subscriptions",
    "user_defined_messages",
)


@dataclass(frozen=True)
class Order:
    """A create request. Times are simulated seconds; an empty string means not given."""

    to: str
    from_: str
    url: str = ""
    method: str = "POST"
    twiml: str = ""
    fallback_url: str = ""
    fallback_method: str = "POST"
    status_callback: str = ""
    status_callback_method: str = "POST"
    events: frozenset[str] = frozenset({"completed"})
    timeout: int = 60
    time_limit: int = 14_400
    machine_detection: str = ""
    detects_in_background: bool = False
    detection_callback: str = ""
    detection_callback_method: str = "POST"
    send_digits: str = ""
    verstat: str = ""


@dataclass(frozen=True)
class Signal:
    """Describe an event in a call.

    `kind` is answer, busy, reject, fail, hang_up, key, speech, cancel, complete, redirect, fetched, leg or agent.
    `by` is phone, api, control or simulator. `text`: what the person says.
    """

    kind: str
    by: str = "simulator"
    key: str = ""
    error_code: int = 0
    sip: int = 0
    reason: str = ""
    text: str = ""


class Over(Exception):
    """The call ends or has ended with this status; `by` is the side that ended it."""

    def __init__(self, status: str, by: str, *, error_code: int = 0, sip: int = 0) -> None:
        self.status, self.by, self.error_code, self.sip = status, by, error_code, sip
        super().__init__(status)


@dataclass
class Call:
    """A call. Times named `*_at` are simulated seconds; those named `*_date` are for dates in responses."""

    sid: str
    account_sid: str
    order: Order
    clock: Clock
    direction: str = "outbound-api"
    status: str = QUEUED
    created_at: float = 0.0
    created_date: float = 0.0
    updated_date: float = 0.0
    started_at: float | None = None
    started_date: float | None = None
    answered_at: float | None = None
    ended_at: float | None = None
    ended_date: float | None = None
    answered_by: str = ""
    ended_by: str = ""
    error_code: int = 0
    reported_code: int = 0  # status callbacks carry it; the provider documents only SipResponseCode
    sip: int = 0
    sequence: int = 0
    asking: bool = False
    behaviour: dict[str, Any] = field(default_factory=dict)
    script: Script | None = None
    prices: Prices = field(default_factory=Prices)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    plays: list[dict[str, Any]] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    webhooks: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    changed: Callable[[Call, str], None] = lambda call, line: None
    next_document: tuple[str, str, str] | None = None
    parent_sid: str = ""
    is_bridged: bool = False  # a leg of a Dial whose person talks to the caller
    outbox: deque[Any] = field(default_factory=deque)
    held: list[Any] = field(default_factory=list)
    delivered: dict[str, asyncio.Event] = field(default_factory=dict)
    _signals: deque[Signal] = field(default_factory=deque)
    _wake: asyncio.Future[None] | None = None
    _timers: set[Timer] = field(default_factory=set)

    @property
    def to(self) -> str:
        return self.order.to

    @property
    def from_(self) -> str:
        return self.order.from_

    @property
    def over(self) -> bool:
        return self.status in TERMINAL

    @property
    def phone(self) -> str:
        """Return the person's number: the called one, or the caller of an inbound call."""
        return self.from_ if self.direction == "inbound" else self.to

    @property
    def duration(self) -> int:
        """Return whole seconds from answer to end, rounded up; 0 if never answered."""
        if self.answered_at is None:
            return 0
        end = self.clock.now() if self.ended_at is None else self.ended_at
        return max(1, -int(-(end - self.answered_at) // 1))

    def age(self) -> float:
        return round(self.clock.now() - self.created_at, 3)

    def note(self, line: str) -> None:
        """Append a line to the story and notify listeners."""
        self.story.append(f"{self.age():8.2f}s  {line}")
        self.updated_date = self.clock.wall()
        self.changed(self, line)

    def set_status(self, status: str) -> None:
        self.status = status
        self.statuses.append({"at": self.age(), "status": status})

    def signal(self, kind: str, **details: Any) -> None:
        """Queue a signal. The call's task handles signals in order."""
        self._signals.append(Signal(kind, **details))
        self._poke()

    async def wait(self, until: float | None) -> Signal | None:
        """Return the next signal, or None once the clock reaches `until` (simulated; None: no limit).

        Raise Over once the call has ended.
        """
        while not self._signals:
            if self.over:
                break
            left = None if until is None else until - self.clock.now()
            if left is not None and left <= 0:
                return None
            self._wake = asyncio.get_running_loop().create_future()
            timer = None if until is None else self.clock.at(until, self._poke)
            try:
                await self._wake
            finally:
                self._wake = None
                if timer is not None:
                    timer.cancel()
        if self.over:
            raise Over(self.status, self.ended_by)
        return self._signals.popleft()

    def wake(self) -> None:
        """Wake the waiting task because the call has ended."""
        self._poke()

    def _poke(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def later(self, seconds: float, fn: Callable[[], None]) -> None:
        """Set a timer that is canceled with the call."""

        def fire() -> None:
            self._timers.discard(timer)
            fn()

        timer = self.clock.later(seconds, fire)
        self._timers.add(timer)

    def drop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def record(self, attempt: Attempt) -> None:
        """Record a webhook attempt."""
        self.webhooks.append({"at": self.age(), **vars(attempt)})
        answer = str(attempt.status) if attempt.status else f"no answer ({attempt.error})"
        about = attempt.params.get("CallStatus", "") if attempt.purpose == "status" else ""
        again = f", attempt {attempt.number}" if attempt.number > 1 else ""
        path = urlsplit(attempt.url).path
        self.note(f"webhook {attempt.purpose} {about}{' ' if about else ''}to {path}: {answer}{again}")

    def resource(self) -> dict[str, Any]:
        """Return the call as the provider's REST API shows it."""
        uri = f"/{API_VERSION}/Accounts/{self.account_sid}/Calls/{self.sid}"
        answered = self.answered_at is not None
        return {
            "sid": self.sid,
            "account_sid": self.account_sid,
            "to": self.to,
            "to_formatted": display(self.to),
            "from": self.from_,
            "from_formatted": display(self.from_),
            "phone_number_sid": None,
            "parent_call_sid": self.parent_sid or None,
            "status": self.status,
            "direction": self.direction,
            "start_time": rfc2822(self.started_date),
            "end_time": rfc2822(self.ended_date),
            "duration": str(self.duration) if self.over and answered else ("0" if self.over else None),
            "price": self.price(),
            "price_unit": self.prices.currency,
            "answered_by": self.answered_by or None,
            "api_version": API_VERSION,
            "forwarded_from": None,
            "group_sid": None,
            "caller_name": None,
            "queue_time": str(int(1000 * ((self.started_at or self.created_at) - self.created_at))),
            "stir_verstat": self.order.verstat or None,
            "trunk_sid": None,
            "date_created": rfc2822(self.created_date),
            "date_updated": rfc2822(self.updated_date),
            "uri": f"{uri}.json",
            "subresource_uris": {name: f"{uri}/{_camel(name)}.json" for name in SUBRESOURCES},
        }

    def price(self) -> str | None:
        """Return the price of an answered call some time after its end. Other calls have none."""
        if self.answered_at is None or self.ended_at is None:
            return None
        if self.clock.now() < self.ended_at + self.prices.after:
            return None
        return price(self.prices.per_minute, -(-self.duration // 60))

    def history(self) -> dict[str, Any]:
        """Return the call as the control API shows it; `at` is simulated seconds since it was created."""
        return {
            "sid": self.sid,
            "account_sid": self.account_sid,
            "to": self.to,
            "from": self.from_,
            "phone": self.phone,
            "direction": self.direction,
            "created_date": self.created_date,
            "status": self.status,
            "over": self.over,
            "asking": self.asking,
            "answered_by": self.answered_by,
            "ended_by": self.ended_by,
            "error_code": self.error_code,
            "sip": self.sip,
            "duration": self.duration,
            "behaviour": self.behaviour,
            "statuses": self.statuses,
            "said": self.said,
            "plays": self.plays,
            "keys": self.keys,
            "webhooks": self.webhooks,
            "problems": self.problems,
            "story": self.story,
        }


def _camel(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))
