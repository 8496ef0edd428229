"""How an alert escalates: who is reached next, by what, and when it goes on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

ON_DUTY, DISPATCHERS, ADMINS = "on_duty", "dispatchers", "admins"
EMAIL, SMS, VOICE = "email", "sms", "voice"


@dataclass(frozen=True)
class Step:
    """Reaches `audience` by SMS and voice `after_s` seconds after the step before; with `spacing_s` one person
    after another, so many seconds apart, else all at once."""

    audience: str
    after_s: int
    spacing_s: int = 0
    sms: bool = True
    voice: bool = True


@dataclass(frozen=True)
class Plan:
    """What is frozen into an alert."""

    repeat_s: int
    again_after_s: int
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        steps = tuple(Step(**step) for step in stored["steps"])
        return cls(stored["repeat_s"], stored["again_after_s"], steps)

    def wait_before(self, step: int) -> int:
        """Seconds before step `step` (0 is the first); past the last one, before all begins again."""
        return self.steps[step].after_s if step < len(self.steps) else self.again_after_s


@dataclass(frozen=True)
class Staff:
    """Who is there now: user ids in the order in which they are to be reached. `ways`: by which channels each has
    chosen to be reached, and can be; `can`: by which they could be at all."""

    on_duty: Sequence[int] = ()
    dispatchers: Sequence[int] = ()
    admins: Sequence[int] = ()
    superusers: Sequence[int] = ()
    ways: Mapping[int, Collection[str]] = None  # type: ignore[assignment]
    can: Mapping[int, Collection[str]] = None  # type: ignore[assignment]

    def of(self, audience: str) -> Sequence[int]:
        """The people of one step; superusers stand in for admins who are not there."""
        if audience == ADMINS:
            return self.admins or self.superusers
        return self.on_duty if audience == ON_DUTY else self.dispatchers


@dataclass(frozen=True)
class Move:
    """Reach `users` by these channels; then stand at (`cycle`, `step`) and go on in `wait_s`. `at` is the step at
    which they were reached. `is_last_resort`: nobody could be reached as they wish."""

    users: tuple[tuple[int, tuple[str, ...]], ...]
    at: int
    cycle: int
    step: int
    wait_s: int
    is_last_resort: bool = False


def next_move(
    plan: Plan, cycle: int, step: int, staff: Staff, reached: Collection[int], *, anybody_in_cycle: bool
) -> Move:
    """What an alert does that stands at (`cycle`, `step`) and is due. `reached`: who was, at this very step;
    `anybody_in_cycle`: whether anybody was in this cycle.

    A step without anybody to reach is passed over at once. A cycle that reaches nobody ends with whoever can be
    reached at all, whatever they chose: never nobody."""
    while step < len(plan.steps):
        one = plan.steps[step]
        left = [
            (user, ways)
            for user in staff.of(one.audience)
            if user not in reached and (ways := _ways(one, staff.ways.get(user, ())))
        ]
        if left and one.spacing_s and len(left) > 1:
            return Move(tuple(left[:1]), step, cycle, step, one.spacing_s)
        if left:
            after = step + 1
            wait_s = max(plan.wait_before(after), one.spacing_s)
            if after == len(plan.steps):
                return Move(tuple(left), step, cycle + 1, 0, wait_s)
            return Move(tuple(left), step, cycle, after, wait_s)
        if reached and one.spacing_s:
            # The last of them was reached a moment ago, and the next step has its own wait.
            wait_s, after = plan.wait_before(step + 1), step + 1
            if after == len(plan.steps):
                return Move((), step, cycle + 1, 0, wait_s)
            return Move((), step, cycle, after, wait_s)
        step, reached = step + 1, ()
    end = len(plan.steps)
    if anybody_in_cycle:
        return Move((), end, cycle + 1, 0, plan.again_after_s)
    return Move(_whoever_can(staff), end, cycle + 1, 0, plan.again_after_s, is_last_resort=True)


def _ways(step: Step, chosen: Collection[str]) -> tuple[str, ...]:
    offered = [channel for channel, is_on in ((SMS, step.sms), (VOICE, step.voice)) if is_on]
    return tuple(channel for channel in offered if channel in chosen)


def _whoever_can(staff: Staff) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The first of the groups in which somebody has a phone, else everybody by e-mail."""
    groups = (staff.on_duty, staff.dispatchers, staff.admins, staff.superusers)
    for group in groups:
        found = [(user, tuple(c for c in (SMS, VOICE) if c in staff.can.get(user, ()))) for user in group]
        if found := [(user, ways) for user, ways in found if ways]:
            return tuple(found)
    everybody = dict.fromkeys(user for group in groups for user in group)
    return tuple((user, (EMAIL,)) for user in everybody if EMAIL in staff.can.get(user, ()))
