"""What to do with an occurrence that is due: run it, pass over it, or let it wait. And which one is next.

An occurrence is *missed* when nobody took it within `missed_after_s` of its time: no executor ran, or the
executors were behind. The schedule says what becomes of missed ones:

- **all**: each is run, in order; where overlap is not allowed, one after another.
- **last**: of all that are past only the last one is run; those before it are recorded as missed.
- **skip**: all are recorded as missed; it goes on with the first one that is in time.

What falls into a pause is recorded as skipped, whatever the policy: somebody wanted it not to run. An occurrence
that is in time, while an earlier run has not ended and overlap is not allowed, is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from dispatch.schedules.rules.timing import Timing, next_after

ALL, LAST, SKIP = "all", "last", "skip"
# So many are passed over in one step; the rest in the next, so that no transaction grows without limit.
MOST_PASSED = 200
# A run that waits for an earlier one is looked at again after this, should nobody wake it.
WAIT = timedelta(seconds=60)


class Verdict(Enum):
    RUN = "taken"
    LEAVE = "passed"
    WAIT = "waiting"


@dataclass(frozen=True)
class Policy:
    """`paused_until`: what lies before is skipped (the end of the last pause)."""

    missed: str
    missed_after_s: int
    may_overlap: bool
    paused_until: datetime | None = None


@dataclass(frozen=True)
class Due:
    """A run that is due. `number` of its occurrence; None: by hand. `is_retry`: its occurrence was taken
    before."""

    trigger_at: datetime
    number: int | None
    is_retry: bool = False


@dataclass(frozen=True)
class Passed:
    """An occurrence that is not run: `status` missed or skipped, and why."""

    trigger_at: datetime
    number: int
    status: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """`own`: the due run itself when it is passed over; `others`: occurrences after it that are as well, without a
    row yet. `next`: (number, trigger time) of the run that is next now; None: there is none any more (of a retry
    or a run by hand: nothing changes)."""

    verdict: Verdict
    own: Passed | None = None
    others: tuple[Passed, ...] = ()
    next: tuple[int, datetime] | None = None
    moves_on: bool = True


def plan(timing: Timing, policy: Policy, due: Due, now: datetime, *, has_open: bool) -> Plan:
    """What becomes of `due`. `has_open`: another run of the schedule was taken and has not ended."""
    if due.is_retry:
        return Plan(Verdict.RUN, moves_on=False)
    if due.number is None:
        return Plan(Verdict.WAIT if has_open and not policy.may_overlap else Verdict.RUN, moves_on=False)
    if policy.paused_until and due.trigger_at < policy.paused_until:
        return _pass(timing, due, "skipped", "It fell into a pause.", before=policy.paused_until)
    grace = timedelta(seconds=policy.missed_after_s)
    is_late = now - due.trigger_at > grace
    if is_late and policy.missed == SKIP:
        return _pass(timing, due, "missed", _told(due.trigger_at, now), before=now - grace)
    if is_late and policy.missed == LAST and (last := _last_before(timing, due, now)) is not None:
        return _pass(timing, due, "missed", _told(due.trigger_at, now), before=last)
    following = _following(timing, due)
    if has_open and not policy.may_overlap:
        if is_late:
            return Plan(Verdict.WAIT, moves_on=False)
        told = Passed(due.trigger_at, due.number, "skipped", "An earlier run had not ended.")
        return Plan(Verdict.LEAVE, own=told, next=following)
    return Plan(Verdict.RUN, next=following)


def _pass(timing: Timing, due: Due, status: str, reason: str, *, before: datetime) -> Plan:
    """Passes over `due` and all after it that lie before `before`."""
    assert due.number is not None
    own = Passed(due.trigger_at, due.number, status, reason)
    others: list[Passed] = []
    number, at = due.number, due.trigger_at
    while True:
        found = next_after(timing, at, number)
        if found is None:
            return Plan(Verdict.LEAVE, own=own, others=tuple(others), next=None)
        number, at = number + 1, found
        if at >= before or len(others) == MOST_PASSED:
            return Plan(Verdict.LEAVE, own=own, others=tuple(others), next=(number, at))
        others.append(Passed(at, number, status, reason))


def _last_before(timing: Timing, due: Due, now: datetime) -> datetime | None:
    """The last occurrence after `due` that is not in the future, or of the next few the last; None: there is
    none."""
    assert due.number is not None
    number, at, last = due.number, due.trigger_at, None
    for _ in range(MOST_PASSED):
        found = next_after(timing, at, number)
        if found is None or found > now:
            break
        number, at, last = number + 1, found, found
    return last


def _following(timing: Timing, due: Due) -> tuple[int, datetime] | None:
    assert due.number is not None
    found = next_after(timing, due.trigger_at, due.number)
    return (due.number + 1, found) if found else None


def _told(trigger_at: datetime, now: datetime) -> str:
    return f"Nobody took it in time; it was {_lasted((now - trigger_at).total_seconds())} late."


def _lasted(seconds: float) -> str:
    for size, word in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} seconds"
