"""Decide whether to run, skip or defer a due occurrence, and which occurrence is next.

An occurrence is due at its trigger time plus its jitter, and only that time is compared with the present and with
pauses. Jitter is at most the time between two occurrences, so they are due in the order of their numbers.

An occurrence is *missed* if no executor claimed it within `missed_after_s` of its due time, because none ran or
all were behind. The schedule's policy decides about missed occurrences:

- **all**: each is run, in order; if overlap is not allowed, one after another.
- **last**: only the latest past occurrence is run; earlier ones are recorded as missed.
- **skip**: all are recorded as missed; the schedule continues with the first occurrence that is in time.

Occurrences that exclusion calendars exclude do not exist. If a calendar changed after the time of the next run was
computed, that run is recorded as skipped.

Occurrences within a pause are recorded as skipped, regardless of the policy, because the pause was deliberate.

Consecutive occurrences that do not run for the same reason are one row, with their number and the last of them.

The overlap policy decides about an occurrence in time while an earlier run has not ended:

- **allow**: it is run in parallel.
- **skip**: it is recorded as skipped.
- **buffer_one**: it waits for the end of the earlier run. Occurrences while it waits are recorded as skipped.
- **cancel_other**: the earlier run is canceled. The occurrence waits until that run has ended, as in buffer_one.

Manual runs wait or cancel in the same way, but those of past occurrences only wait: otherwise each run of a range
would cancel the one before it. A failed run that is retried manually only waits, too. Automatic retries do not
wait: until the last of them, their run has not ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from dispatch.core.languages import mark
from dispatch.schedules.rules.recurrence import Timing, next_after
from dispatch.schedules.rules.stretches import Stretch, measure_stretch

ALL, LAST, SKIP = "all", "last", "skip"
ALLOW, BUFFER_ONE, CANCEL_OTHER = "allow", "buffer_one", "cancel_other"
# A run that waits for an earlier run is checked again after this time, in case no notification arrives.
DEFERRAL = timedelta(seconds=60)
_INSTANT = timedelta(microseconds=1)
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

    `has_waited`: it was deferred because an earlier run had not ended, or a user retries it. `is_backfill`: it is
    a manual run of a past occurrence. `jitter` returns the delay of an occurrence of the schedule by its trigger
    time.
    """

    trigger_at: datetime
    number: int | None
    is_retry: bool = False
    has_waited: bool = False
    is_backfill: bool = False
    jitter: Callable[[datetime], timedelta] = no_jitter

    def due_at(self, at: datetime) -> datetime:
        """Return when the schedule's occurrence at this trigger time is due."""
        return at + self.jitter(at)


@dataclass(frozen=True)
class Skipped:
    """Consecutive occurrences that are not run, with their `status` (missed or skipped) and the reason.

    `trigger_at` and `number` are the first one's. There are `count`, up to the one at `last_at`.
    """

    trigger_at: datetime
    number: int
    status: str
    reason: str
    count: int
    last_at: datetime

    @property
    def last_number(self) -> int:
        """Return the number of the last one."""
        return self.number + self.count - 1


@dataclass(frozen=True)
class Plan:
    """What to do with a due run.

    `own` is the stretch that begins with the due run if it is skipped; `passed` is a stretch of later occurrences
    that are skipped while the due run runs, and have no row yet. If `advances`, `next` is (number, trigger time)
    of the new next run, or None if the schedule ends.
    Retries and manual runs do not advance the schedule. `cancels_others`: the schedule's other open runs are
    canceled.
    """

    verdict: Verdict
    own: Skipped | None = None
    passed: Skipped | None = None
    next: tuple[int, datetime] | None = None
    advances: bool = True
    cancels_others: bool = False


def plan_due_run(timing: Timing, policy: Policy, due: Due, now: datetime, *, has_open: bool) -> Plan:
    """Decide what to do with `due`. `has_open`: another run of the schedule was claimed and has not ended yet."""
    is_blocked = has_open and policy.overlap != ALLOW
    if due.is_retry:
        return Plan(Verdict.DEFER if due.has_waited and is_blocked else Verdict.RUN, advances=False)
    cancels_others = policy.overlap == CANCEL_OTHER and not due.is_backfill
    waits = Plan(Verdict.DEFER, advances=False, cancels_others=cancels_others)
    if due.number is None:
        return waits if is_blocked else Plan(Verdict.RUN, advances=False)
    due_at = due.due_at(due.trigger_at)
    if timing.exclusions.end_at(due.trigger_at) is not None:  # since its time was computed
        excluded = Stretch(1, due.trigger_at, None, (_following(timing, due) or (0, None))[1])
        return _skip(due, "skipped", mark("Its time is excluded by a calendar."), excluded)
    if policy.paused_until and due_at < policy.paused_until:
        return _skip_until(timing, due, "skipped", mark("The schedule was paused."), before=policy.paused_until)
    if policy.overlap in (BUFFER_ONE, CANCEL_OTHER) and due.has_waited:
        return waits if is_blocked else _run_after_waiting(timing, due, now)
    grace = timedelta(seconds=policy.missed_after_s)
    is_late = now - due_at > grace
    if is_late and policy.missed == SKIP:
        return _skip_until(timing, due, "missed", _lateness(due_at, now), before=now - grace)
    if is_late and policy.missed == LAST:
        late = _measure(timing, due, now + _INSTANT)
        if late.count > 1:
            return _skip(due, "missed", _lateness(due_at, now), late.without_last())
    following = _following(timing, due)
    if is_blocked:
        if is_late or policy.overlap in (BUFFER_ONE, CANCEL_OTHER):
            return waits
        skipped = Skipped(
            due.trigger_at, due.number, "skipped", mark("An earlier run had not ended."), 1, due.trigger_at
        )
        return Plan(Verdict.SKIP, own=skipped, next=following)
    return Plan(Verdict.RUN, next=following)


def _skip_until(timing: Timing, due: Due, status: str, reason: str, *, before: datetime) -> Plan:
    """Skip `due` and all later occurrences that are due before `before`."""
    return _skip(due, status, reason, _measure(timing, due, before))


def _skip(due: Due, status: str, reason: str, stretch: Stretch) -> Plan:
    assert due.number is not None
    own = Skipped(due.trigger_at, due.number, status, reason, stretch.count, stretch.last)
    following = (own.last_number + 1, stretch.following) if stretch.following else None
    return Plan(Verdict.SKIP, own=own, next=following)


def _run_after_waiting(timing: Timing, due: Due, now: datetime) -> Plan:
    """Run an occurrence that waited for an earlier run; skip the later ones that were due meanwhile."""
    assert due.number is not None
    following = _following(timing, due)
    if following is None or due.due_at(following[1]) > now:
        return Plan(Verdict.RUN, next=following)
    number, first = following
    stretch = measure_stretch(timing, first, number, now + _INSTANT, due.due_at)
    reason = mark("An earlier run had not ended; one was waiting.")
    passed = Skipped(first, number, "skipped", reason, stretch.count, stretch.last)
    following = (passed.last_number + 1, stretch.following) if stretch.following else None
    return Plan(Verdict.RUN, passed=passed, next=following)


def _measure(timing: Timing, due: Due, until: datetime) -> Stretch:
    """Measure the stretch from `due` to the last occurrence that is due before `until`."""
    assert due.number is not None
    return measure_stretch(timing, due.trigger_at, due.number, until, due.due_at)


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
