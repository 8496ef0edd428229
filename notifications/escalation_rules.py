"""Decide how an alert escalates: the next recipients, their channels and the time. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

ON_DUTY, DISPATCHERS, ADMINS = "on_duty", "dispatchers", "admins"
EMAIL, SMS, VOICE, CHAT, PUSH = "email", "sms", "voice", "chat", "push"
# Channels of which only the result says whether a message went out: a chat service or a browser may refuse it.
UNCERTAIN = frozenset({CHAT, PUSH})
# After a last step that has reached people by these only, look again in this time (seconds).
CHECK_UNCERTAIN_S = 60


@dataclass(frozen=True)
class Step:
    """Reach `audience` by SMS, voice, chat channels and browsers `after_s` seconds after the previous step.

    With `spacing_s`, contact people one after another, that many seconds apart; otherwise all at once.
    """

    audience: str
    after_s: int
    spacing_s: int = 0
    sms: bool = True
    voice: bool = True
    chat: bool = True
    push: bool = True


@dataclass(frozen=True)
class Plan:
    """The escalation plan that is frozen into an alert. `return_after_s`: None in alerts of an older release."""

    repeat_s: int
    again_after_s: int
    steps: tuple[Step, ...]
    return_after_s: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the plan for `from_json`. Earlier releases read it too: their steps have no `chat` and `push`."""
        steps = [asdict(step) for step in self.steps]
        without = {
            f"without_{channel}": [place for place, step in enumerate(steps) if not step.pop(channel)]
            for channel in (CHAT, PUSH)
        }
        return {**asdict(self), "steps": steps, **without}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        without_chat, without_push = stored.get("without_chat", ()), stored.get("without_push", ())
        steps = tuple(
            Step(**step, chat=place not in without_chat, push=place not in without_push)
            for place, step in enumerate(stored["steps"])
        )
        return cls(stored["repeat_s"], stored["again_after_s"], steps, stored.get("return_after_s"))

    def wait_before(self, step: int) -> int:
        """Return the seconds before step `step` (0 is the first); past the last one, before the cycle restarts."""
        return self.steps[step].after_s if step < len(self.steps) else self.again_after_s


@dataclass(frozen=True)
class Staff:
    """The users who are available now, as ids in escalation order.

    `ways`: the channels that each user chose and that work. `can`: every channel that works for each user.
    """

    on_duty: Sequence[int] = ()
    dispatchers: Sequence[int] = ()
    admins: Sequence[int] = ()
    superusers: Sequence[int] = ()
    ways: Mapping[int, Collection[str]] = None  # type: ignore[assignment]
    can: Mapping[int, Collection[str]] = None  # type: ignore[assignment]

    def of(self, audience: str) -> Sequence[int]:
        """Return the people of one step. Superusers replace admins if there are none."""
        if audience == ADMINS:
            return self.admins or self.superusers
        return self.on_duty if audience == ON_DUTY else self.dispatchers


@dataclass(frozen=True)
class EscalationMove:
    """Reach `users` by these channels, then move to (`cycle`, `step`) and wait `wait_s` seconds.

    `at`: the step at which they are reached. `is_last_resort`: no user could be reached by a chosen channel.
    """

    users: tuple[tuple[int, tuple[str, ...]], ...]
    at: int
    cycle: int
    step: int
    wait_s: int
    is_last_resort: bool = False


def next_move(
    plan: Plan, cycle: int, step: int, staff: Staff, reached: Collection[int], *, anybody_in_cycle: bool
) -> EscalationMove:
    """Decide the next move of a due alert at (`cycle`, `step`).

    `reached`: users already reached at this step. `anybody_in_cycle`: whether anyone was reached in this cycle; a
    chat message or a push counts once its service has taken it, and what was dropped does not count.

    A step without anyone to reach is skipped immediately. A cycle that reaches nobody ends with everyone who can
    be reached by any channel, regardless of preferences, so that an alert never goes to nobody.
    """
    while step < len(plan.steps):
        current = plan.steps[step]
        left = [
            (user, ways)
            for user in staff.of(current.audience)
            if user not in reached and (ways := _ways(current, staff.ways.get(user, ())))
        ]
        if left and current.spacing_s and len(left) > 1:
            return EscalationMove(tuple(left[:1]), step, cycle, step, current.spacing_s)
        if left:
            after = step + 1
            wait_s = max(plan.wait_before(after), current.spacing_s)
            if after == len(plan.steps) and all(set(ways) <= UNCERTAIN for _, ways in left):
                # A chat service or a browser may reject a message: see then whether anyone was reached.
                return EscalationMove(tuple(left), step, cycle, after, CHECK_UNCERTAIN_S)
            if after == len(plan.steps):
                return EscalationMove(tuple(left), step, cycle + 1, 0, wait_s)
            return EscalationMove(tuple(left), step, cycle, after, wait_s)
        if reached and current.spacing_s:
            # The last person of this step was just reached, and the next step has its own delay.
            wait_s, after = plan.wait_before(step + 1), step + 1
            if after == len(plan.steps) and not anybody_in_cycle:
                break
            if after == len(plan.steps):
                return EscalationMove((), step, cycle + 1, 0, wait_s)
            return EscalationMove((), step, cycle, after, wait_s)
        step, reached = step + 1, ()
    end = len(plan.steps)
    if anybody_in_cycle:
        return EscalationMove((), end, cycle + 1, 0, plan.again_after_s)
    return EscalationMove(
        _first_reachable_group(staff), end, cycle + 1, 0, plan.again_after_s, is_last_resort=True
    )


def _ways(step: Step, chosen: Collection[str]) -> tuple[str, ...]:
    offered = ((SMS, step.sms), (VOICE, step.voice), (CHAT, step.chat), (PUSH, step.push))
    return tuple(channel for channel, is_on in offered if is_on and channel in chosen)


def _first_reachable_group(staff: Staff) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return the first group in which someone has a phone, or everyone by email, chat and push if nobody has.

    A chat channel or a browser alone does not make a group reachable: nobody may look at it.
    """
    groups = (staff.on_duty, staff.dispatchers, staff.admins, staff.superusers)
    for group in groups:
        reachable = [(user, _possible(staff, user, SMS, VOICE, CHAT, PUSH)) for user in group]
        if any(set(ways) - UNCERTAIN for _, ways in reachable):
            return tuple((user, ways) for user, ways in reachable if ways)
    everybody = dict.fromkeys(user for group in groups for user in group)
    reachable = [(user, _possible(staff, user, EMAIL, CHAT, PUSH)) for user in everybody]
    return tuple((user, ways) for user, ways in reachable if ways)


def _possible(staff: Staff, user: int, *channels: str) -> tuple[str, ...]:
    return tuple(channel for channel in channels if channel in staff.can.get(user, ()))
