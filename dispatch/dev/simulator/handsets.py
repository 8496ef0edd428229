"""Simulate the people and machines that answer phones.

A behavior is a JSON object. `do` is one of
  answer     pick up after `after` seconds (default 3), then press `keys`, or say what `says` has, then perhaps
             `hang_up`
  voicemail  like answer, but by a machine: `answered_by` is `machine_start` and no key is pressed
  screen     an assistant screens the call (as Google's Call Screen does, or Apple's): it picks up after `after`
             (2), listens and presses nothing; `decide_after` (12) seconds later comes `then`: `connect` (default;
             the person presses `keys` as after an answer, perhaps hangs up by `hang_up`), `hang_up` (the person
             declined) or `voicemail`
  ring       let it ring until the caller gives up (no-answer)
  manual     wait for the control API to answer, press and hang up, at least `hand_floor` real seconds
  busy       busy after `after` (default 1)
  reject     decline after `after` (default 2): busy, SIP 603
  fail       the network fails it after `after` (default 1), with `sip` (404), and with `error_code` if given
  give_up    the other side ends the ringing after `after` (default 3): no-answer
  refuse     the provider refuses the create request with error `code` (default 21211): no call exists
  mix        one of `of`, each with a `weight`, by seeded random choice
Each key is {"key": "1"} with one trigger, and each of `says` {"text": "Yes."}; `hang_up` is a trigger alone.
Only a voice agent hears what a person says. Triggers:
  {}                      half a second after a Gather starts to listen (its prompts are over); one Gather each
  {"after": s}            s seconds after the answer
  {"heard": "press 1"}    after that was said, plus `after` seconds if given
  {"during": "press 1"}   in the middle of saying it
A number in `after` may be a pair [low, high] for a random value. Several behaviors in a list are used
one per call; the last one repeats.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .errors import CODES

if TYPE_CHECKING:
    from .calls import Call

KEYS = {
    "answer": {"do", "after", "keys", "says", "hang_up", "answered_by", "weight"},
    "voicemail": {"do", "after", "hang_up", "answered_by", "weight"},
    "screen": {"do", "after", "decide_after", "then", "keys", "hang_up", "answered_by", "weight"},
    "ring": {"do", "weight"},
    "manual": {"do", "weight"},
    "busy": {"do", "after", "weight"},
    "reject": {"do", "after", "weight"},
    "fail": {"do", "after", "error_code", "sip", "weight"},
    "give_up": {"do", "after", "weight"},
    "refuse": {"do", "code", "weight"},
    "mix": {"do", "of", "weight"},
}
AFTER = {"answer": 3.0, "voicemail": 4.0, "screen": 2.0, "busy": 1.0, "reject": 2.0, "fail": 1.0, "give_up": 3.0}
DECIDING, DECISIONS = 12.0, {"connect", "hang_up", "voicemail"}
TRIGGER_KEYS = {"after", "heard", "during"}
DTMF = set("0123456789*#ABCD")
THINKING = 0.5
DEFAULT = {"do": "answer", "after": 3, "keys": [{"key": "1"}]}


def check_behaviour(data: Any) -> dict[str, Any]:
    """Return the behavior, or raise ValueError naming the error."""
    if not isinstance(data, dict) or data.get("do") not in KEYS:
        raise ValueError(f"a behavior needs 'do', one of {sorted(KEYS)}; got {data!r}")
    unknown = set(data) - KEYS[data["do"]]
    if unknown:
        raise ValueError(f"behavior {data['do']}: unknown keys {sorted(unknown)}")
    for name in {"after", "decide_after"} & set(data):
        _check_span(data[name])
    if data.get("then", "connect") not in DECISIONS:
        raise ValueError(f"'then' is one of {sorted(DECISIONS)}; got {data['then']!r}")
    for key in data.get("keys", []):
        if not isinstance(key, dict) or not key.get("key") or set(str(key["key"])) - DTMF:
            raise ValueError(f"a key needs 'key' of {''.join(sorted(DTMF))}; got {key!r}")
        _check_trigger({k: v for k, v in key.items() if k != "key"})
    for words in data.get("says", []):
        if not isinstance(words, dict) or not isinstance(words.get("text"), str) or not words["text"]:
            raise ValueError(f"what a person says needs 'text'; got {words!r}")
        _check_trigger({k: v for k, v in words.items() if k != "text"})
    if "hang_up" in data:
        _check_trigger(data["hang_up"])
    if data["do"] == "refuse" and data.get("code", 21211) not in CODES:
        raise ValueError(f"unknown error code {data['code']}")
    if data["do"] == "mix":
        if not data.get("of"):
            raise ValueError("mix needs 'of': a list of behaviors with weights")
        for item in data["of"]:
            if check_behaviour(item)["do"] == "refuse":
                raise ValueError("refuse cannot be part of a mix: it is decided before a call exists")
    return data


def _check_span(value: Any) -> None:
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or not all(isinstance(v, int | float) and v >= 0 for v in pair):
        raise ValueError(f"'after' is seconds or [low, high]; got {value!r}")


def _check_trigger(data: Any) -> None:
    if not isinstance(data, dict) or set(data) - TRIGGER_KEYS:
        raise ValueError(f"a trigger has only {sorted(TRIGGER_KEYS)}; got {data!r}")
    if "after" in data:
        _check_span(data["after"])


def seconds(value: Any, rng: random.Random) -> float:
    """Return a fixed number, or one drawn from a pair."""
    return rng.uniform(*value) if isinstance(value, list) else float(value)


class Handsets:
    """Hold the behaviors per number.

    Randomness depends on the seed, the number and the count of its calls, so the
    interleaving of calls to different numbers makes no difference.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._plans: dict[str, list[dict[str, Any]]] = {"default": [DEFAULT]}
        self._rung: dict[str, int] = {}
        # How often each number had rung when its plan was set: a new plan starts from its first behavior.
        self._base: dict[str, int] = {}
        # A phone's own behavior before it was taken; None: the default.
        self.taken: dict[str, list[dict[str, Any]] | None] = {}

    def set(self, number: str, behaviours: Any) -> None:
        """Set the behavior of a number (or `default`). Raise ValueError and change nothing if one is invalid."""
        plan = [check_behaviour(item) for item in (behaviours if isinstance(behaviours, list) else [behaviours])]
        if not plan:
            raise ValueError("at least one behavior is required")
        self.taken.pop(number, None)
        self._plans[number] = plan
        self._base[number] = self._rung.get(number, 0)

    def forget(self, number: str) -> None:
        if number != "default":
            self._plans.pop(number, None)

    def take(self, number: str) -> None:
        """Put the phone under manual control until `release`."""
        self.taken.setdefault(number, self._plans.get(number))
        self._plans[number] = [{"do": "manual"}]

    def release(self, number: str) -> None:
        """Restore the phone's behavior from before it was taken."""
        if number not in self.taken:
            return
        plan = self.taken.pop(number)
        if plan is None:
            self._plans.pop(number, None)
        else:
            self._plans[number] = plan

    def does(self, number: str) -> str:
        """Return a phone's own behavior in one word."""
        return str((self._plans.get(number) or self._plans["default"])[-1]["do"])

    def all(self) -> dict[str, list[dict[str, Any]]]:
        return self._plans

    def next_for(self, number: str) -> tuple[dict[str, Any], random.Random]:
        """Return the behavior of this number's next call, and its random generator."""
        nth = self._rung[number] = self._rung.get(number, 0) + 1
        rng = random.Random(f"{self._seed}:{number}:{nth}")
        behaviour = self._plan(number, nth)
        while behaviour["do"] == "mix":
            weights = [float(item.get("weight", 1)) for item in behaviour["of"]]
            behaviour = rng.choices(behaviour["of"], weights)[0]
        return behaviour, rng

    def refuses(self, number: str) -> int | None:
        """Return the error code with which the next create request to this number is refused, or None."""
        behaviour = self._plan(number, self._rung.get(number, 0) + 1)
        if behaviour["do"] != "refuse":
            return None
        self._rung[number] = self._rung.get(number, 0) + 1
        return int(behaviour.get("code", 21211))

    def _plan(self, number: str, nth: int) -> dict[str, Any]:
        plan = self._plans.get(number) or self._plans["default"]
        return plan[min(nth - self._base.get(number, 0), len(plan)) - 1]


