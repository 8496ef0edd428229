"""Decide, in pure functions, whether and when a lead is called again after a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any, NamedTuple

from dispatch.leads.rules.states import Outcome, Reason

# Prefixes of the provider's results of machine detection. `human` and `unknown` count as a person.
_MACHINES = ("machine", "fax")
_OUTCOMES = {
    "completed": Outcome.ANSWERED,
    "busy": Outcome.BUSY,
    "no_answer": Outcome.NO_ANSWER,
    "failed": Outcome.FAILED,
    "canceled": Outcome.FAILED,
    "rejected": Outcome.NOT_PLACED,
    "not_placed": Outcome.NOT_PLACED,
    "lost": Outcome.LOST,
}
DAY = timedelta(hours=24)
# A lead is given up after this number of consecutive calls that the provider could not accept, and at the latest
# when it has had MAX_TOKENS calls. Their column holds at most 32,767.
MAX_SENT_BACK, MAX_TOKENS = 300, 30_000
# The maximum delay after a call that the provider could not accept, unless it asked for more (seconds).
MAX_SENT_BACK_DELAY_S = 300.0
# The delay after a call that was never placed, which doubles with each further one (seconds).
NOT_PLACED_DELAY_S, MAX_NOT_PLACED_DELAY_S = 60.0, 3600.0
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class RetryPolicy:
    """The rule for further attempts after one outcome of an attempt.

    The next attempt follows after `delay_s` seconds, multiplied by `factor` for each earlier attempt, at most
    `longest_s`, varied by up to `jitter` of itself (0 to 1) in both directions. `attempts`: the maximum number of
    the campaign's calls to the lead, including the first.
    """

    delay_s: float
    factor: float = 1.0
    longest_s: float = 86_400.0
    jitter: float = 0.0
    attempts: int = 3


def outcome_of_call(
    status: str, answered_by: str = "", bad_number: bool = False, was_spoken: bool = True
) -> Outcome:
    """Return the outcome of an attempt whose Call ended with `status`.

    `bad_number`: according to the provider, this number can never be called. `was_spoken`: the provider fetched
    the script. Otherwise a person who answered heard nothing of it, and the attempt has failed.
    """
    if bad_number:
        return Outcome.INVALID_NUMBER
    if status == "completed" and answered_by.startswith(_MACHINES):
        return Outcome.VOICEMAIL
    if status == "completed" and not was_spoken:
        return Outcome.FAILED
    return _OUTCOMES[status]


def after_call(
    lead: LeadFacts, campaign: CampaignRules, outcome: Outcome, now: datetime, chance: float
) -> Defer | End:
    """Return the verdict after an attempt with this outcome: another attempt at a later time, or the end.

    `lead.attempts` includes the attempt that ended.
    """
    rule = campaign.retries.get(outcome)
    if rule is None:
        return End(outcome, Reason.CALLED)
    # a call that the provider refused is not an attempt, but is not retried forever either
    made = lead.refusals + 1 if outcome is Outcome.NOT_PLACED else lead.attempts
    again = retry_at(now, made, rule, chance)
    if again is None or lead.attempts >= campaign.max_attempts:
        return End(Outcome.EXHAUSTED if rule.attempts > 1 else outcome, Reason.MOST_ATTEMPTS)
    return Defer(again, Reason.RETRY)


def after_not_accepted(lead: LeadFacts, now: datetime, delay_s: float) -> Defer | End:
    """Return the verdict after a call that the provider could not accept now, and asked for `delay_s` seconds.

    The delay grows with each consecutive one. 0: no request was sent, because the claim had lapsed.
    """
    if lead.sent_back >= MAX_SENT_BACK or lead.token >= MAX_TOKENS:
        return End(Outcome.NOT_PLACED, Reason.MOST_ATTEMPTS)
    delay_s = max(delay_s, 1.0, min(2.0**lead.sent_back - 1, MAX_SENT_BACK_DELAY_S) if delay_s else 0.0)
    return Defer(up_to_ms(now + timedelta(seconds=delay_s)), Reason.NOT_ACCEPTED)


def after_not_placed(lead: LeadFacts, now: datetime) -> Defer | End:
    """Return the verdict after a call that the provider never received. It is no attempt."""
    if lead.sent_back >= MAX_SENT_BACK or lead.token >= MAX_TOKENS:
        return End(Outcome.NOT_PLACED, Reason.MOST_ATTEMPTS)
    delay_s = min(NOT_PLACED_DELAY_S * 2.0**lead.sent_back, MAX_NOT_PLACED_DELAY_S)
    return Defer(up_to_ms(now + timedelta(seconds=delay_s)), Reason.NOT_ACCEPTED)


def after_disposition(
    verdict: Defer | End, lead: LeadFacts, campaign: CampaignRules, outcome: Outcome, now: datetime
) -> Defer | End:
    """Return the verdict after a call, given the outcome that was recorded for its lead.

    A time at which the person asked to be called wins, then the campaign's rule for the disposition.
    """
    if lead.call_back_at is not None:
        return Defer(up_to_ms(max(lead.call_back_at, now)), Reason.CALL_BACK)
    if lead.disposition not in campaign.recycling:
        return verdict
    delay = campaign.recycling[lead.disposition]
    if delay is None:
        return End(outcome, Reason.CALLED)
    if lead.attempts >= campaign.max_attempts:
        return End(outcome, Reason.MOST_ATTEMPTS)
    return Defer(up_to_ms(now + delay), Reason.RETRY)


def after_cancellation(verdict: Defer | End, outcome: Outcome) -> End:
    """Return the verdict for a lead that was canceled during its call: it is never called again.

    `outcome`: of the call. If somebody answered, it is also the outcome of the lead.
    """
    if isinstance(verdict, End) and outcome in (Outcome.ANSWERED, Outcome.VOICEMAIL):
        return verdict
    return End(Outcome.CANCELLED, Reason.BY_HAND)


def end_of_patience(lead: LeadFacts, campaign: CampaignRules, now: datetime) -> datetime:
    """Return the latest moment to which the lead may be deferred now.

    The time for which it was due, but waited in the ready queue, does not count: a line was missing or calling was
    stopped, not a permitted time.
    """
    waited = max(now - lead.due_at, timedelta())
    return lead.wanted_at + waited + timedelta(hours=campaign.patience_h)


def within_patience(
    lead: LeadFacts, campaign: CampaignRules, verdict: Verdict, outcome: Outcome, now: datetime
) -> Verdict:
    """Return the verdict, or an end with this outcome if it defers the lead beyond the campaign's patience."""
    if isinstance(verdict, Defer) and verdict.until > end_of_patience(lead, campaign, now):
        return End(outcome, verdict.reason)
    return verdict


