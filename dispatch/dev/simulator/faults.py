"""Inject faults: errors, delays and losses.

A fault is a JSON object with `kind`; how often it applies (`times`: null for unlimited, default 1; `probability`,
default 1; `skip`: the number of matches to ignore first); filters (`to`, `from`, `event`, `purpose`, and for
requests `account`: the SID); and `seconds` for delays.

Requests (`on`: "create" (default), "message", "update", "fetch", "list", "account" or "any"; seconds are real):
  refuse          the error response of `code` (20003), with its status: a wrong token, a suspended account
  rate_limit      429, code 20429; with Retry-After only if `seconds` is given
  concurrency     code 10004
  error_500, error_503   nothing was created; with "creates": true it was, and the error hides it
  timeout_before  the connection is held `seconds` (30), then closed; nothing was created
  timeout_after   created, then as above
  reset_before, reset_after   the connection is reset at once
  slow            created; the response comes `seconds` (1) later
  early           created; the response waits until the callback of `event` ("ringing") was delivered
Listing (simulated seconds):
  list_lag        calls are listed only `seconds` (30) after they were created
Status callbacks of calls and messages (`event`: initiated, ringing, answered, completed; detection, for the result
of detection in the background, which is never reordered; or the message's status):
  lose, duplicate, delay (`seconds`, 5, simulated), reorder (it arrives after the next one), overlap (it is sent
  at once, although the one before was not answered yet)
Texts (`to`, `from`):
  carrier_filter  a carrier does not deliver the text: undelivered with `code` (30007; 30006 for a landline ...)
Any webhook (`purpose`: twiml, gather, redirect, fallback, status, sms, ...):
  webhook_lost    never sent, as if the server were unreachable
  webhook_slow    the server handles each attempt, and its answer arrives `seconds` (5, simulated) late
"""

from __future__ import annotations

import itertools
import random
from dataclasses import asdict, dataclass
from typing import Any

from .config import build

REQUEST_KINDS = {
    "refuse",
    "rate_limit",
    "concurrency",
    "error_500",
    "error_503",
    "timeout_before",
    "timeout_after",
    "reset_before",
    "reset_after",
    "slow",
    "early",
}
WEBHOOK_KINDS = {"webhook_lost", "webhook_slow"}
CALLBACK_KINDS = {"lose", "duplicate", "delay", "reorder", "overlap"}
TEXT_KINDS = {"carrier_filter"}
KINDS = REQUEST_KINDS | CALLBACK_KINDS | {"list_lag"} | WEBHOOK_KINDS | TEXT_KINDS
REQUESTS = {"create", "message", "update", "fetch", "list", "account", "any"}
SECONDS = {
    "timeout_before": 30.0,
    "timeout_after": 30.0,
    "slow": 1.0,
    "list_lag": 30.0,
    "delay": 5.0,
    "webhook_slow": 5.0,
}
CODES = {"refuse": 20003, "carrier_filter": 30007}


@dataclass
class Fault:
    """Describe one active fault. `hits` counts how often it was applied."""

    kind: str
    times: int | None = 1
    probability: float = 1.0
    skip: int = 0
    on: str = "create"
    to: str | None = None
    from_: str | None = None
    event: str | None = None
    purpose: str | None = None
    account: str | None = None
    seconds: float | None = None
    creates: bool = False
    code: int = 0
    id: int = 0
    hits: int = 0

    def span(self) -> float:
        return SECONDS.get(self.kind, 1.0) if self.seconds is None else self.seconds

    def json(self) -> dict[str, Any]:
        data = asdict(self)
        data["from"] = data.pop("from_")
        return data


class Faults:
    """Hold the active faults, in the order in which they were set."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"{seed}:faults")
        self._faults: list[Fault] = []
        self._ids = itertools.count(1)

    def add(self, data: Any) -> Fault:
        """Set a fault. Raise ValueError naming the error."""
        if not isinstance(data, dict):
            raise ValueError("a fault must be an object")
        fault = build(Fault, {("from_" if k == "from" else k): v for k, v in data.items()}, "fault")
        if fault.kind not in KINDS:
            raise ValueError(f"unknown fault {fault.kind!r}; known are {sorted(KINDS)}")
        if fault.on not in REQUESTS:
            raise ValueError(f"unknown request {fault.on!r}; known are {sorted(REQUESTS)}")
        fault.code = fault.code or CODES.get(fault.kind, 0)
        if fault.kind == "early" and fault.event is None:
            fault.event = "ringing"  # the first that Dispatch asks for
        fault.id = next(self._ids)
        self._faults.append(fault)
        return fault

    def remove(self, fault_id: int | None = None) -> None:
        """Remove one fault by id, or all."""
        self._faults = [f for f in self._faults if fault_id is not None and f.id != fault_id]

    def all(self) -> list[Fault]:
        return self._faults

    def request(self, on: str, to: str = "", from_: str = "", account: str = "") -> Fault | None:
        """Return the fault that applies to this request, if any, and count its use."""

        def is_meant(fault: Fault) -> bool:
            return fault.kind in REQUEST_KINDS and fault.on in (on, "any") and fault.account in (None, account)

        return self._take(is_meant, to, from_)

    def callback(self, event: str, to: str, from_: str) -> Fault | None:
        return self._take(lambda f: f.kind in CALLBACK_KINDS and f.event in (None, event), to, from_)

    def webhook(self, purpose: str, to: str, from_: str) -> Fault | None:
        return self._take(lambda f: f.kind in WEBHOOK_KINDS and f.purpose in (None, purpose), to, from_)

    def text(self, to: str, from_: str) -> Fault | None:
        """Return the fault that stops this text on its way, if any."""
        return self._take(lambda f: f.kind in TEXT_KINDS, to, from_)

    def list_lag(self, to: str, from_: str) -> float:
        """Return the simulated seconds that a call stays unlisted. This fault stays until removed."""
        spans = [f.span() for f in self._faults if f.kind == "list_lag" and _about(f, to, from_)]
        return max(spans, default=0.0)

    def _take(self, wanted: Any, to: str, from_: str) -> Fault | None:
        for fault in self._faults:
            if not wanted(fault) or not _about(fault, to, from_):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            if fault.probability < 1 and self._rng.random() >= fault.probability:
                continue
            fault.hits += 1
            if fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
            return fault
        return None


def _about(fault: Fault, to: str, from_: str) -> bool:
    return fault.to in (None, to) and fault.from_ in (None, from_)
