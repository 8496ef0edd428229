"""Redis is flushed, stopped, restarted: leads are accepted, and everything due is called."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import structlog

from dispatch.core import clock, fault_injection
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.redis import generation
from dispatch.core.redis.client import client
from dispatch.leads import loops, redis_queue
from dispatch.leads.models import Lead
from dispatch.leads.rules import retries
from dispatch.leads.services import reconciliation
from dispatch.telephony.models import Call
from tests.api.client import Api
from tests.conftest import forget_redis
from tests.core.outages import redis_away
from tests.harness.leads import Floor
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def floor(floor: Floor, settings: Any) -> Floor:
    settings.LEADS_JITTER_S = 0.0
    return floor


def test_a_lead_is_accepted_while_redis_is_gone_and_called_when_it_is_back(floor: Floor) -> None:
    with redis_away():
        ids = floor.add_many(3)
    CircuitBreaker.reset_all()
    assert floor.outcomes(ids) == {"backlog": 3}
    assert floor.work() == 0
    floor.step("leads_near")
    assert floor.work() == 3


def test_a_redis_that_is_not_rebuilt_yet_is_no_warning(floor: Floor) -> None:
    """It is empty at the first start, and nothing need be done."""
    with structlog.testing.capture_logs() as logs:
        forget_redis()
        floor.add_many(1)
        with redis_away():
            floor.add_many(1)
    levels = [entry["log_level"] for entry in logs if entry["event"] == "leads_not_scheduled"]
    assert levels == ["info", "warning"]


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
    CircuitBreaker.reset_all()
    floor.step("leads_near")
    assert floor.work() == 1
    assert floor.outcomes() == {"answered": 1, "cancelled": 1}


def test_a_flushed_redis_is_noticed_at_the_next_tick_and_rebuilt(floor: Floor) -> None:
    due = floor.add_many(5)
    soon = floor.add_many(2, at=floor.due_in(300))
    far = floor.add_many(2, at=floor.due_in(7200))
    floor.promote()
    forget_redis()
    loops.promote_due()
    assert floor.in_redis()["schedule"] == 7
    assert floor.work() == 5
    assert floor.outcomes(due) == {"answered": 5}
    assert loops.sweep_backlog() is None
    assert floor.in_redis()["schedule"] == 4
    clock.travel(7201)
    assert floor.work() == 4
    assert floor.outcomes([*soon, *far]) == {"answered": 4}


def test_flushed_between_taking_and_claiming_nobody_is_called_without_a_line(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    floor.promote()
    with fault_injection.arm_crash_point("leads.claim.taken", forget_redis):
        claimed = floor.claim()
    # the lead may have been called on its line, which Postgres guards, or still wait; it is not lost
    floor.settle(floor.ask(claimed))
    generation.ensure_generation()
    floor.step("leads_near")
    floor.work()
    assert floor.lead(lead).outcome == "answered"
    assert len(floor.calls(lead)) == 1


def test_overdue_leads_are_spread_after_an_outage(floor: Floor, settings: Any) -> None:
    settings.LEADS_JITTER_S, settings.LEADS_JITTER_PER = 10.0, 5
    floor.add_many(20)
    later = floor.add_many(1, at=floor.due_in(300))[0]
    forget_redis()
    before = clock.now_ms()
    generation.ensure_generation()
    after = clock.now_ms()
    stored: Any = client().zrange(f"{redis_queue.base_key()}:schedule", 0, -1, withscores=True)
    moments = [score for member, score in stored if f":{later}:" not in member.decode()]
    assert len(moments) == 20
    window = retries.jitter_window_s(20, 10.0, 5, settings.LEADS_JITTER_MOST_S) * 1000
    assert window == 50_000
    assert all(before <= moment <= after + window for moment in moments)
    assert moments[-1] - moments[0] > window / 2
    assert stored[-1][1] >= Lead.objects.get(pk=later).due_at.timestamp() * 1000


def test_the_window_grows_with_the_backlog_up_to_its_most() -> None:
    assert retries.jitter_window_s(0, 5, 1000, 300) == 5
    assert retries.jitter_window_s(4000, 5, 1000, 300) == 25
    assert retries.jitter_window_s(10**7, 5, 1000, 300) == 300
    places = [retries.jitter_position(100, n, 10, 0.5) for n in range(10)]
    assert places == sorted(places)
    assert places[-1] <= 100


def test_a_reconciler_with_a_stale_page_moves_nobody_earlier(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    page = reconciliation.page_to_compare(reconciliation.START, clock.now() + timedelta(minutes=10), 10)
    assert page.leads == 1
    Lead.objects.filter(pk=lead).update(due_at=clock.now() + timedelta(hours=1))
    floor.promote()
    assert floor.claim().calls == []  # it is moved to where its row says
    reconciliation.schedule_missing(page)
    assert floor.work() == 0
    stored: Any = client().zrange(f"{redis_queue.base_key()}:schedule", 0, -1, withscores=True)
    assert stored[0][1] >= clock.now_ms() + 3_500_000


def test_leads_of_a_dead_dialer_go_to_the_next(floor: Floor) -> None:
    ids = floor.add_many(4)
    floor.promote()
    with fault_injection.arm_crash_point("leads.claim.taken"), pytest.raises(fault_injection.Interrupted):
        floor.claim(worker="dead")
    redis_queue.heartbeat("alive")
    assert floor.claim().calls == []
    clock.travel(2)
    redis_queue.heartbeat("alive")
    floor.step("leads_workers")
    assert floor.claim().calls == []
    clock.travel(19)
    redis_queue.heartbeat("alive")
    floor.step("leads_workers")
    assert floor.work() == 4
    assert floor.outcomes(ids) == {"answered": 4}
    assert floor.lines_in_use() == 0


def test_kill_before_release_frees_the_line_and_calls_nobody_twice(floor: Floor) -> None:
    ids = floor.add_many(3)
    floor.promote()
    claimed = floor.claim()
    with (
        fault_injection.arm_crash_point("leads.settle.before_release"),
        pytest.raises(fault_injection.Interrupted),
    ):
        floor.settle(floor.ask(claimed))
    assert floor.outcomes(ids) == {"answered": 3}
    assert floor.lines_in_use() == 3
    floor.step("lines")
    assert floor.lines_in_use() == 0
    assert floor.work() == 0


def test_claim_with_an_unreported_end_is_ended(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    floor.promote()
    floor.claim()
    floor.end_calls_unreported()
    floor.step("leads_stale")
    assert floor.status(lead) == "processing"  # the writer of the end may be about to notify
    clock.travel(16)
    floor.step("leads_stale")
    assert floor.lead(lead).outcome == "answered"
    assert floor.told(lead) == ["created", "processing", "finished"]


def test_claim_without_a_call_is_ended_and_one_with_a_live_call_is_not(floor: Floor) -> None:
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
    monkeypatch.setattr(reconciliation, "SWEEP_PAGE", 4)
    at = floor.due_in(86_400)
    ids = floor.add(*(factories.phone() for _ in range(10)), at=at)
    client().delete(f"{redis_queue.base_key()}:schedule")
    sweep = reconciliation.Sweep()
    steps = [sweep.step() for _ in range(4)]
    assert steps == [True, True, False, False]
    assert floor.in_redis()["schedule"] == len(ids)


def test_sweep_page_size_completes_the_backlog_within_the_hour() -> None:
    assert reconciliation.sweep_page(0) == reconciliation.MIN_SWEEP
    for backlog in (200_000, 1_000_000, 5_000_000):
        assert backlog / reconciliation.sweep_page(backlog) <= 3600
    assert reconciliation.sweep_page(1_000_000) < reconciliation.SWEEP_PAGE
    assert reconciliation.sweep_page(10**9) == reconciliation.PAGE
