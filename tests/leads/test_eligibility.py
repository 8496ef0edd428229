"""What is read from the tables for a batch of leads."""

from __future__ import annotations

from datetime import date, time, timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.db import transaction

from dispatch.core import clock
from dispatch.leads import eligibility
from dispatch.leads.models import (
    CallingRule,
    Campaign,
    ClosedDay,
    CustomerRate,
    DoNotCall,
    DoNotCallEverywhere,
    EngineSwitch,
    Holiday,
    LeadDispatch,
    RetryRule,
)  # fmt: skip
from dispatch.leads.rules.retries import LeadFacts
from dispatch.leads.rules.states import Outcome
from dispatch.telephony.models import Call
from tests.support import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization()
    LeadDispatch.objects.create(organization=organization, mode="live")
    pool = make.pool(organization)
    return Campaign.objects.create(
        organization=organization, pool=pool, code="spring", name="Spring", customer="acme"
    )


def facts(campaign: Campaign, phone: str = "+16025550100", **more: object) -> LeadFacts:
    now = clock.now()
    return LeadFacts(
        id=1, organization_id=campaign.organization_id, campaign_id=campaign.pk, phone=phone, lat=None, lng=None,
        customer="", external_id="", attempts=0, token=0, wanted_at=now, due_at=now, reason="",
    )._replace(**more)  # fmt: skip


def read(*leads: LeadFacts):
    with transaction.atomic():
        return eligibility.load_batch(leads, clock.now())


def test_a_campaign_is_read_with_its_organizations_switches(campaign):
    organization = campaign.organization
    ClosedDay.objects.create(organization=organization, date=date(2026, 12, 24), name="Party")
    RetryRule.objects.create(
        organization=organization, campaign=campaign, outcome="busy", attempts=5, delay_s=60, factor=1, jitter=0
    )
    rules = read(facts(campaign)).campaigns[campaign.pk]
    assert (rules.mode, rules.organization_paused, rules.is_paused) == ("live", False, False)
    assert rules.week[0] == (0, time(8), time(21))
    assert rules.closed_days == {date(2026, 12, 24)}
    assert (rules.retries[Outcome.BUSY].attempts, rules.retries[Outcome.BUSY].delay_s) == (5, 60)
    assert rules.retries[Outcome.NO_ANSWER].delay_s == 3600  # the setting
    assert Outcome.ANSWERED not in rules.retries


def test_switches_are_read_every_time(campaign):
    assert read(facts(campaign)).stopped is False
    EngineSwitch.objects.update_or_create(pk=1, defaults={"is_stopped": True})
    LeadDispatch.objects.update(is_paused=True)
    Campaign.objects.update(is_paused=True)
    found = read(facts(campaign))
    rules = found.campaigns[campaign.pk]
    assert (found.stopped, rules.organization_paused, rules.is_paused) == (True, True, True)


def test_an_organization_without_the_row_or_not_active_is_off(campaign):
    LeadDispatch.objects.all().delete()
    assert read(facts(campaign)).campaigns[campaign.pk].mode == "off"


def test_do_not_call_is_the_organizations_own_or_everybodys(campaign):
    other = make.organization()
    DoNotCall.objects.create(organization=campaign.organization, phone="+16025550100")
    DoNotCall.objects.create(organization=other, phone="+16025550101")
    DoNotCallEverywhere.objects.create(phone="+16025550102")
    phones = [f"+1602555010{last}" for last in range(4)]
    found = read(*(facts(campaign, phone) for phone in phones))
    assert found.refused == {(campaign.organization_id, "+16025550100")}
    assert found.refused_everywhere == {"+16025550102"}


def call(campaign: Campaign, subject: int, phone: str, ago: timedelta, **more: object) -> Call:
    number = make.number(campaign.organization)
    at = clock.now() - ago
    return Call.objects.create(
        organization=campaign.organization, purpose="lead", subject_id=subject, account=number.account,
        number=number, pool=campaign.pool, line_slot=0, pool_slot=0, to_phone=phone, from_phone=number.phone,
        place_by=at, created_at=at, requested_at=at, ended_at=at, **{"status": "completed", **more},
    )  # fmt: skip


def test_rolling_day_counts_possible_calls_of_any_campaign(campaign):
    for subject, (ago, status) in enumerate(
        [(1, "completed"), (23, "lost"), (25, "completed"), (2, "rejected"), (3, "not_placed")]
    ):
        call(campaign, subject, "+16025550100", timedelta(hours=ago), status=status)
    call(campaign, 99, "+16025550199", timedelta(hours=1))
    began = read(facts(campaign)).dialed[campaign.organization_id, "+16025550100"]
    assert sorted(round((clock.now() - moment).total_seconds() / 3600) for moment in began) == [1, 23]


def test_a_customers_rate_counts_the_calls_made_on_its_behalf(campaign):
    CustomerRate.objects.create(organization=campaign.organization, customer="acme", most=2, per_s=60)
    for customer, ago in (("acme", 10), ("other", 10), ("", 10), ("acme", 70)):
        call(campaign, ago, f"+1602555{ago:04}", timedelta(seconds=ago), attempt=len(customer), customer=customer)
    found = read(facts(campaign))
    assert found.rates[campaign.organization_id, "acme"].most == 2
    assert len(found.spent[campaign.organization_id, "acme"]) == 1


def test_rows_of_one_place_are_one_set_of_hours(campaign):
    CallingRule.objects.all().delete()
    for weekdays, begins in (([0, 1, 2, 3, 4, 5], time(9)), ([6], time(12))):
        CallingRule.objects.create(region="TX", name="Texas", weekdays=weekdays, window_from=begins, source="test")
    Holiday.objects.create(date=date(2026, 12, 25), name="Christmas Day")
    found = read(facts(campaign))
    assert [(rule.region, len(rule.hours.spans)) for rule in found.rules] == [("TX", 7)]
    assert found.holidays == {("US", ""): frozenset({date(2026, 12, 25)})}


def test_built_in_hours_are_federal_and_stricter_states():
    CallingRule.objects.all().delete()  # tests that commit have emptied the table, or not
    import_module("dispatch.leads.migrations.0001_initial").write(apps, None)
    assert {"US-", "US-FL", "US-TX"} <= {
        f"{rule.country}-{rule.region}" for rule in eligibility.calling_rules().rules
    }
