"""Read the facts that the eligibility check of a batch needs, in the transaction that claims the batch.

It takes a few statements. State that concurrent batches share is locked until the transaction ends: the phones (by
advisory locks, in a fixed order) for the attempts of the rolling 24 hours, and the customers' rates. Legal hours,
holidays and retry rules change rarely and are read again after RULES_CACHE_S; switches, campaigns and do-not-call
lists are read every time.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from dispatch.core.db.prepared import execute, fetch_all, fetch_later, integers, texts
from dispatch.core.privacy import replay
from dispatch.leads import eligibility_sql as sql
from dispatch.leads.models import CallingRule, ClosedDay, DispositionRule, Holiday, Lead, RetryRule
from dispatch.leads.models.calling_rules import RETRIED
from dispatch.leads.rules.calling_hours import PermissionCache, hours_of
from dispatch.leads.rules.eligibility import (
    BatchContext,
    CustomerRateLimit,
    RegionRule,
    is_rate_free,
    permitted_from,
    permitted_until,
)
from dispatch.leads.rules.retries import CampaignRules, LeadFacts, RetryPolicy
from dispatch.leads.rules.states import Outcome
from dispatch.leads.services import consents
from dispatch.telephony import sql as telephony

RULES_CACHE_S = 0.5
HOURS_AT_ONCE = timedelta(hours=12)
# Up to this many customers of a campaign in a batch, the waiting leads of each are read separately, which ends
# early. Those of more customers are read together.
FEW_CUSTOMERS = 10


@dataclass(frozen=True)
class CallingRules:
    """Rules that change rarely. `closed`: dates by organization; `retries` and `recycling`: by campaign."""

    rules: tuple[RegionRule, ...]
    holidays: dict[tuple[str, str], frozenset[date]]
    closed: dict[int, frozenset[date]]
    retries: dict[int, dict[Outcome, RetryPolicy]]
    recycling: dict[int, dict[str, timedelta | None]]


_cached: tuple[float, CallingRules] | None = None
# Cached across batches: thousands of leads share a few permissions.
_permissions = PermissionCache()


def reset() -> None:
    """Reset the cached calling rules."""
    global _cached
    _cached = None


def calling_rules() -> CallingRules:
    """Return the calling rules, at most RULES_CACHE_S old."""
    global _cached
    if _cached is None or time.monotonic() - _cached[0] > RULES_CACHE_S:
        _cached = (time.monotonic(), _load_calling_rules())
    return _cached[1]


def campaigns(ids: Iterable[int]) -> dict[int, CampaignRules]:
    """Return the current rules of the campaigns with these ids, with their organizations' switches."""
    return switches(ids)[1]


def _by_organization(leads: Sequence[LeadFacts]) -> dict[int, set[str]]:
    """Return the phones of the leads by organization."""
    phones: dict[int, set[str]] = {}
    for lead in leads:
        phones.setdefault(lead.organization_id, set()).add(lead.phone)
    return phones


def load_batch(leads: Sequence[LeadFacts], now: datetime) -> BatchContext:
    """Load the facts that `rules.eligibility.check_eligibility` needs for these leads.

    Call it in the transaction that writes their calls.
    """
    rules = calling_rules()
    organizations = [lead.organization_id for lead in leads]
    phones = [lead.phone for lead in leads]
    pairs = {"organizations": integers(organizations), "phones": texts(phones)}
    # pipelined if the caller has opened a pipeline
    campaigns = fetch_later(sql.CAMPAIGNS, {"ids": integers({lead.campaign_id for lead in leads})})
    execute(telephony.LOCK_PHONES, pairs)
    refused = fetch_later(sql.REFUSED, pairs)
    dialed = fetch_later(sql.DIALED, {**pairs, "since": now - timedelta(hours=24)})
    stopped, rules_by_campaign = _switches_of(campaigns(), rules)
    batch = BatchContext(now, stopped, rules_by_campaign, rules.rules, rules.holidays, permissions=_permissions)
    customers = {
        (lead.organization_id, lead.customer or rules_by_campaign[lead.campaign_id].customer, lead.campaign_id)
        for lead in leads
    }
    customers = {each for each in customers if each[1]}
    exclusions = refused()
    batch.refused = {(pk, phone) for pk, phone, is_opt_out in exclusions if pk is not None and not is_opt_out}
    batch.opted_out = {(pk, phone) for pk, phone, is_opt_out in exclusions if is_opt_out}
    batch.refused_everywhere = {phone for pk, phone, _ in exclusions if pk is None}
    for organization, leads_of in _by_organization(leads).items():
        for kind, pairs_of_kind in ((replay.DO_NOT_CALL, batch.refused), (replay.OPT_OUT, batch.opted_out)):
            pairs_of_kind |= {(organization, phone) for phone in replay.find_refused(organization, leads_of, kind)}
    for organization, phone, began in dialed():
        batch.dialed.setdefault((organization, phone), []).append(began)
    if customers:
        with connection.cursor() as cursor:
            _read_rates(cursor, batch, sorted(customers))
    batch.consents = consents.valid_consents(
        (lead.organization_id, lead.phone, purpose)
        for lead in leads
        if (purpose := rules_by_campaign[lead.campaign_id].consent_purpose)
    )
    return batch


