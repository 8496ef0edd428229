"""Lifting a switch loses no lead, even if no process is notified."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.runtime.loops import find_loop
from dispatch.leads import loops
from dispatch.leads.models import Campaign, EngineSwitch, Lead, LeadDispatch
from dispatch.leads.rules.eligibility import FAR
from dispatch.leads.services import actions, switches
from tests.harness.leads import Floor
from tests.support import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization()
    LeadDispatch.objects.create(organization=organization, mode="live")
    pool = make.pool(organization)
    return Campaign.objects.create(
        organization=organization, pool=pool, code="spring", name="Spring", script="Hello."
    )


def held(campaign: Campaign, reason: str) -> Lead:
    wanted = clock.now() - timedelta(hours=1)
    return campaign.leads.create(
        organization=campaign.organization, phone=make.phone(), reason=reason, wanted_at=wanted,
        due_at=wanted + FAR,
    )  # fmt: skip


def is_due(lead: Lead) -> bool:
    lead.refresh_from_db()
    return lead.reason == "" and lead.due_at <= clock.now()


LIFT = {
    "stopped": (
        lambda c: switches.set_engine(is_stopped=True, actor=SYSTEM),
        lambda c: switches.set_engine(is_stopped=False, actor=SYSTEM),
    ),
    "organization_off": (
        lambda c: switches.set_dispatch(c.organization_id, mode="off", actor=SYSTEM),
        lambda c: switches.set_dispatch(c.organization_id, mode="live", actor=SYSTEM),
    ),
    "organization_paused": (
        lambda c: switches.set_dispatch(c.organization_id, is_paused=True, actor=SYSTEM),
        lambda c: switches.set_dispatch(c.organization_id, is_paused=False, actor=SYSTEM),
    ),
    "campaign_paused": (
        lambda c: switches.pause_campaign(c.pk, True, actor=SYSTEM),
        lambda c: switches.pause_campaign(c.pk, False, actor=SYSTEM),
    ),
}


@pytest.mark.parametrize("reason", LIFT)
def test_waiting_leads_continue_when_their_switch_is_lifted(campaign, reason):
    set_, lift = LIFT[reason]
    set_(campaign)
    lead, other = held(campaign, reason), held(campaign, "outside_window")
    find_loop(switches.LIFTED).step()
    assert not is_due(lead)
    lift(campaign)
    find_loop(switches.LIFTED).step()
    assert is_due(lead)
    assert not is_due(other)  # a switch is not the only limit


@pytest.mark.django_db(transaction=True)
def test_call_now_is_remembered_while_a_switch_holds_the_lead(floor: Floor) -> None:
    switches.pause_campaign(floor.campaign.pk, True, actor=SYSTEM)
    (lead,) = floor.add(make.phone(), at=floor.due_in(7 * 86_400))
    actions.dispatch_now(lead, actor=SYSTEM)
    assert floor.work() == 0
    assert floor.lead(lead).reason == "campaign_paused"
    switches.pause_campaign(floor.campaign.pk, False, actor=SYSTEM)
    floor.step(switches.LIFTED)
    assert floor.work() == 1


def close_today(floor: Floor) -> None:
    """Let the campaign call only from the day after tomorrow on, and give leads up after an hour."""
    today = clock.now().weekday()
    days = [day for day in range(7) if (day - today) % 7 not in (6, 0, 1)]
    Campaign.objects.update(weekdays=days, patience_h=1)


@pytest.mark.django_db(transaction=True)
def test_call_now_outside_the_calling_hours_waits_for_them(floor: Floor) -> None:
    close_today(floor)
    (lead,) = floor.add(make.phone(), at=floor.due_in(10 * 86_400))
    actions.dispatch_now(lead, actor=SYSTEM)
    assert floor.work() == 0
    row = floor.lead(lead)
    assert (row.status, row.reason) == ("backlog", "outside_window")
    clock.travel((row.due_at - clock.now()).total_seconds() + 1)
    assert floor.work() == 1


@pytest.mark.django_db(transaction=True)
def test_call_now_is_remembered_by_a_switch_that_holds_the_lead_later(floor: Floor) -> None:
    close_today(floor)
    (lead,) = floor.add(make.phone(), at=floor.due_in(10 * 86_400))
    actions.dispatch_now(lead, actor=SYSTEM)
    assert floor.work() == 0
    clock.travel((floor.lead(lead).due_at - clock.now()).total_seconds() + 1)
    switches.pause_campaign(floor.campaign.pk, True, actor=SYSTEM)
    assert floor.work() == 0
    switches.pause_campaign(floor.campaign.pk, False, actor=SYSTEM)
    floor.step(switches.LIFTED)
    assert floor.work() == 1


HOLDS: dict[str, tuple[Callable[[Floor], object], Callable[[Floor], object]]] = {
    "campaign paused": (
        lambda floor: switches.pause_campaign(floor.campaign.pk, True, actor=SYSTEM),
        lambda floor: switches.pause_campaign(floor.campaign.pk, False, actor=SYSTEM),
    ),
    "organization paused": (
        lambda floor: switches.set_dispatch(floor.organization.pk, is_paused=True, actor=SYSTEM),
        lambda floor: switches.set_dispatch(floor.organization.pk, is_paused=False, actor=SYSTEM),
    ),
    "organization off": (
        lambda floor: switches.set_dispatch(floor.organization.pk, mode="off", actor=SYSTEM),
        lambda floor: switches.set_dispatch(floor.organization.pk, mode="live", actor=SYSTEM),
    ),
    "dry run": (
        lambda floor: switches.set_dispatch(floor.organization.pk, mode="dry_run", actor=SYSTEM),
        lambda floor: switches.set_dispatch(floor.organization.pk, mode="live", actor=SYSTEM),
    ),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("hold", HOLDS)
def test_lead_held_beyond_its_patience_is_called_in_the_next_hours(floor: Floor, hold: str) -> None:
    Campaign.objects.update(window_from="08:00", window_until="21:00", patience_h=168)
    hold_leads, lift = HOLDS[hold]
    travel_to("12:05")
    hold_leads(floor)
    leads = floor.add(make.phone(), make.phone())
    assert floor.work() == 0
    clock.travel(9 * 86_400)
    travel_to("21:05")
    lift(floor)
    floor.step(switches.LIFTED)
    assert floor.work() == 0
    assert {(row.status, row.reason) for row in map(floor.lead, leads)} == {("backlog", "outside_window")}
    travel_to("08:05")
    assert floor.work() == 2


def pause_pool(floor: Floor, is_paused: bool) -> None:
    DispatchPool.objects.filter(pk=floor.campaign.pool_id).update(is_paused=is_paused)


def pause_promoter(floor: Floor, is_paused: bool) -> None:
    switches.set_engine(promoter_paused=is_paused, actor=SYSTEM)
    loops.reset()  # it reads its switch twice a second


STOPS: dict[str, Callable[[Floor, bool], object]] = {
    "kill switch": lambda floor, on: switches.set_engine(is_stopped=on, actor=SYSTEM),
    "promoter paused": pause_promoter,
    "pool paused": pause_pool,
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("stop", STOPS)
def test_lead_ready_for_longer_than_its_patience_is_called_in_the_next_hours(floor: Floor, stop: str) -> None:
    Campaign.objects.update(window_from="08:00", window_until="21:00", patience_h=12)
    travel_to("12:05")
    STOPS[stop](floor, True)
    (lead,) = floor.add(make.phone())
    assert floor.work() == 0
    clock.travel(2 * 86_400)
    travel_to("21:05")
    assert floor.work() == 0
    assert floor.lead(lead).reason == "", "it is ready, and no switch has written to it"
    STOPS[stop](floor, False)
    assert floor.work() == 0
    assert (floor.lead(lead).status, floor.lead(lead).reason) == ("backlog", "outside_window")
    travel_to("08:05")
    assert floor.work() == 1


@pytest.mark.django_db(transaction=True)
def test_patience_of_a_held_lead_begins_when_the_switch_is_lifted(floor: Floor) -> None:
    close_today(floor)
    switches.pause_campaign(floor.campaign.pk, True, actor=SYSTEM)
    (lead,) = floor.add(make.phone())
    floor.work()
    clock.travel(60)
    switches.pause_campaign(floor.campaign.pk, False, actor=SYSTEM)
    floor.step(switches.LIFTED)
    assert floor.work() == 0
    assert floor.lead(lead).outcome == "outside_window", "the patience of an hour ends before the hours open"


def travel_to(local: str) -> None:
    """Move the clock to the next moment at which it is `local` (HH:MM) in Phoenix."""
    now = clock.now().astimezone(ZoneInfo("America/Phoenix"))
    hour, minute = map(int, local.split(":"))
    moment = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    moment += timedelta(days=1) if moment <= now else timedelta()
    clock.travel((moment - now).total_seconds())


def test_leads_held_by_another_switch_stay_held(campaign):
    switches.pause_campaign(campaign.pk, True, actor=SYSTEM)
    switches.set_dispatch(campaign.organization_id, is_paused=True, actor=SYSTEM)
    by_campaign, by_organization = held(campaign, "campaign_paused"), held(campaign, "organization_paused")
    switches.set_dispatch(campaign.organization_id, is_paused=False, actor=SYSTEM)
    find_loop(switches.LIFTED).step()
    assert is_due(by_organization)  # its next gate says no again, for the campaign's sake
    assert not is_due(by_campaign)


def test_the_pause_of_one_organization_is_not_anothers(campaign):
    other = make.organization()
    LeadDispatch.objects.create(organization=other, mode="live", is_paused=True)
    theirs = Campaign.objects.create(
        organization=other, pool=make.pool(other), code="spring", name="Spring", script="Hello."
    )
    lead = held(theirs, "organization_paused")
    switches.set_dispatch(campaign.organization_id, is_paused=False, actor=SYSTEM)
    find_loop(switches.LIFTED).step()
    assert not is_due(lead)


def test_every_change_is_recorded_once_with_its_actor(campaign):
    switches.set_engine(is_stopped=True, actor=SYSTEM)
    switches.set_engine(is_stopped=True, actor=SYSTEM)
    assert EngineSwitch.objects.get().is_stopped
    told = Event.objects.filter(kind="lead_engine.switched")
    assert [(event.organization_id, event.data) for event in told] == [
        (campaign.organization_id, {"is_stopped": True})
    ]
