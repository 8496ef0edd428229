"""Describe a timing, and why a run waits, in words."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim

from dispatch.core import languages
from dispatch.core.languages import mark
from dispatch.schedules.rules import spanish_timing
from dispatch.schedules.rules.recurrence import CALENDAR_MONTHS, ELAPSED_S, Timing, rule_start
from dispatch.schedules.rules.rrule_words import describe_rule, ordinal

# `waiting_for` of a run → why it waits. "concurrency" depends on the limit.
WAITS = {
    "earlier": mark("Waiting for an earlier run to end."),
    "endpoint": mark("Held: the endpoint is paused or disabled."),
    "circuit": mark("Held: the receiver's circuit breaker is open."),
    "pool paused": mark("Held: the message pool is paused."),
    "rate": mark("Held: the message pool has reached its rate limit."),
    "slot": mark("Held: the message pool has no free slot."),
    "lookup": mark("Held: the receiver's address has not been looked up yet."),
    "token_pending": mark("Held: an access token for the receiver has been requested."),
}


def describe(timing: Timing) -> str:
    """Describe a timing in words.

    Example: "Every month on the 31st, or the last day of a shorter month, at 09:00 (America/Phoenix), 12 times".
    """
    if languages.active() == languages.SPANISH:
        return spanish_timing.describe(timing)
    return f"{_when(timing)} ({timing.zone}){_limits(timing)}"


def moment(at: datetime, zone: str) -> str:
    """Format a moment in this time zone: "Mon, Dec 7, 2026, 09:00 MST"."""
    there = at.astimezone(ZoneInfo(zone))
    seconds = f"{there:%H:%M:%S}" if there.second else f"{there:%H:%M}"
    return f"{languages.date_words(there, year=True)}, {seconds} {there:%Z}"


def _when(timing: Timing) -> str:
    if timing.trigger_at is not None:
        return f"Once, {moment(timing.trigger_at, timing.zone)}"
    if timing.cron:
        words = CronSim(timing.cron, datetime(2024, 1, 1, tzinfo=UTC)).explain()
        words = words.replace("day of month", "day of the month")
        return re.sub(r"\b(\d+)(?:st|nd|rd|th)\b", lambda match: ordinal(int(match[1])), words)
    if timing.rrule:
        return describe_rule(timing.rrule, rule_start(timing))
    assert timing.every is not None
    assert timing.anchor is not None
    interval = timing.unit if timing.every == 1 else f"{timing.every} {timing.unit}s"
    there = timing.anchor.astimezone(ZoneInfo(timing.zone))
    if timing.unit in ELAPSED_S:
        return f"Every {interval}"
    clock = f"{there:%H:%M:%S}" if there.second else f"{there:%H:%M}"
    return f"Every {interval}{_day(timing, there)} at {clock}"


def _day(timing: Timing, there: datetime) -> str:
    if timing.unit == "week":
        return f" on {there:%A}"
    if timing.unit not in CALENDAR_MONTHS:
        return ""
    day = f"{there:%B} {there.day}" if timing.unit == "year" else f"the {ordinal(there.day)}"
    shorter = there.day > 28 and (timing.unit == "month" or (there.month, there.day) == (2, 29))
    return f" on {day}" + (", or the last day of a shorter month," if shorter else "")


def _limits(timing: Timing) -> str:
    if timing.trigger_at is not None:
        return ""
    limits = ""
    if timing.max_occurrences is not None:
        limits += f", {timing.max_occurrences} time{'' if timing.max_occurrences == 1 else 's'}"
    if timing.ends_at is not None:
        limits += f", until {moment(timing.ends_at, timing.zone)}"
    if timing.exclusions.names:
        limits += f", except {' and '.join(timing.exclusions.names)}"
    return limits