def permitted_hours(lead: LeadFacts, now: datetime) -> tuple[datetime, datetime] | None:
    """Return from when to when the lead's phone may be called next, at most HOURS_AT_ONCE; None if never soon."""
    rules = calling_rules()
    stopped, rules_by_campaign = _switches_of(
        fetch_all(sql.CAMPAIGNS, {"ids": integers([lead.campaign_id])}), rules
    )
    campaign = rules_by_campaign[lead.campaign_id]

    def at(moment: datetime) -> BatchContext:
        return BatchContext(
            moment, stopped, rules_by_campaign, rules.rules, rules.holidays, permissions=_permissions
        )

    begins = permitted_from(lead, campaign, at(now))
    if begins is None:
        return None
    return begins, permitted_until(lead, campaign, at(begins), begins + HOURS_AT_ONCE)


def may_leave_rate_queue(lead: Lead, now: datetime) -> bool:
    """Return whether the rate of the lead's customer, for which it waits, allows its call now.

    Locks the rate until the end of the transaction.
    """
    customer = (lead.organization_id, lead.customer or lead.campaign.customer)
    batch = BatchContext(now, stopped=False, campaigns={})
    with connection.cursor() as cursor:
        _read_rates(cursor, batch, [(*customer, lead.campaign_id)])
    return is_rate_free(customer, lead.due_at, batch)


def _read_rates(cursor: Any, batch: BatchContext, customers: list[tuple[int, str, int]]) -> None:
    """Read the rates of these (organization, customer, campaign)."""
    pairs = sorted({each[:2] for each in customers})
    cursor.execute(sql.LOCK_RATES, [[pair[0] for pair in pairs], [pair[1] for pair in pairs]])
    rates = cursor.fetchall()
    batch.rates = {
        (organization, customer): CustomerRateLimit(most, timedelta(seconds=per_s))
        for _, organization, customer, most, per_s in rates
    }
    if rates:
        ids = [row[0] for row in rates]
        cursor.execute(sql.SPENT, [batch.now, ids])
        for organization, customer, began in cursor:
            batch.spent.setdefault((organization, customer), []).append(began)
        limited = [each for each in customers if each[:2] in batch.rates]
        per_campaign = Counter(campaign_id for _, _, campaign_id in limited)
        few = [each for each in limited if per_campaign[each[2]] <= FEW_CUSTOMERS]
        cursor.execute(sql.QUEUED, [ids, *([each[n] for each in few] for n in range(3)), batch.now])
        queued = cursor.fetchall()
        if many := [each for each in limited if per_campaign[each[2]] > FEW_CUSTOMERS]:
            now = batch.now
            cursor.execute(sql.QUEUED_OF_MANY, [*([each[n] for each in many] for n in range(3)), now, now])
            queued += cursor.fetchall()
        for organization, customer, due_at in queued:
            batch.queued.setdefault((organization, customer), []).append(due_at)


def switches(ids: Iterable[int]) -> tuple[bool, dict[int, CampaignRules]]:
    """Return whether the kill switch is on, and the campaigns' rules with their organizations' switches."""
    return _switches_of(fetch_all(sql.CAMPAIGNS, {"ids": integers(ids)}), calling_rules())


