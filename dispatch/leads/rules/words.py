"""The vocabulary of a lead: its statuses, its outcomes, and the reasons for which it waits or ended."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    BACKLOG = "backlog"
    PROCESSING = "processing"
    FINISHED = "finished"


class Outcome(StrEnum):
    """How a lead ended; an attempt's end has one of them too."""

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
    DRY_RUN = "dry_run"  # everything but the call


class Reason(StrEnum):
    """Why a lead waits, or what ended it."""

    # It waits for somebody to lift this; `services.releasing.release` brings it back at once.
    STOPPED = "stopped"  # the kill switch
    ORGANIZATION_OFF = "organization_off"
    ORGANIZATION_PAUSED = "organization_paused"
    CAMPAIGN_PAUSED = "campaign_paused"
    # It waits for a moment.
    OUTSIDE_WINDOW = "outside_window"
    HOLIDAY = "holiday"
    STATE_RULE = "state_rule"
    ATTEMPTS_24H = "attempts_24h"
    CUSTOMER_RATE = "customer_rate"
    PHONE_BUSY = "phone_busy"  # another call of the organization to this phone is open
    PRECHECK_NO_ANSWER = "precheck_no_answer"
    PRECHECK_LATER = "precheck_later"
    RETRY = "retry"  # after an attempt
    NOT_ACCEPTED = "not_accepted"  # the provider could not take the call now
    OUTAGE = "outage"  # spread out after an outage
    # It ended by this.
    CALLED = "called"  # its call ended so
    DO_NOT_CALL = "do_not_call"
    OPTED_OUT = "opted_out"
    PRECHECK_NO = "precheck_no"
    NEVER_PERMITTED = "never_permitted"  # no moment within its patience lies inside a window
    NOT_A_NUMBER = "not_a_number"
    COUNTRY = "country_not_allowed"
    BY_HAND = "by_hand"
    MOST_ATTEMPTS = "most_attempts"
    DRY_RUN = "dry_run"


# What is lifted by a person and not by the clock.
UNTIL_LIFTED = frozenset({Reason.ORGANIZATION_OFF, Reason.ORGANIZATION_PAUSED, Reason.CAMPAIGN_PAUSED})


# What a person lifts.
HELD = (Reason.STOPPED, Reason.ORGANIZATION_OFF, Reason.ORGANIZATION_PAUSED, Reason.CAMPAIGN_PAUSED)


class Mode(StrEnum):
    """How far an organization's leads go."""

    OFF = "off"
    DRY_RUN = "dry_run"
    LIVE = "live"