def retry_at(ended: datetime, attempt: int, rule: RetryPolicy | None, chance: float) -> datetime | None:
    """Return when the attempt after the `attempt`th (from 1) may begin, or None if there is no other attempt.

    `chance`: a random number from 0 to 1. The result is never before `ended`, and is rounded up to the
    millisecond, the resolution of the schedule.
    """
    if rule is None or attempt >= rule.attempts:
        return None
    delay = min(rule.delay_s * rule.factor ** min(attempt - 1, 64), rule.longest_s)
    delay *= 1.0 + rule.jitter * (2.0 * chance - 1.0)
    return up_to_ms(ended + timedelta(seconds=max(0.0, delay)))


def first_moment_below_limit(
    now: datetime, began: Sequence[datetime], limit: int, window: timedelta = DAY
) -> datetime | None:
    """Return the first moment from `now` on with fewer than `limit` of the starts in the `window` before it.

    None if the limit is 0, because then there is no such moment. The window is rolling: midnight does not matter.
    """
    if limit <= 0:
        return None
    counted = sorted(moment for moment in began if moment > now - window)
    if len(counted) < limit:
        return now
    return up_to_ms(counted[-limit] + window)


def up_to_ms(moment: datetime) -> datetime:
    """Round up to a whole millisecond, because a due lead must never start early."""
    excess = timedelta(microseconds=moment.microsecond % 1000)
    return moment if not excess else moment - excess + _MS


def jitter_window_s(overdue: int, base_s: float, per: int, most_s: float) -> float:
    """Return the seconds over which `overdue` leads are spread.

    `base_s`, and again as much for every `per` leads, at most `most_s`.
    """
    return min(base_s * (1 + overdue / per), most_s)


def jitter_position(window: float, position: int, count: int, chance: float) -> float:
    """Return the seconds from now for the lead at `position` (from 0) of `count` leads.

    The leads keep their order; each is placed at random (`chance`, 0 to 1) within its share of the window.
    """
    return window * (position + chance) / max(count, 1)


class LeadFacts(NamedTuple):
    """A lead as it was locked. Times are aware.

    `attempts` excludes calls that the provider never accepted. `token` is the attempt number of its newest Call,
    whatever its result. `refusals` and `sent_back` count consecutive calls that were not placed: refused by the
    provider, and not accepted or never received by it.
    """

    id: int
    organization_id: int
    campaign_id: int
    phone: str
    lat: float | None
    lng: float | None
    customer: str
    external_id: str
    attempts: int
    token: int
    wanted_at: datetime  # when it was to be called, plus its waits for lines; its patience is counted from then
    due_at: datetime
    reason: str
    refusals: int = 0
    sent_back: int = 0
    is_canceled: bool = False  # during its call
    call_back_at: datetime | None = None  # as the person asked in its call
    disposition: str = ""
    contact_from: time | None = None  # local hours to which the person limits calls; both or neither
    contact_until: time | None = None


@dataclass(frozen=True, slots=True)
class Go:
    """Call it now."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Call it not before `until`."""

    until: datetime
    reason: Reason


@dataclass(frozen=True, slots=True)
class End:
    """Never call it again."""

    outcome: Outcome
    reason: Reason


Verdict = Go | Defer | End
GO = Go()


@dataclass(frozen=True)
class CampaignRules:
    """The facts about a campaign for the eligibility check, with its organization's switches and countries.

    `week`: (weekday from Monday = 0, from, until) in the called person's local time; `closed_days`: the dates on
    which it makes no calls anywhere. `retries`: what follows an outcome; an outcome without an entry ends the
    lead.
    """

    id: int
    organization_id: int
    pool_id: int
    mode: str  # states.Mode, of its organization
    ring_timeout_s: int
    time_limit_s: int
    detect_machines: bool
    precheck_url: str  # empty: no pre-check
    dial: Mapping[str, Any]  # included in the Call's context
    is_paused: bool
    organization_paused: bool
    countries: Collection[str]
    customer: str
    week: tuple[tuple[int, time, time], ...]
    keeps_holidays: bool
    closed_days: frozenset[date]
    patience_h: int
    max_attempts: int
    max_attempts_24h: int
    retries: Mapping[Outcome, RetryPolicy]
    code: str = ""
    precheck_secret: str = ""  # encrypted, as its column holds it
    precheck_timeout_s: float = 2.0
    precheck_without_answer: str = "later"
    has_words: bool = True  # a script, a recording, a TwiML URL or a voice agent
    consent_purpose: str = ""  # without a consent for it, nobody is called; "": none is needed
    # Recorded outcome → when the lead is called again after its call; None: never.
    recycling: Mapping[str, timedelta | None] = field(default_factory=dict)