def _switches_of(
    rows: Iterable[Sequence[Any]], calling_rules: CallingRules
) -> tuple[bool, dict[int, CampaignRules]]:
    rules_by_campaign: dict[int, CampaignRules] = {}
    stopped = False
    for row in rows:
        stopped = row[0]
        if row[1] is not None:
            rules = _rules_of(row[1:], calling_rules)
            rules_by_campaign[rules.id] = rules
    return stopped, rules_by_campaign


def _rules_of(row: Sequence[Any], calling_rules: CallingRules) -> CampaignRules:
    (
        pk, organization_id, pool_id, is_paused, customer, window_from, window_until, weekdays, keeps_holidays,
        patience_h, max_attempts, max_attempts_24h, ring_timeout_s, time_limit_s, detect_machines, precheck_url,
        precheck_timeout_s, precheck_without_answer, precheck_secret, code, mode, organization_paused, countries,
        has_words, has_voicemail, consent_purpose,
    ) = row  # fmt: skip
    return CampaignRules(
        id=pk,
        organization_id=organization_id,
        pool_id=pool_id,
        mode=mode,
        ring_timeout_s=ring_timeout_s,
        time_limit_s=time_limit_s,
        detect_machines=detect_machines,
        precheck_url=precheck_url,
        dial={"campaign_id": pk, **({"voicemail": True} if has_voicemail else {})},
        is_paused=is_paused,
        organization_paused=organization_paused,
        countries=frozenset(countries),
        customer=customer,
        week=tuple((day, window_from, window_until) for day in weekdays),
        keeps_holidays=keeps_holidays,
        closed_days=calling_rules.closed.get(organization_id, frozenset()) if keeps_holidays else frozenset(),
        patience_h=patience_h,
        max_attempts=max_attempts,
        max_attempts_24h=max_attempts_24h,
        retries={**_default_retries(), **calling_rules.retries.get(pk, {})},
        code=code,
        precheck_secret=precheck_secret,
        precheck_timeout_s=precheck_timeout_s,
        precheck_without_answer=precheck_without_answer,
        has_words=has_words,
        consent_purpose=consent_purpose,
        recycling=calling_rules.recycling.get(pk, {}),
    )


def _default_retries() -> dict[Outcome, RetryPolicy]:
    policy = RetryPolicy(
        delay_s=settings.LEADS_RETRY_DELAY_S,
        factor=settings.LEADS_RETRY_FACTOR,
        longest_s=settings.LEADS_RETRY_LONGEST_S,
        jitter=settings.LEADS_RETRY_JITTER,
        attempts=settings.LEADS_RETRY_ATTEMPTS,
    )
    return dict.fromkeys(RETRIED, policy)


def _load_calling_rules() -> CallingRules:
    spans: dict[tuple[str, str, str, date | None, date | None, bool], list[Any]] = defaultdict(list)
    for rule in CallingRule.objects.all():
        place = (rule.country, rule.region, rule.name, rule.since, rule.until, rule.keeps_holidays)
        spans[place] += [(day, rule.window_from, rule.window_until) for day in rule.weekdays]
    holidays: dict[tuple[str, str], set[date]] = defaultdict(set)
    for country, region, day in Holiday.objects.values_list("country", "region", "date"):
        holidays[country, region].add(day)
    closed: dict[int, set[date]] = defaultdict(set)
    for organization_id, day in ClosedDay.objects.values_list("organization_id", "date"):
        closed[organization_id].add(day)
    retries: dict[int, dict[Outcome, RetryPolicy]] = defaultdict(dict)
    for row in RetryRule.objects.all():
        retries[row.campaign_id][Outcome(row.outcome)] = RetryPolicy(
            row.delay_s, row.factor, row.longest_s, row.jitter, row.attempts
        )
    recycling: dict[int, dict[str, timedelta | None]] = defaultdict(dict)
    for after in DispositionRule.objects.all():
        delay = timedelta(hours=after.delay_h) if after.then == DispositionRule.Then.AGAIN else None
        recycling[after.campaign_id][after.disposition] = delay
    return CallingRules(
        rules=tuple(
            RegionRule(country, region, hours_of(name, week, since=since, until=until), keeps)
            for (country, region, name, since, until, keeps), week in spans.items()
        ),
        holidays={place: frozenset(days) for place, days in holidays.items()},
        closed={organization: frozenset(days) for organization, days in closed.items()},
        retries=dict(retries),
        recycling=dict(recycling),
    )
