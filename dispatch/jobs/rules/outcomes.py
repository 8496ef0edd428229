"""Outcomes of offers, and the effect of a call's end on its offer."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from dispatch.jobs.rules.policy import CascadePolicy


class Outcome(StrEnum):
    """How an offer ended. Stored in `Offer.outcome`; the offer's status is coarser."""

    ACCEPTED = "accepted"
    DECLINED = "declined"
    TIMED_OUT = "timed_out"
    BUSY = "busy"
    NO_ANSWER = "no_answer"
    HANGUP = "hangup"
    FAILED = "failed"
    BAD_NUMBER = "bad_number"
    NOT_PLACED = "not_placed"
    PROVIDER_REFUSED = "provider_refused"
    NOT_PERMITTED = "not_permitted"
    PROVIDER_SILENT = "provider_silent"
    NOT_REPORTED = "not_reported"
    SKIPPED = "skipped"
    TAKEN = "taken"
    PAUSED = "paused"
    ASSIGNED_BY_HAND = "assigned_by_hand"
    CANCELLED = "cancelled"
    CANNOT_MAKE_IT = "cannot_make_it"
    DEACTIVATED = "deactivated"  # the technician or the organization


# Outcomes after which the technician gets no further offer in the same dispatch.
FINAL_OUTCOMES = frozenset({Outcome.DECLINED, Outcome.BAD_NUMBER, Outcome.CANNOT_MAKE_IT})
# Outcomes that do not count as an offer made.
UNCOUNTED_OUTCOMES = frozenset(
    {
        Outcome.PAUSED,
        Outcome.NOT_PLACED,
        Outcome.PROVIDER_REFUSED,
        Outcome.NOT_PERMITTED,
        Outcome.PROVIDER_SILENT,
        Outcome.DEACTIVATED,
    }
)
# Outcomes caused by the provider or our account: the offer is withdrawn and does not count.
WITHDRAWN = frozenset({Outcome.PROVIDER_REFUSED, Outcome.NOT_PERMITTED, Outcome.PROVIDER_SILENT})
# Outcomes after which the technician is set aside, so that others are called first.
SET_ASIDE = frozenset({Outcome.NOT_PERMITTED, Outcome.PROVIDER_SILENT})
SET_ASIDE_S = 60.0
# Seconds. After a call request with an unknown outcome, a phone counts as not ringing if no report arrives within
# its ring time plus this margin.
SILENCE_MARGIN_S = 15.0

# Outcomes that count as a missed call, and outcomes that prove the technician is reachable. Others prove nothing.
MISSES = frozenset({Outcome.NO_ANSWER, Outcome.TIMED_OUT, Outcome.HANGUP})
REACHED_OUTCOMES = frozenset({Outcome.ACCEPTED, Outcome.DECLINED})

# Outcomes of a call after which the technician may still answer on another channel.
MISSED = frozenset({Outcome.BUSY, Outcome.NO_ANSWER, Outcome.HANGUP})

# A call's status → its effect on a pending offer. Other statuses (ringing, answered …) have none yet.
_ENDS = {
    "busy": (Outcome.BUSY, "busy"),
    "no_answer": (Outcome.NO_ANSWER, "no answer"),
    "completed": (Outcome.HANGUP, "hung up without pressing a key"),
    "failed": (Outcome.FAILED, "the call failed"),
    "canceled": (Outcome.FAILED, "the call was canceled"),
    "rejected": (Outcome.FAILED, "the phone provider refused the call"),
    "not_placed": (Outcome.NOT_PLACED, "the call was never placed"),
    "lost": (Outcome.FAILED, "the phone provider never reported the end of the call"),
}
# Statuses of a call that the provider has accepted, or may have accepted: the offer's deadline applies.
PLACED_STATUSES = frozenset({"submitted", "unknown", "ringing", "answered"})

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
    """The outcome of a call for its offer. `reason` is shown to dispatchers."""

    outcome: Outcome
    reason: str


def outcome_of_call(
    status: str,
    *,
    answered_by: str = "",
    error_code: str = "",
    bad_number: bool = False,
    not_permitted: str = "",
    is_account_refused: bool = False,
    was_spoken: bool = True,
) -> CallEnd | None:
    """Return the effect of a call's status on its pending offer, or None while the call is in progress.

    `bad_number`: the provider's error code means that the number can never be called. `not_permitted`: the reason
    why the provider refused our account rather than the number. `is_account_refused`: the provider refuses every
    request of the account. `was_spoken`: the provider fetched a prompt for this call.
    """
    if status not in _ENDS:
        return None
    outcome, reason = _ENDS[status]
    if outcome is Outcome.HANGUP and answered_by.startswith(("machine", "fax")):
        reason = "voicemail or fax answered"
    if status in ("failed", "rejected") and bad_number:
        return CallEnd(Outcome.BAD_NUMBER, f"the number can't be called (error {error_code})")
    if not_permitted:
        refused = Outcome.PROVIDER_REFUSED if is_account_refused else Outcome.NOT_PERMITTED
        return CallEnd(refused, f"the phone provider refused our account: {not_permitted}")
    if outcome is Outcome.HANGUP and not was_spoken:
        return CallEnd(Outcome.NOT_REPORTED, "answered, but the phone provider could not reach Dispatch")
    if outcome is Outcome.FAILED and error_code:
        reason = f"{reason} (error {error_code})"
    return CallEnd(outcome, reason)


def advances_at_once(policy: CascadePolicy, outcome: Outcome) -> bool:
    """Return whether the next technician is called immediately, instead of at this offer's deadline."""
    switch = _SWITCHES.get(outcome)
    return True if switch is None else bool(getattr(policy, switch))


def open_after_call(
    policy: CascadePolicy, outcome: Outcome, expires_at: datetime, now: datetime
) -> datetime | None:
    """Return the time until which an offer can still be answered by other channels after its call ended.

    Return None if the offer ends with the call. If the policy waits for the deadline after `outcome`, return the
    deadline.
    """
    if outcome not in MISSED or not policy.missed_call_grace_s:
        return None
    if not advances_at_once(policy, outcome):
        return expires_at
    return min(expires_at, now + timedelta(seconds=policy.missed_call_grace_s))
