"""Pools without free lines cost little: dialers check them only after one of their lines has become free."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.core import clock
from dispatch.leads import redis_queue
from dispatch.leads.pool_rotation import PoolRotation
from dispatch.leads.services import claims
from dispatch.leads.services.claim_batches import ClaimResult
from tests.harness.leads import Floor
from tests.support import factories

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(provider="noop", lines=1)]


@pytest.fixture
def floor(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> Floor:
    monkeypatch.setattr(redis_queue, "BLOCKED_S", 3600.0)
    return floor


def rotate(rotation: PoolRotation) -> ClaimResult:
    return rotation.claim_batch("tester", lambda _: 10, claims.no_claims)


def block(floor: Floor) -> None:
    """Occupy the only line, and let a dialer find out that the second lead has none."""
    floor.add_many(2)
    floor.promote()
    assert floor.dial().taken == 1
    assert redis_queue.ready_pools() == [floor.pool.pk]
    assert floor.claim().why == "lines_busy"


def test_busy_pools_are_checked_once_by_all_dialers(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        pool = factories.pool(floor.organization, concurrency=1)
        factories.number(floor.organization, account=floor.account, pool=pool, max_channels=1)
        campaign = floor.add_campaign(pool=pool)
        floor.add_many(2, to=campaign)
    floor.promote()
    dialers = [PoolRotation() for _ in range(3)]
    while rotate(dialers[0]).taken:
        pass
    checks: list[int] = []
    real = claims.claim_leads

    def claim(worker: str, pool_id: int, *rest: Any) -> Any:
        checks.append(pool_id)
        return real(worker, pool_id, *rest)

    monkeypatch.setattr(claims, "claim_leads", claim)
    for _ in range(5):
        for dialer in dialers:
            rotate(dialer)
    assert len(checks) <= 20  # not 20 pools by 15 rounds


def test_a_freed_line_makes_its_pool_ready_at_once(floor: Floor) -> None:
    block(floor)
    assert redis_queue.ready_pools() == []
    redis_queue.notify_dialers([floor.pool.pk])
    assert redis_queue.ready_pools() == [floor.pool.pk]


def test_a_new_lead_does_not_make_a_blocked_pool_ready(floor: Floor) -> None:
    block(floor)
    floor.add_many(3)
    floor.promote()
    assert redis_queue.ready_pools() == []


def test_a_blocked_pool_is_ready_again_without_any_message(floor: Floor) -> None:
    block(floor)
    assert redis_queue.ready_pools() == []
    clock.travel(3601)
    assert redis_queue.ready_pools() == [floor.pool.pk]


def test_a_dialer_that_stops_leaves_no_blocked_pools(floor: Floor) -> None:
    block(floor)
    redis_queue.deregister("tester")
    assert redis_queue.ready_pools() == [floor.pool.pk]
