"""Redis is emptied, stopped, restarted: leads are taken in all the same, and everything due goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatch.core import clock, faults, generation, sparing
from dispatch.core.redis import client
from dispatch.leads import loops, schedule
from dispatch.leads.models import Lead
from dispatch.leads.rules import spreading
from dispatch.leads.services import repairing
from dispatch.telephony.models import Call
from tests import factories
from tests.api.client import Api
from tests.benchmarks import noop_provider
from tests.conftest import forget_redis
from tests.core.outages import redis_away
from tests.leads.floor import Floor

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def floor(settings: Any) -> Floor:
    settings.PROVIDER_MODULES = noop_provider.MODULES
    settings.LEADS_JITTER_S = 0.0
    return Floor()


def test_a_lead_is_accepted_while_redis_is_gone_and_called_when_it_is_back(floor: Floor) -> None:
    with redis_away():
        ids = floor.add_many(3)
    sparing.believe_all_again()
    assert floor.outcomes(ids) == {"backlog": 3}
    assert floor.work() == 0
    floor.step("leads_near")
    assert floor.work() == 3


def test_a_request_is_answered_with_201_while_redis_is_gone(floor: Floor) -> None:
    api = Api(key=factories.api_key(floor.organization, "leads:write", "read"))
    lead = {"phone": factories.phone()}
    with redis_away():
        one = api.post("leads/", {"campaign": floor.campaign.code, **lead}, Idempotency_Key="once")
        again = api.post("leads/", {"campaign": floor.campaign.code, **lead}, Idempotency_Key="once")
        many = api.post("leads/bulk/", {"campaign": floor.campaign.code, "leads": [{"phone": factories.phone()}]})
        assert (one.status_code, again.status_code, many.status_code) == (201, 201, 201)
        assert one.json() == again.json()
        cancelled = api.delete(f"leads/{many.json()['results'][0]['id']}/")
        assert cancelled.status_code == 204
    sparing.believe_all_again()
    floor.step("leads_near")
    assert floor.work() == 1
    assert floor.outcomes() == {"answered": 1, "cancelled": 1}


def test_a_flushed_redis_is_noticed_at_the_next_tick_and_rebuilt(floor: Floor) -> None:
    due = floor.add_many(5)
    soon = floor.add_many(2, at=floor.due_in(300))
    far = floor.add_many(2, at=floor.due_in(7200))
    floor.promote()
    forget_redis()
    loops.promote()
    assert floor.in_redis()["schedule"] == 7
    assert floor.work() == 5
    assert floor.outcomes(due) == {"answered": 5}
    assert loops.sweep() is None
    assert floor.in_redis()["schedule"] == 4
    clock.travel(7201)
    assert floor.work() == 4
    assert floor.outcomes([*soon, *far]) == {"answered": 4}


def test_flushed_between_taking_and_claiming_nobody_is_called_without_a_line(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    floor.promote()
    with faults.arm("leads.claim.taken", forget_redis):
        claimed = floor.claim()
    # the lead may have been called on its line, which Postgres guards, or go on waiting; it is not lost
    floor.settle(floor.ask(claimed))
    generation.ensure()
    floor.step("leads_near")
    floor.work()
    assert floor.lead(lead).outcome == "answered"
    assert len(floor.calls(lead)) == 1


def test_after_an_outage_what_is_overdue_is_spread_and_nothing_is_early(floor: Floor, settings: Any) -> None:
    settings.LEADS_JITTER_S, settings.LEADS_JITTER_PER = 10.0, 5
    floor.add_many(20)
    later = floor.add_many(1, at=floor.due_in(300))[0]
    forget_redis()
    before = clock.now_ms()
    generation.ensure()
    after = clock.now_ms()
    stored: Any = client().zrange(f"{schedule.base_key()}:schedule", 0, -1, withscores=True)
    moments = [score for member, score in stored if f":{later}:" not in member.decode()]
    assert len(moments) == 20
    window = spreading.window_s(20, 10.0, 5, settings.LEADS_JITTER_MOST_S) * 1000
    assert window == 50_000
    assert all(before <= moment <= after + window for moment in moments)
    assert moments[-1] - moments[0] > window / 2
    assert stored[-1][1] >= Lead.objects.get(pk=later).due_at.timestamp() * 1000


def test_the_window_grows_with_the_backlog_up_to_its_most() -> None:
    assert spreading.window_s(0, 5, 1000, 300) == 5
    assert spreading.window_s(4000, 5, 1000, 300) == 25
    assert spreading.window_s(10**7, 5, 1000, 300) == 300
    places = [spreading.place_in(100, n, 10, 0.5) for n in range(10)]
    assert places == sorted(places)
    assert places[-1] <= 100


def test_a_reconciler_with_a_stale_page_moves_nobody_earlier(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    page = repairing.page_to_compare(repairing.START, clock.now() + timedelta(minutes=10), 10)
    assert page.leads == 1
    Lead.objects.filter(pk=lead).update(due_at=clock.now() + timedelta(hours=1))
    floor.promote()
    assert floor.claim().calls == []  # it is moved to where its row says
    repairing.schedule_missing(page)
    assert floor.work() == 0
    stored: Any = client().zrange(f"{schedule.base_key()}:schedule", 0, -1, withscores=True)
    assert stored[0][1] >= clock.now_ms() + 3_500_000


def test_what_a_dead_worker_held_goes_to_the_next(floor: Floor) -> None:
    ids = floor.add_many(4)
    floor.promote()
    with faults.arm("leads.claim.taken"), pytest.raises(faults.Interrupted):
        floor.claim(worker="dead")
    schedule.beat("alive")
    assert floor.claim().calls == []
    clock.travel(2)
    schedule.beat("alive")
    floor.step("leads_workers")
    assert floor.claim().calls == []
    clock.travel(19)
    schedule.beat("alive")
    floor.step("leads_workers")
    assert floor.work() == 4
    assert floor.outcomes(ids) == {"answered": 4}
    assert floor.lines_in_use() == 0


def test_killed_before_the_line_was_given_back_it_is_free_again_and_nobody_is_called_twice(floor: Floor) -> None:
    ids = floor.add_many(3)
    floor.promote()
    claimed = floor.claim()
    with faults.arm("leads.settle.before_release"), pytest.raises(faults.Interrupted):
        floor.settle(floor.ask(claimed))
    assert floor.outcomes(ids) == {"answered": 3}
    assert floor.lines_in_use() == 3
    floor.step("lines")
    assert floor.lines_in_use() == 0
    assert floor.work() == 0


def test_a_claim_whose_end_nobody_told_is_ended(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    floor.promote()
    floor.claim()
    Call.objects.update(status="completed", ended_at=clock.now())
    floor.step("leads_stale")
    assert floor.status(lead) == "processing"  # whoever wrote the end may be about to tell
    clock.travel(16)
    floor.step("leads_stale")
    assert floor.lead(lead).outcome == "answered"
    assert floor.told(lead) == ["created", "processing", "finished"]


def test_a_claim_whose_call_goes_on_is_left_alone_and_one_without_a_call_is_ended(floor: Floor) -> None:
    talking, without = floor.add_many(2)
    floor.promote()
    floor.claim()
    Call.objects.filter(subject_id=without).delete()
    clock.travel(100)
    floor.step("leads_stale")
    assert floor.outcomes() == {"processing": 2}
    clock.travel(201)
    floor.step("leads_stale")
    assert floor.status(talking) == "processing"
    assert floor.status(without) == "backlog"


def test_the_slow_sweep_takes_the_whole_backlog(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "SWEEP_PAGE", 4)
    at = floor.due_in(86_400)
    ids = floor.add(*(factories.phone() for _ in range(10)), at=at)
    client().delete(f"{schedule.base_key()}:schedule")
    sweep = repairing.Sweep()
    steps = [sweep.step() for _ in range(4)]
    assert steps == [True, True, False, False]
    assert floor.in_redis()["schedule"] == len(ids)


def test_the_sweep_takes_as_much_at_a_time_as_brings_it_round_within_the_hour() -> None:
    assert repairing.sweep_page(0) == repairing.SWEEP_LEAST
    for backlog in (200_000, 1_000_000, 5_000_000):
        assert backlog / repairing.sweep_page(backlog) <= 3600
    assert repairing.sweep_page(1_000_000) < repairing.SWEEP_PAGE
    assert repairing.sweep_page(10**9) == repairing.PAGE