class Script:
    """Run one behavior on one call: follow the call and act at the triggers."""

    def __init__(self, call: Call, behaviour: dict[str, Any], rng: random.Random) -> None:
        self.call = call
        self.behaviour = behaviour
        self._rng = rng
        self._silent = False
        # An assistant has the call, and has been asked for a key.
        self._screens, self._asked = behaviour["do"] == "screen", False
        self._pending: list[tuple[dict[str, Any], Callable[[], None]]] = []
        for key in behaviour.get("keys", []):
            self._pending.append((key, partial(self._press, str(key["key"]))))
        for words in behaviour.get("says", []):
            self._pending.append((words, partial(call.signal, "speech", text=words["text"], by="phone")))
        if "hang_up" in behaviour:
            self._pending.append((behaviour["hang_up"], lambda: call.signal("hang_up", by="phone")))

    @property
    def machine(self) -> bool:
        return bool(self.behaviour["do"] == "voicemail" or self._screens)

    @property
    def answered_by(self) -> str:
        return str(self.behaviour.get("answered_by", "machine_start" if self.machine else "human"))

    def silence(self) -> None:
        """Cancel the planned actions of this call, because a person took the phone."""
        self._silent = True
        self._pending.clear()
        self.behaviour = {"do": "manual"}

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self.call.later(seconds, lambda: None if self._silent else act())

    def ringing(self) -> None:
        """Plan the actions for the time of ringing."""
        do = self.behaviour["do"]
        if do not in AFTER:
            return
        signal = {"voicemail": "answer", "screen": "answer", "give_up": "hang_up"}.get(do, do)
        details = {k: self.behaviour[k] for k in ("error_code", "sip") if k in self.behaviour}
        wait = seconds(self.behaviour.get("after", AFTER[do]), self._rng)
        self._later(wait, lambda: self.call.signal(signal, by="phone", **details))

    def answered(self) -> None:
        if self._screens:
            self.call.note("an assistant screens the call")
            wait = seconds(self.behaviour.get("decide_after", DECIDING), self._rng)
            self._later(wait, self._decide)
            return
        self._fire(lambda t: "after" in t and "heard" not in t, lambda t: seconds(t["after"], self._rng))

    def _decide(self) -> None:
        """End the screening: the person takes the call or declines it, or the caller may leave a message."""
        then = self.behaviour.get("then", "connect")
        self.call.note({"connect": "the person takes the call", "hang_up": "the person declines"}.get(then, then))
        if then == "hang_up":
            self.call.signal("hang_up", by="phone")
        elif then == "connect":
            self._screens = False
            self.answered()
            if self._asked:
                self.asked()

    def saying(self, text: str, duration: float) -> None:
        self._asked = False
        if self._screens:
            return
        self._fire(lambda t: "during" in t and t["during"].lower() in text.lower(), lambda t: duration / 2)

    def heard(self, text: str) -> None:
        if self._screens:
            return
        self._fire(
            lambda t: "heard" in t and t["heard"].lower() in text.lower(),
            lambda t: seconds(t.get("after", THINKING), self._rng),
        )

    def asked(self) -> None:
        if self._screens:
            self._asked = True
            return
        # One per Gather: several keys without triggers answer one question after another.
        free = next((item for item in self._pending if not TRIGGER_KEYS & set(item[0])), None)
        if free is not None:
            self._pending.remove(free)
            self._later(THINKING, free[1])

    def _fire(self, due: Callable[[dict[str, Any]], bool], wait: Callable[[dict[str, Any]], float]) -> None:
        ready = [item for item in self._pending if due(item[0])]
        self._pending = [item for item in self._pending if not due(item[0])]
        for trigger, act in ready:
            self._later(wait(trigger), act)

    def _press(self, digits: str) -> None:
        for position, digit in enumerate(digits):
            self._later(0.2 * position, partial(self.call.signal, "key", key=digit, by="phone"))
