"""Check a batch of leads, in pure functions, against the calling rules: call now, later or never.

The batch's context counts the eligible leads, so that limits hold across the batch. The caller's locks keep the
facts valid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Any

from dispatch.leads.rules import geography
from dispatch.leads.rules.calling_hours import (
    HORIZON,
    Hours,
    LocalHours,
    PermissionCache,
    calling_permission,
    hours_of,
)
from dispatch.leads.rules.retries import (
    DAY,
    GO,
    CampaignRules,
    Defer,
    End,
    LeadFacts,
    Verdict,
    end_of_patience,
    first_moment_below_limit,
    up_to_ms,
)
from dispatch.leads.rules.states import Mode, Outcome, Reason

# The deferral of a lead that a switch holds. It is released immediately when the switch is lifted.
FAR = timedelta(days=365)
# A lead whose turn in the queue of a customer's rate has come waits this much longer without losing its place.
RATE_GRACE = timedelta(seconds=2)
# Number of rounds of checks before the lead is deferred, in case the limits forbid each other's permitted times.
ROUNDS = 8


@dataclass(frozen=True)
class RegionRule:
    """The hours that the law of a country or state allows (`region`: "" for the whole country)."""

    country: str
    region: str
    hours: Hours
    keeps_holidays: bool = False


@dataclass(frozen=True)
class CustomerRateLimit:
    """At most `most` calls in any `per` on a customer's behalf."""

    most: int
    per: timedelta

    @property
    def lateness(self) -> timedelta:
        """How much later than planned a call may be made without deferring the next ones again."""
        return min(self.per / 20, timedelta(seconds=1))


@dataclass
class BatchContext:
    """The facts that `eligibility.load_batch` read for a batch, updated with each eligible lead. Phones are E.164.

    `holidays`: dates by (country, region or ""). `dialed`: when calls to (organization, phone) began in the last
    24 h. `refused`: (organization, phone) that must not be called; `refused_everywhere`: phones; `opted_out`:
    (organization, phone) that must not be called because they opted out of texts. `spent`: when calls
    on behalf of (organization, customer) began, as far back as its rate limit needs. `queued`: when the last leads
    are due that wait for the rate of (organization, customer). `consents`: (organization, phone, purpose) for
    which there is a valid consent, as far as campaigns need one.
    """

    now: datetime
    stopped: bool
    campaigns: Mapping[int, CampaignRules]
    rules: Collection[RegionRule] = ()
    holidays: Mapping[tuple[str, str], frozenset[date]] = field(default_factory=dict)
    refused: set[tuple[int, str]] = field(default_factory=set)
    refused_everywhere: Collection[str] = frozenset()
    opted_out: set[tuple[int, str]] = field(default_factory=set)
    dialed: dict[tuple[int, str], list[datetime]] = field(default_factory=dict)
    rates: Mapping[tuple[int, str], CustomerRateLimit] = field(default_factory=dict)
    spent: dict[tuple[int, str], list[datetime]] = field(default_factory=dict)
    queued: dict[tuple[int, str], list[datetime]] = field(default_factory=dict)
    consents: Collection[tuple[int, str, str]] = frozenset()
    permissions: PermissionCache = field(default_factory=PermissionCache)
    _bounds: dict[tuple[int, str, frozenset[str]], tuple[Hours, ...]] = field(default_factory=dict)
    _hours: dict[tuple[Any, ...], LocalHours] = field(default_factory=dict)

    def hours(self, lead: LeadFacts, campaign: CampaignRules) -> LocalHours:
        """Return the hours that apply to the lead: its campaign's, the law's where it is, and its own."""
        area = geography.area_of(lead.phone)
        key = (campaign.id, area, lead.lat, lead.lng, lead.contact_from, lead.contact_until)
        known = self._hours.get(key)
        if known is None:
            zones = geography.zones_of(lead.phone, lead.lat, lead.lng)
            known = self._hours[key] = LocalHours(zones, _bounds_of(lead, campaign, self), self.permissions)
        return known

    def bounds(self, campaign: CampaignRules, country: str, states: frozenset[str]) -> tuple[Hours, ...]:
        """Return all hours that apply to the campaign's leads in that place: the campaign's, then the law's."""
        key = (campaign.id, country, states)
        if key not in self._bounds:
            closed = self._closed(country, states)
            own = campaign.closed_days | (closed if campaign.keeps_holidays else frozenset())
            bounds = [hours_of(CAMPAIGN, campaign.week, own)]
            for rule in self.rules:
                if rule.country == country and (not rule.region or rule.region in states):
                    dates = closed if rule.keeps_holidays else frozenset()
                    bounds.append(
                        Hours(rule.hours.name, rule.hours.spans, dates, rule.hours.since, rule.hours.until)
                    )
            self._bounds[key] = tuple(bounds)
        return self._bounds[key]

    def _closed(self, country: str, states: frozenset[str]) -> frozenset[date]:
        return frozenset().union(
            *(self.holidays.get((country, region), frozenset()) for region in ("", *sorted(states)))
        )


