"""A dry run does everything but the call, and takes nothing from the leads."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.leads import dry_run_report
from dispatch.leads.explain import explain_lead
from dispatch.leads.models import Campaign, DoNotCall
from dispatch.leads.services import actions, switches
from dispatch.telephony.models import Call
from tests.harness.leads import Floor

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB = "+16025550101", "+16025550102"
KEPT = ("status", "outcome", "wanted_at", "attempts", "token", "finished_at", "last_outcome", "claimed_at")


def switch_to(floor: Floor, mode: str) -> None:
    switches.set_dispatch(floor.organization.pk, mode=mode, actor=SYSTEM)
    floor.step(switches.LIFTED)


def simulations() -> int:
    return Event.objects.filter(kind="lead.simulated").count()


def test_dry_run_does_everything_except_the_call(floor: Floor) -> None:
    switch_to(floor, "dry_run")
    (lead,) = floor.add(ANN)
    before = {name: getattr(floor.lead(lead), name) for name in KEPT}
    assert floor.work() == 0
    after = floor.lead(lead)
    assert {name: getattr(after, name) for name in KEPT} == before
    assert (after.reason, after.simulated_outcome) == ("dry_run", "called")
    assert after.simulated_at is not None
    assert explain_lead(after) == "The dry run would have called this lead. It will be called when you go live."
    assert not Call.objects.exists()
    event = Event.objects.get(kind="lead.simulated")
    assert event.data == {"outcome": "called", "campaign_id": floor.campaign.pk, "number": floor.number.pk}
    assert floor.lines_in_use() == 0
    assert {name for name in floor.in_redis() if name.startswith("held")} == set()


def test_a_dry_run_simulates_each_lead_once(floor: Floor) -> None:
    switch_to(floor, "dry_run")
    floor.add_many(20)
    floor.work()
    assert simulations() == 20
    for _ in range(5):
        clock.travel(3600)
        for loop in (switches.LIFTED, "leads_near"):
            floor.step(loop)
        assert floor.work() == 0
    assert simulations() == 20


def test_after_a_dry_run_all_leads_are_called(floor: Floor) -> None:
    switch_to(floor, "dry_run")
    ids = floor.add_many(20)
    floor.work()
    assert floor.outcomes(ids) == {"backlog": 20}
    switch_to(floor, "live")
    assert floor.work() == 20
    assert floor.outcomes(ids) == {"answered": 20}


def test_a_dry_run_that_is_turned_off_leaves_the_leads_waiting(floor: Floor) -> None:
    switch_to(floor, "dry_run")
    (lead,) = floor.add(ANN)
    floor.work()
    switch_to(floor, "off")
    floor.work()
    assert (floor.lead(lead).status, floor.lead(lead).reason) == ("backlog", "organization_off")
    switch_to(floor, "dry_run")
    floor.work()
    assert simulations() == 2
    switch_to(floor, "live")
    assert floor.work() == 1


def test_a_dry_run_ends_no_lead_that_it_would_not_call(floor: Floor) -> None:
    switch_to(floor, "dry_run")
    (lead,) = floor.add(ANN)
    refusal = DoNotCall.objects.create(organization=floor.organization, phone=ANN)
    floor.work()
    assert (floor.lead(lead).status, floor.lead(lead).simulated_outcome) == ("backlog", "do_not_call")
    assert explain_lead(floor.lead(lead)) == "The dry run would have ended this lead: On the do-not-call list."
    refusal.delete()
    switch_to(floor, "live")
    assert floor.work() == 1


def test_a_lead_outside_its_hours_waits_for_them_in_a_dry_run(floor: Floor) -> None:
    switch_to(floor, "dry_run")
    now = clock.now()
    weekdays = [day for day in range(7) if day not in {now.weekday(), (now.weekday() - 1) % 7}]
    Campaign.objects.update(weekdays=weekdays)
    (lead,) = floor.add(ANN)
    floor.work()
    assert floor.lead(lead).reason == "outside_window"
    assert floor.lead(lead).simulated_at is None


def test_a_simulated_lead_is_simulated_again_on_request_and_can_be_cancelled(floor: Floor) -> None:
    switch_to(floor, "dry_run")
    ann, bob = floor.add(ANN, BOB)
    floor.work()
    actions.dispatch_now(ann, actor=SYSTEM)
    assert floor.work() == 0
    assert simulations() == 3
    actions.cancel_lead(bob, actor=SYSTEM)
    switch_to(floor, "live")
    assert floor.work() == 1
    assert floor.lead(bob).outcome == "cancelled"


def test_call_now_in_a_dry_run_is_remembered_when_it_ends(floor: Floor) -> None:
    switch_to(floor, "dry_run")
    (lead,) = floor.add(ANN, at=floor.due_in(7 * 86_400))
    actions.dispatch_now(lead, actor=SYSTEM)
    assert floor.work() == 0
    switch_to(floor, "live")
    assert floor.work() == 1


def test_the_report_of_a_dry_run_outlives_it(floor: Floor) -> None:
    began = clock.now()
    switch_to(floor, "dry_run")
    floor.add(ANN)
    floor.add(BOB)
    DoNotCall.objects.create(organization=floor.organization, phone=BOB)
    floor.work()
    clock.travel(60)
    switch_to(floor, "live")
    floor.work()
    clock.travel(60)
    ours = dry_run_report.dry_run(floor.organization, began, clock.now())
    assert [phone for phone, _ in ours] == [ANN]
