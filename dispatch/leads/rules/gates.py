"""Whether a lead is called now, later or never: one gate after another, pure, for a batch at a time.

The batch's context remembers what it let through, so that limits hold across it; what it has read is kept true by
locks of whoever read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from dispatch.leads.rules import places
from dispatch.leads.rules.facts import GO, CampaignRules, Defer, End, LeadFacts, Verdict
from dispatch.leads.rules.retries import DAY, room_at, up_to_ms
from dispatch.leads.rules.windows import Hours, Permissions, hours_of
from dispatch.leads.rules.words import Mode, Outcome, Reason

# What waits for a person to lift something; whoever does brings the leads back at once.
FAR = timedelta(days=365)
# How often two limits that take turns at saying no are asked, before the lead looks again later.
ROUNDS = 8


@dataclass(frozen=True)
class PlaceRule:
    """The hours that the law of a country or state (`region`, "" for the whole country) allows."""

    country: str
    region: str
    hours: Hours
    keeps_holidays: bool = False


@dataclass(frozen=True)
class Rate:
    """At most `most` calls in any `per` on a customer's behalf."""

    most: int
    per: timedelta


@dataclass
class Batch:
    """What `gating.read` has read for a batch, and what was let through since. Phones are E.164.

    `holidays`: dates by (country, region or ""). `dialed`: when calls to (organization, phone) began in the last
    24 h. `refused`: (organization, phone) that must not be called; `refused_everywhere`: phones. `spent`: when
    calls on behalf of (organization, customer) began, as far back as its rate looks."""

    now: datetime
    stopped: bool
    campaigns: Mapping[int, CampaignRules]
    rules: Collection[PlaceRule] = ()
    holidays: Mapping[tuple[str, str], frozenset[date]] = field(default_factory=dict)
    refused: Collection[tuple[int, str]] = frozenset()
    refused_everywhere: Collection[str] = frozenset()
    dialed: dict[tuple[int, str], list[datetime]] = field(default_factory=dict)
    rates: Mapping[tuple[int, str], Rate] = field(default_factory=dict)
    spent: dict[tuple[int, str], list[datetime]] = field(default_factory=dict)
    permissions: Permissions = field(default_factory=Permissions)
    _bounds: dict[tuple[int, str, frozenset[str]], tuple[Hours, ...]] = field(default_factory=dict)

    def bounds(self, campaign: CampaignRules, country: str, states: frozenset[str]) -> tuple[Hours, ...]:
        """All hours that bind a lead of the campaign who is there: the campaign's first, then the law's."""
        key = (campaign.id, country, states)
        if key not in self._bounds:
            closed = self._closed(country, states)
            own = campaign.closed_days | (closed if campaign.keeps_holidays else frozenset())
            found = [hours_of(CAMPAIGN, campaign.week, own)]
            for rule in self.rules:
                if rule.country == country and (not rule.region or rule.region in states):
                    dates = closed if rule.keeps_holidays else frozenset()
                    found.append(
                        Hours(rule.hours.name, rule.hours.spans, dates, rule.hours.since, rule.hours.until)
                    )
            self._bounds[key] = tuple(found)
        return self._bounds[key]

    def _closed(self, country: str, states: frozenset[str]) -> frozenset[date]:
        return frozenset().union(
            *(self.holidays.get((country, region), frozenset()) for region in ("", *sorted(states)))
        )


CAMPAIGN = "campaign"


def decide(lead: LeadFacts, campaign: CampaignRules, batch: Batch) -> Verdict:
    """What is to be done with a lead that is due. A Go counts against the limits of the batch."""
    return (
        _held(campaign, batch)
        or _never(lead, campaign, batch)
        or _when(lead, campaign, batch)
    )  # fmt: skip


def _held(campaign: CampaignRules, batch: Batch) -> Verdict | None:
    """Switches that a person lifts."""
    if batch.stopped:
        return Defer(batch.now + FAR, Reason.STOPPED)
    if campaign.mode == Mode.OFF:
        return Defer(batch.now + FAR, Reason.ORGANIZATION_OFF)
    if campaign.organization_paused:
        return Defer(batch.now + FAR, Reason.ORGANIZATION_PAUSED)
    return Defer(batch.now + FAR, Reason.CAMPAIGN_PAUSED) if campaign.is_paused else None


