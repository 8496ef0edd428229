"""Define the states of a lead: its status and legal transitions, outcomes, reasons to wait or end, modes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Status(StrEnum):
    """The status of a lead."""

    BACKLOG = "backlog"
    PROCESSING = "processing"
    FINISHED = "finished"


# The verb of an event → the statuses in which it may happen, and the status afterwards.
LEGAL: Mapping[str, tuple[frozenset[Status], Status]] = {
    "processing": (frozenset({Status.BACKLOG}), Status.PROCESSING),
    "again": (frozenset({Status.PROCESSING}), Status.BACKLOG),
    "reopened": (frozenset({Status.FINISHED}), Status.BACKLOG),
    "cancel_requested": (frozenset({Status.PROCESSING}), Status.PROCESSING),
    "finished": (frozenset({Status.BACKLOG, Status.PROCESSING}), Status.FINISHED),
    "hurried": (frozenset({Status.BACKLOG}), Status.BACKLOG),
    "simulated": (frozenset({Status.BACKLOG}), Status.BACKLOG),
    "claim_failed": (frozenset({Status.BACKLOG}), Status.BACKLOG),
}


class Outcome(StrEnum):
    """How a lead ended. The end of an attempt has one of these outcomes, too."""

    ANSWERED = "answered"
    NO_ANSWER = "no_answer"
    BUSY = "busy"
    FAILED = "failed"
    VOICEMAIL = "voicemail"
    INVALID_NUMBER = "invalid_number"
    PRECHECK_FAILED = "precheck_failed"
    NOT_PLACED = "not_placed"
    DO_NOT_CALL = "do_not_call"
    OUTSIDE_WINDOW = "outside_window"  # for too long
    CANCELLED = "cancelled"
    EXHAUSTED = "attempts_exhausted"
    LOST = "webhook_lost"
    DRY_RUN = "dry_run"  # only of older leads: dry runs no longer end leads
    NO_CONSENT = "no_consent"


# Recorded by a dry run for a lead that it would have called. For other leads, it records the outcome with which
# they would have ended.
WOULD_CALL = "called"


class Reason(StrEnum):
    """Why a lead waits, or why it ended."""

    # The kill switch. Due leads wait for it in the ready queue, so their rows have no reason; it describes the
    # wait of leads and follow-up texts.
    STOPPED = "stopped"
    # It is held by a switch. When the switch is lifted, `services.switches.release_leads` releases it immediately.
    ORGANIZATION_OFF = "organization_off"
    ORGANIZATION_PAUSED = "organization_paused"
    CAMPAIGN_PAUSED = "campaign_paused"
    NO_SCRIPT = "no_script"  # the campaign has nothing to say
    DRY_RUN = "dry_run"  # simulated, and waits for the end of the dry run
    # It waits until a known time.
    OUTSIDE_WINDOW = "outside_window"
    HOLIDAY = "holiday"
    STATE_RULE = "state_rule"
    CONTACT_HOURS = "contact_hours"  # to which the person limits calls
    ATTEMPTS_24H = "attempts_24h"
    CUSTOMER_RATE = "customer_rate"
    PHONE_BUSY = "phone_busy"  # another call of the organization to this phone is open
    PRECHECK_NO_ANSWER = "precheck_no_answer"
    PRECHECK_LATER = "precheck_later"
    RETRY = "retry"  # after an attempt
    CALL_BACK = "call_back"  # as the person asked
    NOT_ACCEPTED = "not_accepted"  # the provider could not take the call now
    OUTAGE = "outage"  # the overdue leads were spread over time after an outage
    ERROR = "error"  # it made its own claim fail; after many failures, also why it ended
    # It has ended.
    CALLED = "called"  # by the end of its call
    DO_NOT_CALL = "do_not_call"
    OPTED_OUT = "opted_out"
    NO_CONSENT = "no_consent"  # the campaign needs one
    PRECHECK_NO = "precheck_no"
    NEVER_PERMITTED = "never_permitted"  # no time within its patience is permitted
    NOT_A_NUMBER = "not_a_number"
    COUNTRY = "country_not_allowed"
    BY_HAND = "by_hand"
    MOST_ATTEMPTS = "most_attempts"


# Reasons for which a switch holds a lead. STOPPED is here for the index `lead_held`, which includes it.
HELD = (
    Reason.STOPPED, Reason.ORGANIZATION_OFF, Reason.ORGANIZATION_PAUSED, Reason.CAMPAIGN_PAUSED, Reason.NO_SCRIPT,
    Reason.DRY_RUN,
)  # fmt: skip


class Mode(StrEnum):
    """The mode of an organization's lead calling."""

    OFF = "off"
    DRY_RUN = "dry_run"
    LIVE = "live"
