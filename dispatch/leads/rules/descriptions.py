"""Describe leads in plain text: why they wait, or why they ended."""

from __future__ import annotations

from datetime import datetime

from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.leads.rules.states import WOULD_CALL, Outcome, Reason

_WAITS = {
    Reason.STOPPED: mark("Calling is stopped for all organizations"),
    Reason.ORGANIZATION_OFF: mark("Lead calling is off for this organization"),
    Reason.ORGANIZATION_PAUSED: mark("Lead calling is paused for this organization"),
    Reason.CAMPAIGN_PAUSED: mark("Its campaign is paused"),
    Reason.NO_SCRIPT: mark("Its campaign has no script"),
    Reason.DRY_RUN: mark("Simulated in the dry run; will be called when you go live"),
    Reason.OUTSIDE_WINDOW: mark("Outside the campaign's hours at the person's location, until {until}"),
    Reason.HOLIDAY: mark("Holiday at the person's location, until {until}"),
    Reason.STATE_RULE: mark("Outside the legal calling hours at the person's location, until {until}"),
    Reason.CONTACT_HOURS: mark("Outside the hours in which the person wants calls, until {until}"),
    Reason.ATTEMPTS_24H: mark("Reached the maximum number of calls in 24 hours; next call at {until}"),
    Reason.CUSTOMER_RATE: mark("Reached the customer's rate limit; next call at {until}"),
    Reason.PHONE_BUSY: mark("Another call to this phone is in progress; next try at {until}"),
    Reason.PRECHECK_NO_ANSWER: mark("The pre-check didn't respond; next try at {until}"),
    Reason.PRECHECK_LATER: mark("The pre-check asked Dispatch to wait until {until}"),
    Reason.RETRY: mark("Called without success; next call at {until}"),
    Reason.CALL_BACK: mark("The person asked to be called back; next call at {until}"),
    Reason.NOT_ACCEPTED: mark("The phone provider couldn't accept the call; next try at {until}"),
    Reason.OUTAGE: mark("Delayed after an outage; next call at {until}"),
    Reason.ERROR: mark("An error prevented the call; next try at {until}"),
}
_ENDED = {
    Outcome.ANSWERED: mark("Answered"),
    Outcome.NO_ANSWER: mark("No answer"),
    Outcome.BUSY: mark("Busy"),
    Outcome.FAILED: mark("The call failed"),
    Outcome.VOICEMAIL: mark("Voicemail"),
    Outcome.INVALID_NUMBER: mark("Invalid number"),
    Outcome.PRECHECK_FAILED: mark("The pre-check reported that the call is no longer wanted"),
    Outcome.NOT_PLACED: mark("The phone provider never accepted the call"),
    Outcome.DO_NOT_CALL: mark("On the do-not-call list"),
    Outcome.OUTSIDE_WINDOW: mark("Not called: outside the permitted hours for too long"),
    Outcome.CANCELLED: mark("Canceled"),
    Outcome.EXHAUSTED: mark("Not reached in any attempt"),
    Outcome.LOST: mark("The phone provider never reported the end of the call"),
    Outcome.NO_CONSENT: mark("Not called: no valid consent for the campaign's purpose is recorded"),
    Outcome.DRY_RUN: mark("Dry run: would have been called"),
}
# Ends whose outcome has another cause than usual.
_ENDED_BECAUSE: dict[tuple[str, str], str] = {
    (Outcome.DO_NOT_CALL, Reason.OPTED_OUT): mark("Not called: the number opted out of texts"),
    (Outcome.NOT_PLACED, Reason.COUNTRY): mark("Not called: calls to its country aren't allowed"),
    (Outcome.PRECHECK_FAILED, Reason.PRECHECK_NO_ANSWER): mark("Not called: the pre-check didn't respond"),
    (Outcome.PRECHECK_FAILED, Reason.PRECHECK_LATER): mark(
        "Not called: the pre-check asked Dispatch to wait for too long"
    ),
    (Outcome.FAILED, Reason.ERROR): mark("Not called: every try failed because of an error"),
    (Outcome.OUTSIDE_WINDOW, Reason.ATTEMPTS_24H): mark(
        "Not called: the maximum number of calls in 24 hours allowed none for too long"
    ),
    (Outcome.OUTSIDE_WINDOW, Reason.CUSTOMER_RATE): mark(
        "Not called: the customer's rate limit allowed no call for too long"
    ),
}


_NOT_CALLED = {
    Reason.CALLED: mark("Called"),
    Reason.DO_NOT_CALL: mark("On the do-not-call list"),
    Reason.OPTED_OUT: mark("Opted out"),
    Reason.NO_CONSENT: mark("No valid consent"),
    Reason.PRECHECK_NO: mark("Refused by the pre-check"),
    Reason.NEVER_PERMITTED: mark("Outside the permitted hours for too long"),
    Reason.NOT_A_NUMBER: mark("Invalid number"),
    Reason.COUNTRY: mark("Country not allowed"),
    Reason.BY_HAND: mark("Canceled"),
    Reason.MOST_ATTEMPTS: mark("Not reached in any attempt"),
}


# What may precede the time in the sentences above, in English and in Spanish.
_SUFFIXES = (
    " ", " until", " at", " hasta", ": ", ":", ",", "; next call", "; next try", "; próxima llamada",
    "; próximo intento",
)  # fmt: skip


def describe_waiting(reason: str) -> str:
    """Describe a reason without its time, for grouped lists: "Outside the campaign's hours"."""
    if not reason:
        return _("Scheduled for later")
    text = _(_WAITS.get(Reason(reason), reason.replace("_", " "))).split("{until}")[0]
    for suffix in _SUFFIXES:
        text = text.removesuffix(suffix)
    return text


def describe_reason(reason: str) -> str:
    """Describe why a lead waits or has ended, for a filter: "Opted out"."""
    ended = _NOT_CALLED.get(Reason(reason)) if reason else None
    return _(ended) if ended else describe_waiting(reason)


def explain_waiting(reason: str, due_at: datetime, now: datetime, until: str, line: str = "") -> str:
    """Describe why a lead waits. `until`: its next time, formatted; `line`: the line it waits for, if known."""
    if reason:
        text = _(_WAITS.get(Reason(reason), reason.replace("_", " ")))
        return text.format(until=until) + "."
    if due_at > now:
        return _("Scheduled for {until}.").format(until=until)
    return _("Due since {until}, waiting for {line}.").format(until=until, line=line or _("a free line"))


def describe_outcome(outcome: str, reason: str = "") -> str:
    """Describe how a lead ended. `reason`: why, if known."""
    return _(_ENDED_BECAUSE.get((outcome, reason)) or _ENDED.get(Outcome(outcome), outcome)) + "."


def describe_dry_run(outcome: str) -> str:
    """Describe the result of a dry run for a lead."""
    if outcome in ("", WOULD_CALL):
        return _("The dry run would have called this lead. It will be called when you go live.")
    return _("The dry run would have ended this lead: {outcome}").format(outcome=describe_outcome(outcome))
