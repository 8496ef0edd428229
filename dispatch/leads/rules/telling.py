"""What is said of a lead in words: why it waits, or what ended it."""

from __future__ import annotations

from datetime import datetime

from dispatch.leads.rules.words import Outcome, Reason

_WAITS = {
    Reason.STOPPED: "Calling is stopped for all organizations",
    Reason.ORGANIZATION_OFF: "Calling leads is off for this organization",
    Reason.ORGANIZATION_PAUSED: "Calling leads is paused for this organization",
    Reason.CAMPAIGN_PAUSED: "Its campaign is paused",
    Reason.OUTSIDE_WINDOW: "Outside the campaign's hours where they are, until {until}",
    Reason.HOLIDAY: "A holiday where they are, until {until}",
    Reason.STATE_RULE: "Outside the hours that the law allows where they are, until {until}",
    Reason.ATTEMPTS_24H: "Called as often as allowed in 24 hours; again at {until}",
    Reason.CUSTOMER_RATE: "The customer's rate is used up; again at {until}",
    Reason.PHONE_BUSY: "Another call to this phone is open; again at {until}",
    Reason.PRECHECK_NO_ANSWER: "The pre-check had no answer; asked again at {until}",
    Reason.PRECHECK_LATER: "The pre-check asks to wait until {until}",
    Reason.RETRY: "Tried before; again at {until}",
    Reason.NOT_ACCEPTED: "The provider could not take the call; again at {until}",
    Reason.OUTAGE: "Spread out after an outage; at {until}",
}
_ENDED = {
    Outcome.ANSWERED: "Answered",
    Outcome.NO_ANSWER: "Nobody answered",
    Outcome.BUSY: "Busy",
    Outcome.FAILED: "The call failed",
    Outcome.VOICEMAIL: "A machine answered",
    Outcome.INVALID_NUMBER: "No such number",
    Outcome.PRECHECK_FAILED: "The pre-check said that it is not wanted any more",
    Outcome.NOT_PLACED: "The provider never took the call",
    Outcome.DO_NOT_CALL: "On the do-not-call list",
    Outcome.OUTSIDE_WINDOW: "Could not be called within its hours for too long",
    Outcome.CANCELLED: "Cancelled",
    Outcome.EXHAUSTED: "Not reached in all its attempts",
    Outcome.LOST: "The end of its call was never reported",
    Outcome.DRY_RUN: "Dry run: it would have been called",
}


def waits(reason: str) -> str:
    """Why leads wait, without a time, for lists that group them: "Outside the campaign's hours where they are"."""
    if not reason:
        return "Waiting for their time"
    words = _WAITS.get(Reason(reason), reason.replace("_", " ")).split("{until}")[0]
    for end in (" ", " until", " at", " again", " asked", " to wait", ";", ","):
        words = words.removesuffix(end)
    return words


def why_it_waits(reason: str, due_at: datetime, now: datetime, until: str, line: str = "") -> str:
    """Why one lead waits. `until`: its next time as it is shown; `line`: what it waits for, if that is known."""
    if reason:
        words = _WAITS.get(Reason(reason), reason.replace("_", " "))
        return words.format(until=until) + "."
    if due_at > now:
        return f"Scheduled for {until}."
    return f"Due since {until}, waiting for {line or 'a free line'}."


def how_it_ended(outcome: str) -> str:
    """What ended a lead."""
    return _ENDED.get(Outcome(outcome), outcome) + "."