CAMPAIGN, PERSON = "campaign", "person"
# Limits of the number of calls, as opposed to hours.
LIMITS = (Reason.ATTEMPTS_24H, Reason.CUSTOMER_RATE)


def check_eligibility(lead: LeadFacts, campaign: CampaignRules, batch: BatchContext) -> Verdict:
    """Decide whether to call a due lead. A Go counts against the limits of the batch."""
    return (
        _check_switches(campaign, batch)
        or _check_exclusions(lead, campaign, batch)
        or _first_permitted_moment(lead, campaign, batch)
    )  # fmt: skip


def _check_switches(campaign: CampaignRules, batch: BatchContext) -> Verdict | None:
    """Check the switches that a user lifts."""
    if batch.stopped:
        return Defer(batch.now + FAR, Reason.STOPPED)
    if campaign.mode == Mode.OFF:
        return Defer(batch.now + FAR, Reason.ORGANIZATION_OFF)
    if campaign.organization_paused:
        return Defer(batch.now + FAR, Reason.ORGANIZATION_PAUSED)
    if campaign.is_paused:
        return Defer(batch.now + FAR, Reason.CAMPAIGN_PAUSED)
    return None if campaign.has_words else Defer(batch.now + FAR, Reason.NO_SCRIPT)


def _check_exclusions(lead: LeadFacts, campaign: CampaignRules, batch: BatchContext) -> Verdict | None:
    """Check the facts that end the lead for good."""
    if lead.phone in batch.refused_everywhere or (lead.organization_id, lead.phone) in batch.refused:
        return End(Outcome.DO_NOT_CALL, Reason.DO_NOT_CALL)
    if (lead.organization_id, lead.phone) in batch.opted_out:
        return End(Outcome.DO_NOT_CALL, Reason.OPTED_OUT)
    consent = (lead.organization_id, lead.phone, campaign.consent_purpose)
    if campaign.consent_purpose and consent not in batch.consents:
        return End(Outcome.NO_CONSENT, Reason.NO_CONSENT)
    if lead.attempts >= campaign.max_attempts:
        return End(Outcome.EXHAUSTED, Reason.MOST_ATTEMPTS)
    country = geography.country_of(lead.phone)
    if not country:
        return End(Outcome.INVALID_NUMBER, Reason.NOT_A_NUMBER)
    if country not in campaign.countries:
        return End(Outcome.NOT_PLACED, Reason.COUNTRY)
    return None


def _first_permitted_moment(lead: LeadFacts, campaign: CampaignRules, batch: BatchContext) -> Verdict:
    """Return Go if hours, the rolling 24 hours and the customer's rate all allow the call now.

    Otherwise defer the lead to the first moment at which all three do, or end it.
    """
    moment, reason = batch.now, None
    given_up = end_of_patience(lead, campaign, batch.now)
    for _ in range(ROUNDS):
        before = moment
        for limit in (_limit_by_hours, _limit_by_day, _limit_by_rate):
            allowed, why = limit(lead, campaign, batch, moment)
            if allowed is None or (allowed > batch.now and allowed > given_up):
                return End(Outcome.OUTSIDE_WINDOW, why if why in LIMITS else Reason.NEVER_PERMITTED)
            if allowed > moment:
                moment, reason = allowed, why
        if moment == before:
            break
    if reason is not None:
        _reserve_slot(lead, campaign, batch, moment, reason)
        return Defer(up_to_ms(moment), reason)
    batch.dialed.setdefault((lead.organization_id, lead.phone), []).append(batch.now)
    if (spent := _spent(lead, campaign, batch)) is not None:
        spent.append(batch.now)
    return GO


def permitted_from(lead: LeadFacts, campaign: CampaignRules, batch: BatchContext) -> datetime | None:
    """Return the first moment from now on at which the hours allow a call, or None if there is none soon."""
    hours = batch.hours(lead, campaign)
    if not hours.zones:
        return None
    permission = hours.permission(batch.now)
    return batch.now if permission.open else permission.until


def permitted_until(lead: LeadFacts, campaign: CampaignRules, batch: BatchContext, latest: datetime) -> datetime:
    """Return until when a lead that may be called now may be called, at most `latest`.

    It is the moment at which the hours of the lead close, if that is before `latest`.
    """
    hours = batch.hours(lead, campaign)
    permission = hours.permission(batch.now)
    while permission.open and permission.until is not None and permission.until < latest:
        edge = permission.until
        permission = calling_permission(edge, hours.zones, hours.bounds)
        if not permission.open:
            return edge
    return latest