def _never(lead: LeadFacts, campaign: CampaignRules, batch: Batch) -> Verdict | None:
    """What ends the lead for good."""
    if lead.phone in batch.refused_everywhere or (lead.organization_id, lead.phone) in batch.refused:
        return End(Outcome.DO_NOT_CALL, Reason.DO_NOT_CALL)
    if lead.attempts >= campaign.max_attempts:
        return End(Outcome.EXHAUSTED, Reason.MOST_ATTEMPTS)
    country = places.country_of(lead.phone)
    if not country:
        return End(Outcome.INVALID_NUMBER, Reason.NOT_A_NUMBER)
    if country not in campaign.countries:
        return End(Outcome.NOT_PLACED, Reason.COUNTRY)
    return None


def _when(lead: LeadFacts, campaign: CampaignRules, batch: Batch) -> Verdict:
    """The first moment at which hours, the rolling day and the customer's rate all allow it; now is a Go."""
    moment, reason = batch.now, None
    given_up = lead.wanted_at + timedelta(hours=campaign.patience_h)
    for _ in range(ROUNDS):
        before = moment
        for limit in (_by_the_hours, _by_the_day, _by_the_rate):
            allowed, why = limit(lead, campaign, batch, moment)
            if allowed is None or (allowed > batch.now and allowed > given_up):
                return End(Outcome.OUTSIDE_WINDOW, Reason.NEVER_PERMITTED)
            if allowed > moment:
                moment, reason = allowed, why
        if moment == before:
            break
    if reason is not None:
        _queue(lead, campaign, batch, moment, reason)
        return Defer(up_to_ms(moment), reason)
    batch.dialed.setdefault((lead.organization_id, lead.phone), []).append(batch.now)
    if (spent := _spent(lead, campaign, batch)) is not None:
        spent.append(batch.now)
    return GO


def _by_the_hours(
    lead: LeadFacts, campaign: CampaignRules, batch: Batch, at: datetime
) -> tuple[datetime | None, Reason]:
    zones = places.zones_of(lead.phone, lead.lat, lead.lng)
    if not zones:
        return None, Reason.OUTSIDE_WINDOW
    country = places.country_of(lead.phone)
    states = places.states_of(lead.phone, lead.lat, lead.lng) if country == "US" else frozenset()
    found = batch.permissions(at, zones, batch.bounds(campaign, country, states))
    if found.open:
        return at, Reason.OUTSIDE_WINDOW
    if found.holiday:
        return found.until, Reason.HOLIDAY
    return found.until, Reason.OUTSIDE_WINDOW if found.closed_by == CAMPAIGN else Reason.STATE_RULE


def _by_the_day(
    lead: LeadFacts, campaign: CampaignRules, batch: Batch, at: datetime
) -> tuple[datetime | None, Reason]:
    began = batch.dialed.get((lead.organization_id, lead.phone), ())
    return room_at(at, began, campaign.max_attempts_24h, DAY), Reason.ATTEMPTS_24H


def _by_the_rate(
    lead: LeadFacts, campaign: CampaignRules, batch: Batch, at: datetime
) -> tuple[datetime | None, Reason]:
    spent = _spent(lead, campaign, batch)
    if spent is None:
        return at, Reason.CUSTOMER_RATE
    rate = batch.rates[lead.organization_id, lead.customer or campaign.customer]
    return room_at(at, spent, rate.most, rate.per), Reason.CUSTOMER_RATE


def _spent(lead: LeadFacts, campaign: CampaignRules, batch: Batch) -> list[datetime] | None:
    """The beginnings that count against the rate of the lead's customer; None when there is no rate."""
    key = (lead.organization_id, lead.customer or campaign.customer)
    return batch.spent.setdefault(key, []) if key in batch.rates else None


def _queue(lead: LeadFacts, campaign: CampaignRules, batch: Batch, moment: datetime, reason: Reason) -> None:
    """A lead put off by the rate has its place in the time to come, so that the next one is put off further; else
    all of them would come due in the same moment, and all but few be put off again."""
    if reason is Reason.CUSTOMER_RATE and (spent := _spent(lead, campaign, batch)) is not None:
        spent.append(moment)
