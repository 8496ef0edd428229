"""Which leads may be called, and how many at once: rules, switches, lines, pools and rates."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.leads import redis_queue
from dispatch.leads.models import Campaign, DoNotCall, EngineSwitch, Lead, LeadDispatch
from dispatch.leads.rules.states import Reason
from dispatch.leads.services import switches
from dispatch.telephony import services
from dispatch.telephony.models import Call
from dispatch.telephony.services import sms
from tests.harness.leads import Floor, subscribe_to
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB = "+16025550101", "+16025550102"


def test_deferred_lead_is_rescheduled_and_releases_its_line(floor: Floor) -> None:
    floor.campaign.is_paused = True
    floor.campaign.save()
    (lead,) = floor.add(ANN)
    assert floor.work() == 0
    row = floor.lead(lead)
    assert (row.status, row.reason) == ("backlog", Reason.CAMPAIGN_PAUSED)
    assert row.due_at > clock.now() + timedelta(days=1)
    assert floor.told(lead) == ["created"]
    floor.assert_nothing_held()

    floor.campaign.is_paused = False
    floor.campaign.save()
    assert switches.release_leads([Reason.CAMPAIGN_PAUSED], campaign_id=floor.campaign.pk) == 1
    assert floor.work() == 1


def test_opted_out_phone_is_not_called(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    DoNotCall.objects.create(organization=floor.organization, phone=ANN)
    assert floor.work() == 0
    assert floor.lead(lead).outcome == "do_not_call"
    assert floor.told(lead) == ["created", "finished"]
    floor.assert_nothing_held()


def test_stop_by_text_prevents_calls(floor: Floor) -> None:
    sms.opt_out(floor.organization.pk, ANN)
    (lead,) = floor.add(ANN)
    assert floor.work() == 0
    assert floor.lead(lead).outcome == "do_not_call"


def test_the_kill_switch_stops_all_and_loses_nothing(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    switch = EngineSwitch.objects.create(pk=1, is_stopped=True)
    floor.promote()
    claimed = floor.claim()
    assert (claimed.calls, claimed.why) == ([], "stopped")
    assert floor.lead(lead).reason == ""
    floor.assert_nothing_held()
    switch.is_stopped = False
    switch.save()
    assert floor.work() == 1


def test_no_more_calls_at_once_than_lines_and_the_next_when_one_ends(floor: Floor) -> None:
    floor.use_provider("noop")
    ids = floor.add_many(8)
    floor.promote()
    floor.settle(floor.ask(floor.claim()))
    assert floor.outcomes(ids) == {"processing": 5, "backlog": 3}
    assert floor.claim().why == "lines_busy"
    slots = Call.objects.filter(ended_at=None).values_list("line_slot", flat=True)
    assert sorted(slots) == [1, 2, 3, 4, 5]
    heard = subscribe_to(redis_queue.wakeup_channel())
    services.hang_up(Call.objects.filter(ended_at=None).order_by("pk")[0].pk)
    assert heard() == [f"line:{floor.pool.pk}"]
    assert len(floor.dial().calls) == 1
    assert floor.claim().why == "lines_busy"


def test_a_free_line_without_a_ready_lead_wakes_nobody(floor: Floor) -> None:
    floor.use_provider("noop")
    floor.add_many(5)
    floor.promote()
    floor.settle(floor.ask(floor.claim()))
    heard = subscribe_to(redis_queue.wakeup_channel())
    services.hang_up(Call.objects.filter(ended_at=None).order_by("pk")[0].pk)
    floor.add_many(1)
    floor.promote()
    assert heard() == [f"one:{floor.pool.pk}"]
    assert len(floor.dial().calls) == 1


def test_reserved_lines_are_not_for_leads(floor: Floor) -> None:
    floor.use_provider("noop")
    floor.number.reserved_for_offers, floor.number.reserved_for_alerts = 2, 1
    floor.number.save()
    floor.add_many(4)
    floor.promote()
    assert len(floor.dial().calls) == 2
    assert floor.claim().why == "lines_busy"


def test_the_pools_concurrency_holds(floor: Floor) -> None:
    floor.use_provider("noop")
    floor.pool.concurrency = 3
    floor.pool.save()
    floor.add_many(5)
    floor.promote()
    assert len(floor.dial().calls) == 3
    assert floor.claim().why == "pool_full"


def test_the_pools_rate_holds_in_any_minute(floor: Floor) -> None:
    floor.pool.rate_per_minute = 3
    floor.pool.save()
    floor.add_many(5)
    assert floor.work() == 3
    claimed = floor.claim()
    assert claimed.why == "rate"
    assert 0 < claimed.wait_s <= 60
    clock.travel(60.1)
    assert floor.work() == 2


def test_an_accounts_pace_holds_and_its_turns_are_spread(floor: Floor) -> None:
    floor.account.calls_per_second = 50.0
    floor.account.save()
    floor.add_many(20)
    floor.promote()
    claimed = floor.claim()
    turns = [to_ask.turn_at for to_ask in claimed.calls]
    # what one reserves lies within a tenth of a second: at 50 a second, the present and five more
    assert 1 <= len(turns) <= 6
    gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(turns)]
    assert all(gap == pytest.approx(0.02, abs=0.001) for gap in gaps)
    assert floor.outcomes() == {"processing": len(turns), "backlog": 20 - len(turns)}
    assert floor.in_redis()[f"room:{floor.pool.pk}"] == 20 - len(turns)


def test_two_leads_to_one_phone_are_never_called_at_once(floor: Floor) -> None:
    floor.use_provider("noop")
    Campaign.objects.update(allows_duplicates=True)
    floor.campaign.refresh_from_db()
    ids = floor.add(ANN, ANN)
    floor.promote()
    assert len(floor.dial().calls) == 1
    assert floor.outcomes(ids) == {"processing": 1, "backlog": 1}
    waiting = Lead.objects.get(status="backlog")
    assert waiting.reason == Reason.PHONE_BUSY
    assert floor.lines_in_use() == 1
    services.hang_up(Call.objects.get().pk)
    clock.travel(11)
    floor.promote()
    assert len(floor.dial().calls) == 1


def test_line_lost_by_redis_is_refused_by_postgres_and_repaired(floor: Floor) -> None:
    floor.use_provider("noop")
    floor.number.max_channels = 1
    floor.number.save()
    first, second = floor.add(ANN, BOB)
    floor.promote()
    assert len(floor.dial(1).calls) == 1
    from dispatch.capacity import redis_scripts

    redis_scripts.run_script(redis_scripts.RELEASE, [f"lead:{first}:1"])  # in Redis the line is free
    assert floor.dial().calls == []
    assert floor.lines_in_use() == 1
    assert floor.status(second) == "backlog"
    assert Call.objects.count() == 1


def test_a_paused_tenant_does_not_hold_up_a_busy_one(floor: Floor) -> None:
    other = factories.organization()
    LeadDispatch.objects.create(organization=other, mode="live", is_paused=True)
    account = factories.account(other, provider="noop-ends")
    pool = factories.pool(other)
    factories.number(other, account=account, pool=pool)
    theirs = floor.add_campaign(organization=other, pool=pool)
    held = floor.add_many(30, to=theirs)
    mine = floor.add_many(30)
    pools = redis_queue.ready_pools()
    assert floor.work() == 30
    assert floor.outcomes(mine) == {"answered": 30}
    assert floor.outcomes(held) == {"backlog": 30}
    assert pools == []
    assert redis_queue.ready_pools() == [pool.pk]
