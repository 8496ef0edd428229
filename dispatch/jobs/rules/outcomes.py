"""How an offer ended, and what the end of its call means."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from dispatch.jobs.rules.policy import CascadePolicy


class Outcome(StrEnum):
    """Stored in `Offer.outcome`; the offer's status is coarser."""

    ACCEPTED = "accepted"
    DECLINED = "declined"
    TIMED_OUT = "timed_out"
    BUSY = "busy"
    NO_ANSWER = "no_answer"
    HANGUP = "hangup"
    FAILED = "failed"
    BAD_NUMBER = "bad_number"
    NOT_PLACED = "not_placed"
    SKIPPED = "skipped"
    PAUSED = "paused"
    ASSIGNED_BY_HAND = "assigned_by_hand"
    CANCELLED = "cancelled"
    CANNOT_MAKE_IT = "cannot_make_it"


# Ends after which the technician is not asked again in the rounds of the same dispatch …
NEVER = frozenset({Outcome.DECLINED, Outcome.BAD_NUMBER, Outcome.CANNOT_MAKE_IT})
# … and ends that do not count as having been asked.
AGAIN = frozenset({Outcome.PAUSED, Outcome.NOT_PLACED})

# Ends that are a call not taken, and those that show the technician is there; others say nothing of them.
MISSES = frozenset({Outcome.NO_ANSWER, Outcome.TIMED_OUT, Outcome.HANGUP})
THERE = frozenset({Outcome.ACCEPTED, Outcome.DECLINED})

# Calls after which the technician may still answer in another way.
MISSED = frozenset({Outcome.BUSY, Outcome.NO_ANSWER, Outcome.HANGUP})

# A call's status → what it means for an offer that is still pending. Others (ringing, answered …) mean nothing
# yet.
_ENDS = {
    "busy": (Outcome.BUSY, "busy"),
    "no_answer": (Outcome.NO_ANSWER, "no answer"),
    "completed": (Outcome.HANGUP, "hung up without a key"),
    "failed": (Outcome.FAILED, "the call failed"),
    "canceled": (Outcome.FAILED, "the call was canceled"),
    "rejected": (Outcome.FAILED, "the provider refused the call"),
    "not_placed": (Outcome.NOT_PLACED, "the call was never placed"),
    "lost": (Outcome.FAILED, "the end of the call was never reported"),
}
# Statuses of a call that the provider has, or may have: the offer's clock runs.
TAKEN = frozenset({"submitted", "unknown", "ringing", "answered"})

_SWITCHES = {
    Outcome.DECLINED: "advance_on_decline",
    Outcome.BUSY: "advance_on_busy",
    Outcome.FAILED: "advance_on_failed",
    Outcome.BAD_NUMBER: "advance_on_failed",
    Outcome.NO_ANSWER: "advance_on_no_answer",
    Outcome.HANGUP: "advance_on_hangup",
}


@dataclass(frozen=True)
class CallEnd:
    """`reason` as a dispatcher reads it."""

    outcome: Outcome
    reason: str


def outcome_of_call(
    status: str, *, answered_by: str = "", error_code: str = "", bad_number: bool = False
) -> CallEnd | None:
    """What a call's status means for its pending offer; None while the call goes on. `bad_number`: the provider
    says by its error that this number can never be called."""
    if status not in _ENDS:
        return None
    outcome, reason = _ENDS[status]
    if outcome is Outcome.HANGUP and answered_by.startswith(("machine", "fax")):
        reason = "answered by a machine"
    if status in ("failed", "rejected") and bad_number:
        return CallEnd(Outcome.BAD_NUMBER, f"this number cannot be called (error {error_code})")
    if outcome is Outcome.FAILED and error_code:
        reason = f"{reason} (error {error_code})"
    return CallEnd(outcome, reason)


def advances_at_once(policy: CascadePolicy, outcome: Outcome) -> bool:
    """Whether the next technician is called at once, or only when this offer's time is up."""
    switch = _SWITCHES.get(outcome)
    return True if switch is None else bool(getattr(policy, switch))


def open_after_call(
    policy: CascadePolicy, outcome: Outcome, expires_at: datetime, now: datetime
) -> datetime | None:
    """Until when an offer whose call ended so can still be answered by text, link or call-back; None: it is over
    with the call. Where the policy waits for the deadline anyhow, until then."""
    if outcome not in MISSED or not policy.missed_call_grace_s:
        return None
    if not advances_at_once(policy, outcome):
        return expires_at
    return min(expires_at, now + timedelta(seconds=policy.missed_call_grace_s))
