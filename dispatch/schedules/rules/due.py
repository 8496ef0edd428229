"""Decide whether to run, skip or defer a due occurrence, and which occurrence is next.

An occurrence is due at its trigger time plus its jitter, and only that time is compared with the present and with
pauses. Jitter is at most the time between two occurrences, so they are due in the order of their numbers.

An occurrence is *missed* if no executor claimed it within `missed_after_s` of its due time, because none ran or
all were behind. The schedule's policy decides about missed occurrences:

- **all**: each is run, in order; if overlap is not allowed, one after another.
- **last**: only the latest past occurrence is run; earlier ones are recorded as missed.
- **skip**: all are recorded as missed; the schedule continues with the first occurrence that is in time.

Occurrences within a pause are recorded as skipped, regardless of the policy, because the pause was deliberate.

The overlap policy decides about an occurrence in time while an earlier run has not ended:

- **allow**: it is run in parallel.
- **skip**: it is recorded as skipped.
- **buffer_one**: it waits for the end of the earlier run. Occurrences while it waits are recorded as skipped.
- **cancel_other**: the earlier run is canceled. The occurrence waits until that run has ended, as in buffer_one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from dispatch.schedules.rules.recurrence import Timing, next_after

ALL, LAST, SKIP = "all", "last", "skip"
ALLOW, BUFFER_ONE, CANCEL_OTHER = "allow", "buffer_one", "cancel_other"
# The maximum number skipped in one step, which bounds transactions; the next step skips more.
MAX_SKIPPED = 200
# The maximum number of occurrences that pass while one waits for an earlier run, which bounds the computation.
MAX_PASSED = 5000
# A run that waits for an earlier run is checked again after this time, in case no notification arrives.
DEFERRAL = timedelta(seconds=60)
# A run that canceled earlier runs is checked again after this time: one of them may have been locked.
CANCEL_RECHECK = timedelta(seconds=5)


def no_jitter(at: datetime) -> timedelta:
    """Return the delay of an occurrence of a schedule without jitter."""
    return timedelta()


class Verdict(Enum):
    """The decision about a due run. The values are metric labels."""

    RUN = "taken"
    SKIP = "passed"
    DEFER = "waiting"


@dataclass(frozen=True)
class Policy:
    """The schedule's policy. Occurrences due before `paused_until`, the end of the last pause, are skipped."""

    missed: str
    missed_after_s: int
    overlap: str
    paused_until: datetime | None = None


@dataclass(frozen=True)
class Due:
    """A due run. `number` is its occurrence (None: manual); `is_retry` means that it was claimed before.

    `has_waited`: it was deferred because an earlier run had not ended. `jitter` returns the delay of an occurrence
    of the schedule by its trigger time.
    """

    trigger_at: datetime
    number: int | None
    is_retry: bool = False
    has_waited: bool = False
    jitter: Callable[[datetime], timedelta] = no_jitter

    def due_at(self, at: datetime) -> datetime:
        """Return when the schedule's occurrence at this trigger time is due."""
        return at + self.jitter(at)


