"""Describe leads in plain text: why they wait, or why they ended."""

from __future__ import annotations

from datetime import datetime

from dispatch.leads.rules.states import WOULD_CALL, Outcome, Reason

_WAITS = {
    Reason.STOPPED: "Calling is stopped for all organizations",
    Reason.ORGANIZATION_OFF: "Lead calling is off for this organization",
    Reason.ORGANIZATION_PAUSED: "Lead calling is paused for this organization",
    Reason.CAMPAIGN_PAUSED: "Its campaign is paused",
    Reason.NO_SCRIPT: "Its campaign has no script",
    Reason.DRY_RUN: "Simulated in the dry run; will be called when you go live",
    Reason.OUTSIDE_WINDOW: "Outside the campaign's hours at the person's location, until {until}",
    Reason.HOLIDAY: "Holiday at the person's location, until {until}",
    Reason.STATE_RULE: "Outside the legal calling hours at the person's location, until {until}",
    Reason.CONTACT_HOURS: "Outside the hours in which the person wants calls, until {until}",
    Reason.ATTEMPTS_24H: "Reached the maximum number of calls in 24 hours; next call at {until}",
    Reason.CUSTOMER_RATE: "Reached the customer's rate limit; next call at {until}",
    Reason.PHONE_BUSY: "Another call to this phone is in progress; next try at {until}",
    Reason.PRECHECK_NO_ANSWER: "The pre-check didn't respond; next try at {until}",
    Reason.PRECHECK_LATER: "The pre-check asked Dispatch to wait until {until}",
    Reason.RETRY: "Called without success; next call at {until}",
    Reason.CALL_BACK: "The person asked to be called back; next call at {until}",
    Reason.NOT_ACCEPTED: "The phone provider couldn't accept the call; next try at {until}",
    Reason.OUTAGE: "Delayed after an outage; next call at {until}",
    Reason.ERROR: "An error prevented the call; next try at {until}",
}
_ENDED = {
    Outcome.ANSWERED: "Answered",
    Outcome.NO_ANSWER: "No answer",
    Outcome.BUSY: "Busy",
    Outcome.FAILED: "The call failed",
    Outcome.VOICEMAIL: "Voicemail",
    Outcome.INVALID_NUMBER: "Invalid number",
    Outcome.PRECHECK_FAILED: "The pre-check reported that the call is no longer wanted",
    Outcome.NOT_PLACED: "The phone provider never accepted the call",
    Outcome.DO_NOT_CALL: "On the do-not-call list",
    Outcome.OUTSIDE_WINDOW: "Not called: outside the permitted hours for too long",
    Outcome.CANCELLED: "Canceled",
    Outcome.EXHAUSTED: "Not reached in any attempt",
    Outcome.LOST: "The phone provider never reported the end of the call",
    Outcome.NO_CONSENT: "Not called: no valid consent for the campaign's purpose is recorded",
    Outcome.DRY_RUN: "Dry run: would have been called",
}


def describe_waiting(reason: str) -> str:
    """Describe a reason without its time, for grouped lists: "Outside the campaign's hours"."""
    if not reason:
        return "Scheduled for later"
    text = _WAITS.get(Reason(reason), reason.replace("_", " ")).split("{until}")[0]
    for suffix in (" ", " until", " at", ",", "; next call", "; next try"):
        text = text.removesuffix(suffix)
    return text


def explain_waiting(reason: str, due_at: datetime, now: datetime, until: str, line: str = "") -> str:
    """Describe why a lead waits. `until`: its next time, formatted; `line`: the line it waits for, if known."""
    if reason:
        text = _WAITS.get(Reason(reason), reason.replace("_", " "))
        return text.format(until=until) + "."
    if due_at > now:
        return f"Scheduled for {until}."
    return f"Due since {until}, waiting for {line or 'a free line'}."


def describe_outcome(outcome: str) -> str:
    """Describe how a lead ended."""
    return _ENDED.get(Outcome(outcome), outcome) + "."


def describe_dry_run(outcome: str) -> str:
    """Describe the result of a dry run for a lead."""
    if outcome in ("", WOULD_CALL):
        return "The dry run would have called this lead. It will be called when you go live."
    return f"The dry run would have ended this lead: {describe_outcome(outcome)}"
