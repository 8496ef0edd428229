"""Reads what the gates need for a batch of leads, in a few statements, inside the transaction that claims them.

What a decision of one batch could take from another's is locked until the transaction ends: the phones (by
advisory locks, in one order) for the attempts of the rolling day, and the customers' rates. The law's hours,
holidays and retry rules change seldom and are read again after RULEBOOK_S; switches, campaigns and do-not-call
every time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from dispatch.core.statements import ask, do, integers, rows, texts
from dispatch.leads import gate_sql as sql
from dispatch.leads.models import CallingRule, ClosedDay, Holiday, RetryRule
from dispatch.leads.models.rulebook import RETRIED
from dispatch.leads.rules.facts import CampaignRules, LeadFacts
from dispatch.leads.rules.gates import Batch, PlaceRule, Rate
from dispatch.leads.rules.retries import Retry
from dispatch.leads.rules.windows import Permissions, hours_of
from dispatch.leads.rules.words import Outcome

RULEBOOK_S = 0.5


@dataclass(frozen=True)
class Rulebook:
    """What changes seldom. `closed`: dates by organization; `retries`: by campaign."""

    rules: tuple[PlaceRule, ...]
    holidays: dict[tuple[str, str], frozenset[date]]
    closed: dict[int, frozenset[date]]
    retries: dict[int, dict[Outcome, Retry]]


_kept: tuple[float, Rulebook] | None = None
# Remembered across batches: an answer holds however many leads ask for it.
_permissions = Permissions()


def forget() -> None:
    """The next batch reads the rulebook anew."""
    global _kept
    _kept = None


def rulebook() -> Rulebook:
    """The rulebook, at most RULEBOOK_S old."""
    global _kept
    if _kept is None or time.monotonic() - _kept[0] > RULEBOOK_S:
        _kept = (time.monotonic(), _read_rulebook())
    return _kept[1]


def campaigns(ids: Iterable[int]) -> dict[int, CampaignRules]:
    """The campaigns of these ids as they are now, with their organizations' switches."""
    return switches(ids)[1]


def read(leads: Sequence[LeadFacts], now: datetime) -> Batch:
    """What `rules.gates.decide` needs for these leads. Call it in the transaction that writes their calls."""
    book = rulebook()
    organizations = [lead.organization_id for lead in leads]
    phones = [lead.phone for lead in leads]
    whom = {"organizations": integers(organizations), "phones": texts(phones)}
    # asked in one go where the caller has opened a pipeline
    campaigns = ask(sql.CAMPAIGNS, {"ids": integers({lead.campaign_id for lead in leads})})
    do(sql.LOCK_PHONES, whom)
    refused = ask(sql.REFUSED, whom)
    dialed = ask(sql.DIALED, {**whom, "since": now - timedelta(hours=24)})
    stopped, found = _switches_of(campaigns(), book)
    batch = Batch(now, stopped, found, book.rules, book.holidays, permissions=_permissions)
    customers = {(lead.organization_id, lead.customer or found[lead.campaign_id].customer) for lead in leads}
    customers = {pair for pair in customers if pair[1]}
    told = refused()
    batch.refused = {(organization, phone) for organization, phone in told if organization}
    batch.refused_everywhere = {phone for organization, phone in told if not organization}
    for organization, phone, began in dialed():
        batch.dialed.setdefault((organization, phone), []).append(began)
    if customers:
        with connection.cursor() as cursor:
            _read_rates(cursor, batch, sorted(customers))
    return batch


def _read_rates(cursor: Any, batch: Batch, customers: list[tuple[int, str]]) -> None:
    cursor.execute(sql.LOCK_RATES, [[pair[0] for pair in customers], [pair[1] for pair in customers]])
    rates = cursor.fetchall()
    batch.rates = {
        (organization, customer): Rate(most, timedelta(seconds=per_s))
        for _, organization, customer, most, per_s in rates
    }
    if rates:
        cursor.execute(sql.SPENT, [batch.now, [row[0] for row in rates]])
        for organization, customer, began in cursor:
            batch.spent.setdefault((organization, customer), []).append(began)


def switches(ids: Iterable[int]) -> tuple[bool, dict[int, CampaignRules]]:
    """Whether the kill switch is on, and the campaigns of these ids with their organizations' switches."""
    return _switches_of(rows(sql.CAMPAIGNS, {"ids": integers(ids)}), rulebook())


def _switches_of(answer: Iterable[Sequence[Any]], book: Rulebook) -> tuple[bool, dict[int, CampaignRules]]:
    found: dict[int, CampaignRules] = {}
    stopped = False
    for row in answer:
        stopped = row[0]
        if row[1] is not None:
            rules = _rules_of(row[1:], book)
            found[rules.id] = rules
    return stopped, found


def _rules_of(row: Sequence[Any], book: Rulebook) -> CampaignRules:
    (
        pk, organization_id, pool_id, is_paused, customer, window_from, window_until, weekdays, keeps_holidays,
        patience_h, max_attempts, max_attempts_24h, ring_timeout_s, time_limit_s, detect_machines, precheck_url,
        precheck_timeout_s, precheck_without_answer, precheck_secret, code, mode, organization_paused, countries,
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
        dial={"campaign_id": pk},
        is_paused=is_paused,
        organization_paused=organization_paused,
        countries=frozenset(countries),
        customer=customer,
        week=tuple((day, window_from, window_until) for day in weekdays),
        keeps_holidays=keeps_holidays,
        closed_days=book.closed.get(organization_id, frozenset()) if keeps_holidays else frozenset(),
        patience_h=patience_h,
        max_attempts=max_attempts,
        max_attempts_24h=max_attempts_24h,
        retries={**_usual_retries(), **book.retries.get(pk, {})},
        code=code,
        precheck_secret=precheck_secret,
        precheck_timeout_s=precheck_timeout_s,
        precheck_without_answer=precheck_without_answer,
    )


def _usual_retries() -> dict[Outcome, Retry]:
    usual = Retry(
        delay_s=settings.LEADS_RETRY_DELAY_S,
        factor=settings.LEADS_RETRY_FACTOR,
        longest_s=settings.LEADS_RETRY_LONGEST_S,
        jitter=settings.LEADS_RETRY_JITTER,
        attempts=settings.LEADS_RETRY_ATTEMPTS,
    )
    return dict.fromkeys(RETRIED, usual)


def _read_rulebook() -> Rulebook:
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
    retries: dict[int, dict[Outcome, Retry]] = defaultdict(dict)
    for row in RetryRule.objects.all():
        retries[row.campaign_id][Outcome(row.outcome)] = Retry(
            row.delay_s, row.factor, row.longest_s, row.jitter, row.attempts
        )
    return Rulebook(
        rules=tuple(
            PlaceRule(country, region, hours_of(name, week, since=since, until=until), keeps)
            for (country, region, name, since, until, keeps), week in spans.items()
        ),
        holidays={place: frozenset(days) for place, days in holidays.items()},
        closed={organization: frozenset(days) for organization, days in closed.items()},
        retries=dict(retries),
    )
