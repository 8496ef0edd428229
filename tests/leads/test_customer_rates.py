"""A customer's rate over many batches: leads queue behind it, and are deferred about once."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.leads import eligibility
from dispatch.leads.models import CustomerRate, Lead
from dispatch.leads.services import actions, claim_batches
from dispatch.leads.services.intake import NewLead
from dispatch.telephony.models import Call
from tests.harness.leads import Floor
from tests.support import factories

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(lines=50)]

MOST, PER_S, BATCH = 3, 30, 3


@pytest.fixture
def floor(floor: Floor) -> Floor:
    floor.campaign.customer = "acme"
    floor.campaign.save()
    CustomerRate.objects.create(organization=floor.organization, customer="acme", most=MOST, per_s=PER_S)
    return floor


@pytest.fixture
def deferrals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The leads that were deferred, once per deferral."""
    deferred: list[int] = []
    real = claim_batches.ClaimBatch._defer

    def defer(batch: Any, later: Any) -> None:
        deferred.extend(lead.id for lead, _ in later)
        real(batch, later)

    monkeypatch.setattr(claim_batches.ClaimBatch, "_defer", defer)
    return deferred


def work_in_small_batches(floor: Floor) -> None:
    floor.promote()
    while floor.dial(BATCH).taken:
        floor.promote()


def next_due() -> datetime | None:
    return Lead.objects.filter(status="backlog").order_by("due_at").values_list("due_at", flat=True).first()


def assert_rate_kept() -> None:
    made = sorted(Call.objects.values_list("requested_at", flat=True))
    for first, last in zip(made, made[MOST:], strict=False):
        assert last - first >= timedelta(seconds=PER_S), made


def test_leads_over_the_rate_are_deferred_about_once(floor: Floor, deferrals: list[int]) -> None:
    ids = floor.add_many(18)
    work_in_small_batches(floor)
    assert len(deferrals) == 15
    assert len(set(Lead.objects.filter(status="backlog").values_list("due_at", flat=True))) >= 15 // MOST
    for _ in range(60):
        due_at = next_due()
        if due_at is None:
            break
        clock.travel(max(0.0, (due_at - clock.now()).total_seconds()) + 0.05)
        work_in_small_batches(floor)
    assert floor.outcomes(ids) == {"answered": 18}
    assert_rate_kept()
    assert len(deferrals) <= 2 * 18


def test_a_new_lead_goes_behind_those_that_wait(floor: Floor) -> None:
    floor.add_many(9)
    work_in_small_batches(floor)
    last = Lead.objects.filter(status="backlog").order_by("-due_at").values_list("due_at", flat=True)[0]
    (late,) = floor.add_many(1)
    work_in_small_batches(floor)
    assert floor.lead(late).due_at >= last
    assert floor.lead(late).reason == "customer_rate"


def test_canceled_leads_leave_the_queue(floor: Floor) -> None:
    ids = floor.add_many(MOST + 9)
    work_in_small_batches(floor)
    for lead in ids:
        if floor.status(lead) == "backlog":
            actions.cancel_lead(lead, actor=SYSTEM)
    clock.travel(PER_S + 1)
    (late,) = floor.add_many(1)
    work_in_small_batches(floor)
    assert floor.lead(late).outcome == "answered"


def waiting() -> list[Lead]:
    return list(Lead.objects.filter(status="backlog").order_by("due_at", "id"))


def test_call_now_keeps_the_place_of_a_lead_that_waits_for_the_rate(floor: Floor) -> None:
    floor.add_many(MOST + 9)
    work_in_small_batches(floor)
    before = waiting()
    for lead in (before[0], before[-1]):
        actions.dispatch_now(lead.pk, actor=SYSTEM)
    work_in_small_batches(floor)
    assert [(lead.pk, lead.due_at) for lead in waiting()] == [(lead.pk, lead.due_at) for lead in before]
    clock.travel((before[0].due_at - clock.now()).total_seconds() + 0.05)
    work_in_small_batches(floor)
    assert floor.lead(before[0].pk).outcome == "answered"


@pytest.mark.parametrize("rates", [{"most": 100}, {}], ids=["raised", "removed"])
def test_call_now_does_not_wait_for_a_rate_that_no_longer_limits(floor: Floor, rates: dict[str, int]) -> None:
    floor.add_many(MOST + 9)
    work_in_small_batches(floor)
    if rates:
        CustomerRate.objects.update(**rates)
    else:
        CustomerRate.objects.all().delete()
    last = waiting()[-1]
    actions.dispatch_now(last.pk, actor=SYSTEM)
    work_in_small_batches(floor)
    assert floor.lead(last.pk).outcome == "answered"


def test_calls_know_the_customer_on_whose_behalf_they_are_made(floor: Floor) -> None:
    floor.add_many(1)
    floor.work()
    assert Call.objects.get().customer == "acme"


@pytest.mark.parametrize("customer", ["acme", "other", ""])
def test_customers_of_a_campaign_queue_separately(floor: Floor, customer: str) -> None:
    CustomerRate.objects.create(organization=floor.organization, customer="other", most=MOST, per_s=PER_S)
    campaign = floor.add_campaign(customer=customer)
    floor.accept([NewLead(factories.phone(), customer="other") for _ in range(9)], to=campaign)
    work_in_small_batches(floor)
    name = "" if customer == "acme" else "acme"
    (single,) = floor.accept([NewLead(factories.phone(), customer=name)], to=campaign)
    work_in_small_batches(floor)
    assert floor.lead(single.id or 0).outcome == "answered"


@pytest.mark.parametrize("own", ["", "acme"])
@pytest.mark.parametrize("count", [eligibility.FEW_CUSTOMERS, eligibility.FEW_CUSTOMERS + 3])
def test_each_customer_of_a_batch_has_its_own_queue(floor: Floor, count: int, own: str) -> None:
    customers = [f"customer-{n}" for n in range(count - 1)] + ["acme"]
    CustomerRate.objects.bulk_create(
        CustomerRate(organization=floor.organization, customer=name, most=1, per_s=3600) for name in customers[:-1]
    )
    CustomerRate.objects.filter(customer="acme").update(most=1, per_s=3600)
    campaign = floor.add_campaign(customer=own)
    for _ in range(4):
        floor.accept([NewLead(factories.phone(), customer=name) for name in customers], to=campaign)
        floor.promote()
        assert floor.dial(50).taken == count
    for name in customers:
        dues = [lead.due_at for lead in waiting() if lead.customer == name]
        assert len(dues) == 3
        apart = [later - earlier for earlier, later in itertools.pairwise(dues)]
        assert all(timedelta(seconds=3600) <= gap <= timedelta(seconds=3602) for gap in apart), apart
