"""What becomes of a lead when its call has ended, when it is called again, and how often it may be: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatch.leads.rules.facts import CampaignRules, Defer, End, LeadFacts
from dispatch.leads.rules.words import Outcome, Reason

# What the provider's detection calls a machine; `human` and `unknown` are taken for a person.
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
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Retry:
    """What follows one outcome of an attempt: after `delay_s` seconds, times `factor` for each attempt before, at
    most `longest_s`, varied by up to `jitter` of itself (0 to 1) to either side. `attempts`: how many there may be
    of this campaign's calls to the lead, the first among them."""

    delay_s: float
    factor: float = 1.0
    longest_s: float = 86_400.0
    jitter: float = 0.0
    attempts: int = 3


def outcome_of_call(status: str, answered_by: str = "", bad_number: bool = False) -> Outcome:
    """How the attempt ended whose Call ended with `status`. `bad_number`: the provider says that this number can
    never be called."""
    if bad_number:
        return Outcome.INVALID_NUMBER
    if status == "completed" and answered_by.startswith(_MACHINES):
        return Outcome.VOICEMAIL
    return _OUTCOMES[status]


def after_call(
    lead: LeadFacts, campaign: CampaignRules, outcome: Outcome, now: datetime, chance: float
) -> Defer | End:
    """What becomes of a lead whose last attempt ended so: a next time, or its end. `lead.attempts` counts the one
    that ended."""
    rule = campaign.retries.get(outcome)
    if rule is None:
        return End(outcome, Reason.CALLED)
    # a call that the provider never took is no attempt, but is not tried for ever either
    made = lead.token if outcome is Outcome.NOT_PLACED else lead.attempts
    again = retry_at(now, made, rule, chance)
    if again is None or lead.attempts >= campaign.max_attempts:
        return End(Outcome.EXHAUSTED if rule.attempts > 1 else outcome, Reason.MOST_ATTEMPTS)
    return Defer(again, Reason.RETRY)


def retry_at(ended: datetime, attempt: int, rule: Retry | None, chance: float) -> datetime | None:
    """When the attempt after the `attempt`th (from 1) may begin, or None when there is none. `chance`: 0 to 1.

    Never before `ended`, and rounded up to the millisecond, which is what the schedule counts in."""
    if rule is None or attempt >= rule.attempts:
        return None
    delay = min(rule.delay_s * rule.factor ** min(attempt - 1, 64), rule.longest_s)
    delay *= 1.0 + rule.jitter * (2.0 * chance - 1.0)
    return up_to_ms(ended + timedelta(seconds=max(0.0, delay)))


def room_at(now: datetime, began: Sequence[datetime], limit: int, window: timedelta = DAY) -> datetime | None:
    """The first moment from `now` on at which fewer than `limit` of these lie in the `window` before it;
    None when the limit is 0 and there will never be room. A rolling window: midnight means nothing to it."""
    if limit <= 0:
        return None
    counted = sorted(moment for moment in began if moment > now - window)
    if len(counted) < limit:
        return now
    return up_to_ms(counted[-limit] + window)


def up_to_ms(moment: datetime) -> datetime:
    """The same moment, or the next whole millisecond after it: what is due must never start early."""
    over = timedelta(microseconds=moment.microsecond % 1000)
    return moment if not over else moment - over + _MS