def _bounds_of(lead: LeadFacts, campaign: CampaignRules, batch: BatchContext) -> tuple[Hours, ...]:
    country = geography.country_of(lead.phone)
    states = geography.states_of(lead.phone, lead.lat, lead.lng) if country == "US" else frozenset()
    bounds = batch.bounds(campaign, country, states)
    if lead.contact_from is None or lead.contact_until is None:
        return bounds
    return (*bounds, _contact_hours(lead.contact_from, lead.contact_until))


@lru_cache(maxsize=2048)
def _contact_hours(since: time, until: time) -> Hours:
    """Return the hours to which a person limits calls. Like all bounds, they only narrow the others."""
    return hours_of(PERSON, [(day, since, until) for day in range(7)])


def _limit_by_hours(
    lead: LeadFacts, campaign: CampaignRules, batch: BatchContext, at: datetime
) -> tuple[datetime | None, Reason]:
    """Return when the hours allow the call, or the end of the horizon if they do not open within it."""
    hours = batch.hours(lead, campaign)
    if not hours.zones:
        return None, Reason.OUTSIDE_WINDOW
    permission = hours.permission(at)
    if permission.open:
        return at, Reason.OUTSIDE_WINDOW
    opens = permission.until or at + HORIZON
    if permission.holiday:
        return opens, Reason.HOLIDAY
    why = {CAMPAIGN: Reason.OUTSIDE_WINDOW, PERSON: Reason.CONTACT_HOURS}
    return opens, why.get(permission.closed_by, Reason.STATE_RULE)


def _limit_by_day(
    lead: LeadFacts, campaign: CampaignRules, batch: BatchContext, at: datetime
) -> tuple[datetime | None, Reason]:
    began = batch.dialed.get((lead.organization_id, lead.phone), ())
    return first_moment_below_limit(at, began, campaign.max_attempts_24h, DAY), Reason.ATTEMPTS_24H


def _limit_by_rate(
    lead: LeadFacts, campaign: CampaignRules, batch: BatchContext, at: datetime
) -> tuple[datetime | None, Reason]:
    """Return when the customer's rate allows the call.

    Leads that wait for the rate form a queue over all batches, in which each has its time. When that has come, the
    lead may have to wait a little longer, but keeps its place. Other leads go to the end of the queue.
    """
    spent = _spent(lead, campaign, batch)
    if spent is None:
        return at, Reason.CUSTOMER_RATE
    customer = (lead.organization_id, lead.customer or campaign.customer)
    rate, queued = batch.rates[customer], batch.queued.get(customer, [])
    if lead.reason == Reason.CUSTOMER_RATE:
        if lead.due_at in queued:  # it is about to be called, or goes to the end
            queued.remove(lead.due_at)
        allowed = first_moment_below_limit(at, spent, rate.most, rate.per)
        if allowed is not None and allowed <= batch.now + RATE_GRACE:
            return allowed, Reason.CUSTOMER_RATE
    return _behind_the_queue(customer, batch, at), Reason.CUSTOMER_RATE


def _behind_the_queue(customer: tuple[int, str], batch: BatchContext, at: datetime) -> datetime | None:
    """Return when the customer's rate allows a call besides those that were made and those that are planned."""
    rate = batch.rates[customer]
    planned = [moment + rate.lateness for moment in batch.queued.get(customer, ())]
    return first_moment_below_limit(at, [*batch.spent.get(customer, ()), *planned], rate.most, rate.per)


def is_rate_free(customer: tuple[int, str], due_at: datetime, batch: BatchContext) -> bool:
    """Return whether the customer's rate allows the call of a lead now that waits in its queue until `due_at`."""
    if customer not in batch.rates:
        return True
    queued = batch.queued.get(customer, [])
    if due_at in queued:
        queued.remove(due_at)
    return _behind_the_queue(customer, batch, batch.now) == batch.now


def _spent(lead: LeadFacts, campaign: CampaignRules, batch: BatchContext) -> list[datetime] | None:
    """Return the starts of calls that count against the rate of the lead's customer; None if there is no rate."""
    key = (lead.organization_id, lead.customer or campaign.customer)
    return batch.spent.setdefault(key, []) if key in batch.rates else None


def _reserve_slot(
    lead: LeadFacts, campaign: CampaignRules, batch: BatchContext, moment: datetime, reason: Reason
) -> None:
    """Reserve the future slot of a lead that the rate deferred, so that the next lead is deferred further.

    Otherwise all such leads would be due at the same moment, and most of them would be deferred again.
    """
    if reason is Reason.CUSTOMER_RATE:
        batch.queued.setdefault((lead.organization_id, lead.customer or campaign.customer), []).append(moment)
