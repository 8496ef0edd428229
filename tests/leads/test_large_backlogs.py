"""Work that must not grow with the number of waiting leads, busy pools, campaigns or organizations."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.redis import generation
from dispatch.core.redis.client import client
from dispatch.leads import loops, metrics, pool_rotation, redis_queue
from dispatch.leads.dialer import Dialer
from dispatch.leads.models import LeadDispatch
from dispatch.leads.pool_rotation import PoolRotation
from dispatch.leads.rules import geography
from dispatch.leads.services import claims, reconciliation, switches
from dispatch.leads.services.claim_batches import ClaimResult
from tests.conftest import forget_redis
from tests.harness.leads import Floor
from tests.support import factories
from tests.support.database import note_statements
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_leads_beyond_a_rebuild_follow_those_that_it_scheduled(
    floor: Floor, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LEADS_REBUILD_MOST, settings.LEADS_JITTER_S, settings.LEADS_JITTER_PER = 10, 100.0, 10**9
    monkeypatch.setattr(reconciliation, "PAGE", 10)
    monkeypatch.setattr(reconciliation, "COMPARED", 5)
    monkeypatch.setattr(reconciliation, "SWEEP_PAGE", 10)
    ids = [floor.add_many(1, at=floor.due_in(n - 60))[0] for n in range(30)]
    forget_redis()
    began_ms = redis_queue.to_ms(clock.now())
    generation.ensure_generation()
    assert floor.in_redis()["schedule"] == 10
    floor.step("leads_near")
    while loops.sweep_backlog() == 0.0:
        pass
    entries: Any = client().zrange(f"{redis_queue.base_key()}:schedule", 0, -1, withscores=True)
    scheduled = [ids.index(int(member.split(b":")[1])) for member, _ in entries]
    assert sorted(scheduled) == list(range(30))
    assert set(scheduled[:10]) == set(range(10))
    assert [set(scheduled[start : start + 5]) for start in range(10, 30, 5)] == [
        set(range(start, start + 5)) for start in range(10, 30, 5)
    ]
    moments = [score for _, score in entries]
    assert moments[0] >= began_ms
    assert moments[-1] - moments[10] >= 40_000, "they are spread, too"


def test_overdue_leads_are_compared_only_if_some_are_missing(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "MANY_OVERDUE", 5)
    ids = floor.add_many(12)
    floor.promote()
    floor.step("leads_sweep")
    compared: list[int] = []
    real = redis_queue.sync_missing

    def sync(page: str) -> int:
        compared.append(len(page.split()) // 2)
        return real(page)

    monkeypatch.setattr(redis_queue, "sync_missing", sync)
    assert reconciliation.schedule_near() == 0
    assert compared == []
    redis_queue.dequeue([f"{floor.pool.pk}:{ids[3]}:1"])
    assert reconciliation.schedule_near() == 1
    assert compared == [12]
    assert floor.work() == 12


def test_a_pool_without_free_lines_is_checked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, checks = [1000.0], []
    monkeypatch.setattr(pool_rotation, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(redis_queue, "ready_pools", lambda: [7])

    def claim(*_: Any) -> ClaimResult:
        checks.append(now[0])
        return ClaimResult(why="lines_busy", wait_s=1.0)

    monkeypatch.setattr(claims, "claim_leads", claim)
    rotation = PoolRotation()
    rotation._organizations[7] = 1
    for _ in range(100):
        rotation.claim_batch("tester", lambda _: 10, claims.no_claims)
        now[0] += 0.1
    assert 5 <= len(checks) <= 9
    rotation.release_pause(7)
    rotation.claim_batch("tester", lambda _: 10, claims.no_claims)
    assert checks[-1] == now[0], "a line has become free"


def test_a_free_line_wakes_one_idle_puller() -> None:
    async def main() -> None:
        dialer = Dialer()
        first, second = dialer._wakeups
        dialer._idle = {0, 1}
        dialer._handle_message("line:7")
        assert [first.is_set(), second.is_set()].count(True) == 1
        assert dialer._rotation._marked == []

    asyncio.run(main())


def test_the_kill_switch_costs_the_same_for_any_number_of_organizations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(30):
        LeadDispatch.objects.create(organization=factories.organization(), mode="live")
    statements = note_statements(monkeypatch)
    switches.set_engine(is_stopped=True, actor=SYSTEM)
    told = Event.objects.filter(kind="lead_engine.switched")
    assert set(told.values_list("organization_id", flat=True)) == set(
        LeadDispatch.objects.values_list("organization_id", flat=True)
    )
    assert told[0].data == {"is_stopped": True}
    assert len(statements) == 1


def test_the_backlog_is_counted_once_for_all_gauges(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_counted", (0.0, []))
    monkeypatch.setattr(metrics, "CACHE_FROM_S", -1.0)
    monkeypatch.setattr(metrics, "CACHE_FACTOR", 10.0**9)
    floor.add_many(2)
    floor.add_many(1, at=floor.due_in(60))
    assert metrics.backlog() == [(("due",), 3)]
    floor.add_many(1)
    assert metrics.overdue() == [((), 2)], "the count is cached for as long as it is expensive"


def test_the_first_due_lead_does_not_wait_for_the_data_that_locates_it() -> None:
    """It takes a second to load. A dialer loads it when it starts, if leads wait."""
    floor = Floor()
    floor.add("+16025550101", at=floor.due_in(3600))
    for part in (geography._states_by_area, geography._zip_cells):
        part.cache_clear()
    floor.start()
    try:
        wait_until(lambda: geography._zip_cells.cache_info().currsize)
        assert geography._states_by_area.cache_info().currsize
    finally:
        floor.stop()