@dataclass(frozen=True)
class SkippedOccurrence:
    """An occurrence that is not run, with its `status` (missed or skipped) and the reason."""

    trigger_at: datetime
    number: int
    status: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What to do with a due run.

    `own` is the due run itself if it is skipped; `others` are later occurrences that are skipped as well and have
    no row yet. If `advances`, `next` is (number, trigger time) of the new next run, or None if the schedule ends.
    Retries and manual runs do not advance the schedule. `cancels_others`: the schedule's other open runs are
    canceled.
    """

    verdict: Verdict
    own: SkippedOccurrence | None = None
    others: tuple[SkippedOccurrence, ...] = ()
    next: tuple[int, datetime] | None = None
    advances: bool = True
    cancels_others: bool = False


def plan_due_run(timing: Timing, policy: Policy, due: Due, now: datetime, *, has_open: bool) -> Plan:
    """Decide what to do with `due`. `has_open`: another run of the schedule was claimed and has not ended yet."""
    if due.is_retry:
        return Plan(Verdict.RUN, advances=False)
    is_blocked = has_open and policy.overlap != ALLOW
    waits = Plan(Verdict.DEFER, advances=False, cancels_others=policy.overlap == CANCEL_OTHER)
    if due.number is None:
        return waits if is_blocked else Plan(Verdict.RUN, advances=False)
    due_at = due.due_at(due.trigger_at)
    if policy.paused_until and due_at < policy.paused_until:
        return _skip_until(timing, due, "skipped", "The schedule was paused.", before=policy.paused_until)
    if policy.overlap in (BUFFER_ONE, CANCEL_OTHER) and due.has_waited:
        return waits if is_blocked else _run_after_waiting(timing, due, now)
    grace = timedelta(seconds=policy.missed_after_s)
    is_late = now - due_at > grace
    if is_late and policy.missed == SKIP:
        return _skip_until(timing, due, "missed", _lateness(due_at, now), before=now - grace)
    if is_late and policy.missed == LAST and (last := _last_before(timing, due, now)) is not None:
        return _skip_until(timing, due, "missed", _lateness(due_at, now), before=due.due_at(last))
    following = _following(timing, due)
    if is_blocked:
        if is_late or policy.overlap in (BUFFER_ONE, CANCEL_OTHER):
            return waits
        skipped = SkippedOccurrence(due.trigger_at, due.number, "skipped", "An earlier run had not ended.")
        return Plan(Verdict.SKIP, own=skipped, next=following)
    return Plan(Verdict.RUN, next=following)


def _skip_until(timing: Timing, due: Due, status: str, reason: str, *, before: datetime) -> Plan:
    """Skip `due` and all later occurrences that are due before `before`."""
    assert due.number is not None
    own = SkippedOccurrence(due.trigger_at, due.number, status, reason)
    others: list[SkippedOccurrence] = []
    number, at = due.number, due.trigger_at
    while True:
        next_at = next_after(timing, at, number)
        if next_at is None:
            return Plan(Verdict.SKIP, own=own, others=tuple(others), next=None)
        number, at = number + 1, next_at
        if due.due_at(at) >= before or len(others) == MAX_SKIPPED:
            return Plan(Verdict.SKIP, own=own, others=tuple(others), next=(number, at))
        others.append(SkippedOccurrence(at, number, status, reason))


def _run_after_waiting(timing: Timing, due: Due, now: datetime) -> Plan:
    """Run an occurrence that waited for an earlier run; skip the later ones that were due meanwhile.

    More than MAX_SKIPPED of them become one row: the last of the stretch stands for it.
    """
    assert due.number is not None
    passed: list[SkippedOccurrence] = []
    number, at = due.number, due.trigger_at
    following: tuple[int, datetime] | None = None
    for _ in range(MAX_PASSED):
        next_at = next_after(timing, at, number)
        if next_at is None:
            following = None
            break
        number, at = number + 1, next_at
        following = (number, at)
        if due.due_at(at) > now:
            break
        passed.append(SkippedOccurrence(at, number, "skipped", "An earlier run had not ended; one was waiting."))
    if following and passed and following[0] == passed[-1].number:  # the limit: the next one waits as well
        passed.pop()
    if len(passed) > MAX_SKIPPED:
        first, last = passed[0], passed[-1]
        reason = f"{len(passed):,} occurrences since {first.trigger_at:%Y-%m-%d %H:%M:%S} UTC; one was waiting."
        passed = [SkippedOccurrence(last.trigger_at, last.number, "skipped", reason)]
    return Plan(Verdict.RUN, others=tuple(passed), next=following)


def _last_before(timing: Timing, due: Due, now: datetime) -> datetime | None:
    """Return the trigger time of the last of the next few occurrences after `due` that are due now, or None."""
    assert due.number is not None
    number, at, last = due.number, due.trigger_at, None
    for _ in range(MAX_SKIPPED):
        next_at = next_after(timing, at, number)
        if next_at is None or due.due_at(next_at) > now:
            break
        number, at, last = number + 1, next_at, next_at
    return last


def _following(timing: Timing, due: Due) -> tuple[int, datetime] | None:
    assert due.number is not None
    next_at = next_after(timing, due.trigger_at, due.number)
    return (due.number + 1, next_at) if next_at else None


def _lateness(due_at: datetime, now: datetime) -> str:
    return f"Not started in time; {_duration((now - due_at).total_seconds())} late."


def _duration(seconds: float) -> str:
    for size, word in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} seconds"
