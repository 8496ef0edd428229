"""Lost replies of Redis: the script ran, but its caller does not know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import DatabaseError

from dispatch.capacity import bulk as capacity
from dispatch.capacity import line_leases
from dispatch.capacity import redis_scripts as line_scripts
from dispatch.core import clock, fault_injection
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.redis.client import REDIS_ERRORS, Script
from dispatch.leads import redis_queue, redis_scripts
from dispatch.leads.rules.retries import GO
from dispatch.leads.services import claims
from tests.harness.leads import Floor
from tests.harness.reply_loss import ReplyLoss, losing_replies
from tests.support import factories

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(lines=10)]

LOSSES = pytest.mark.parametrize("how", ["cut", "hold"])


@pytest.fixture
def proxy(floor: Floor) -> Iterator[ReplyLoss]:
    with losing_replies() as made:
        yield made


def let_leases_lapse(floor: Floor) -> None:
    """Move past the leases, after which an uncompleted lead is ready again; every dialer is alive."""
    clock.travel(16)
    redis_queue.heartbeat("tester")
    floor.step("leads_workers")


def work_through(floor: Floor) -> None:
    """Let the dialer continue, as it does after Redis did not reply."""
    for _ in range(4):
        CircuitBreaker.reset_all()
        try:
            floor.work()
        except REDIS_ERRORS:
            continue


def assert_all_called_once(floor: Floor, ids: list[int]) -> None:
    assert floor.outcomes(ids) == {"answered": len(ids)}, floor.in_redis()
    assert [len(floor.calls(lead)) for lead in ids] == [1] * len(ids)
    floor.step("lines")
    assert floor.lines_in_use() == 0
    assert not [name for name in floor.in_redis() if name.startswith(("held", "room", "batches"))]


ON_THE_WAY = [
    redis_scripts.SCHEDULE,
    redis_scripts.PROMOTE,
    redis_scripts.RESERVE,
    redis_scripts.COMPLETE,
    line_scripts.TAKE_MANY,
    line_scripts.RELEASE,
]


def test_the_next_claim_after_a_lost_reply_has_the_same_leads_at_once(floor: Floor, proxy: ReplyLoss) -> None:
    ids = floor.add_many(3)
    floor.promote()
    proxy.lose(redis_scripts.RESERVE, "hold")
    with pytest.raises(REDIS_ERRORS):
        floor.claim()
    CircuitBreaker.reset_all()
    claimed = floor.claim()
    assert sorted(request.call.subject_id for request in claimed.calls) == ids


@LOSSES
@pytest.mark.parametrize("script", ON_THE_WAY, ids=lambda script: script.name)
def test_leads_are_called_although_a_reply_is_lost(
    floor: Floor, proxy: ReplyLoss, script: Script, how: str
) -> None:
    proxy.lose(script, how)
    ids = floor.add_many(5)
    work_through(floor)
    assert proxy.lost == 1
    floor.step("leads_near")
    let_leases_lapse(floor)
    floor.step("leads_near")
    work_through(floor)
    assert_all_called_once(floor, ids)


def test_a_repeated_request_for_leads_takes_no_more_than_asked(floor: Floor, proxy: ReplyLoss) -> None:
    floor.add_many(4)
    floor.promote()
    proxy.lose(redis_scripts.RESERVE, "cut")
    claimed = floor.claim(2)
    assert proxy.lost == 1
    assert (claimed.taken, len(claimed.calls)) == (2, 2)
    assert floor.claim(4).taken == 2


def test_repeated_batch_request_returns_the_same_batch(floor: Floor) -> None:
    floor.add_many(5)
    floor.promote()
    limits = capacity.load_pool_limits(floor.pool.pk)
    assert limits is not None
    first = redis_queue.reserve("tester:one", 3, limits)
    assert redis_queue.reserve("tester:one", 3, limits) == first
    other, _, _ = redis_queue.reserve("tester:two", 5, limits)
    assert len(other) == 2
    assert not {pair.member for pair in other} & {pair.member for pair in first[0]}


def test_a_lapsed_batch_of_a_living_dialer_is_ready_again(floor: Floor) -> None:
    ids = floor.add_many(3)
    floor.promote()
    with fault_injection.arm_crash_point("leads.claim.taken"), pytest.raises(fault_injection.Interrupted):
        floor.claim()
    redis_queue.heartbeat("tester")
    floor.step("leads_workers")
    assert floor.claim().taken == 0
    let_leases_lapse(floor)
    assert floor.work() == 3
    assert_all_called_once(floor, ids)


def test_dialer_with_an_expired_batch_changes_nothing(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    floor.promote()
    limits = capacity.load_pool_limits(floor.pool.pk)
    assert limits is not None
    (late,), _, _ = redis_queue.reserve("slow:one", 1, limits)
    let_leases_lapse(floor)
    claimed = floor.claim()
    redis_queue.complete_reservations([redis_queue.ClaimOutcome("slow:one", late.member, "gone")])
    assert floor.lines_in_use() == 1
    floor.settle(floor.ask(claimed))
    assert_all_called_once(floor, [lead])


@LOSSES
def test_a_lost_reply_to_reaping_loses_no_lead(floor: Floor, proxy: ReplyLoss, how: str) -> None:
    ids = floor.add_many(3)
    floor.promote()
    with fault_injection.arm_crash_point("leads.claim.taken"), pytest.raises(fault_injection.Interrupted):
        floor.claim()
    proxy.lose(redis_scripts.REAP, how)
    let_leases_lapse(floor)
    assert proxy.lost == 1
    CircuitBreaker.reset_all()  # the second after the failure is over
    floor.step("leads_workers")
    assert floor.work() == 3
    assert_all_called_once(floor, ids)


def test_database_failure_after_a_precheck_requeues_the_leads(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor.campaign.precheck_url = "https://crm.example.com/check"
    floor.campaign.save()
    ids = floor.add_many(3)
    floor.promote()
    claimed = floor.claim()
    answered: Any = [(question, GO) for question in claimed.questions]
    assert len(answered) == 3

    def fails(pool_id: int) -> None:
        raise DatabaseError("the connection is lost")

    with monkeypatch.context() as broken:
        broken.setattr(capacity, "load_pool_limits", fails)
        with pytest.raises(DatabaseError):
            claims.claim_answered("tester", answered)
    assert floor.lines_in_use() == 0
    floor.campaign.precheck_url = ""
    floor.campaign.save()
    assert floor.work() == 3
    assert_all_called_once(floor, ids)


def test_precheck_lease_is_longer_than_a_claim_lease(floor: Floor) -> None:
    floor.campaign.precheck_url = "https://crm.example.com/check"
    floor.campaign.save()
    (lead,) = floor.add_many(1)
    floor.promote()
    claimed = floor.claim()
    let_leases_lapse(floor)
    assert floor.claim().taken == 0
    again = claims.claim_answered("tester", [(question, GO) for question in claimed.questions])
    floor.settle(floor.ask(again))
    assert_all_called_once(floor, [lead])


def test_missing_leads_are_found_although_others_are_held(floor: Floor) -> None:
    held, lost = floor.add(factories.phone()), floor.add(factories.phone(), at=floor.due_in(60))
    floor.promote()
    with fault_injection.arm_crash_point("leads.claim.taken"), pytest.raises(fault_injection.Interrupted):
        floor.claim()
    redis_queue.dequeue([f"{floor.pool.pk}:{lost[0]}:1"])
    floor.step("leads_near")
    assert floor.in_redis()["schedule"] == 1
    let_leases_lapse(floor)
    assert floor.work() == len(held)


@LOSSES
def test_a_lost_reply_to_a_proposal_takes_one_line(floor: Floor, proxy: ReplyLoss, how: str) -> None:
    proxy.lose(line_scripts.PROPOSE, how)
    first = line_leases.propose_line(floor.pool, "offer", "offer:1:1")
    CircuitBreaker.reset_all()
    assert proxy.lost == 1
    assert line_leases.propose_line(floor.pool, "offer", "offer:1:1") == first
    assert floor.lines_in_use() == 1


@LOSSES
def test_stopping_dialer_releases_its_leads(floor: Floor, proxy: ReplyLoss, how: str) -> None:
    ids = floor.add_many(2)
    floor.promote()
    with fault_injection.arm_crash_point("leads.claim.taken"), pytest.raises(fault_injection.Interrupted):
        floor.claim()
    proxy.lose(redis_scripts.DEREGISTER, how)
    with suppress(*REDIS_ERRORS):
        redis_queue.deregister("tester")
    assert proxy.lost == 1
    CircuitBreaker.reset_all()  # the second after the failure is over
    assert floor.work() == 2
    assert_all_called_once(floor, ids)
