"""Lines are leased and released, the same with Redis and without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections, transaction

from dispatch.capacity import line_leases as capacity
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.telephony import services
from dispatch.telephony.models import Call
from tests.capacity.conftest import Lines


def test_alerts_before_offers_before_leads(lines: Lines, decided_by: str) -> None:
    lines.number(4, alerts=1, offers=1)

    assert [lines.slot("lead") for _ in range(3)] == [1, 2, "lines_busy"]
    assert [lines.slot("offer") for _ in range(2)] == [3, "lines_busy"]
    assert [lines.slot("alert") for _ in range(2)] == [4, "lines_busy"]


def test_offer_uses_reserved_lines_before_common_ones(lines: Lines, decided_by: str) -> None:
    lines.number(3, offers=1)

    assert lines.slot("offer") == 3
    assert [lines.slot("lead") for _ in range(3)] == [1, 2, "lines_busy"]


def test_line_is_released_when_its_call_ends(lines: Lines, decided_by: str) -> None:
    lines.number(2)
    first, second = lines.call(), lines.call()
    assert lines.slot() == "lines_busy"

    lines.end(first)

    assert lines.slot() == first.line_slot
    lines.end(second)
    lines.end(second)
    assert lines.slot() == second.line_slot
    assert lines.slot() == "lines_busy"


def test_a_pool_has_its_own_limit(lines: Lines, decided_by: str) -> None:
    lines.number(5)
    DispatchPool.objects.filter(pk=lines.pool.pk).update(concurrency=2)

    one, two = lines.call(), lines.call()

    assert {one.pool_slot, two.pool_slot} == {1, 2}
    assert lines.slot() == "pool_full"
    lines.end(one)
    assert lines.call().pool_slot == one.pool_slot


def test_limit_changes_apply_immediately(lines: Lines, decided_by: str) -> None:
    number = lines.number(1)
    lines.call()
    assert lines.slot() == "lines_busy"

    OutboundNumber.objects.filter(pk=number.pk).update(max_channels=2)
    assert lines.slot() == 2
    DispatchPool.objects.filter(pk=lines.pool.pk).update(concurrency=2)
    OutboundNumber.objects.filter(pk=number.pk).update(max_channels=5)
    assert lines.slot() == "pool_full"


def test_limit_below_current_use_ends_no_call_and_grants_no_line(lines: Lines, decided_by: str) -> None:
    number = lines.number(4)
    calls = [lines.call() for _ in range(4)]
    OutboundNumber.objects.filter(pk=number.pk).update(max_channels=2)

    lines.end(calls[0])
    assert lines.slot() == "lines_busy"
    lines.end(calls[1])
    assert lines.slot() == "lines_busy"
    assert Call.objects.filter(ended_at=None).count() == 2
    lines.end(calls[2])
    assert lines.slot() == 1


@pytest.mark.parametrize(
    ("model", "change", "reason"),
    [
        (DispatchPool, {"is_paused": True}, "pool_paused"),
        (OutboundNumber, {"is_paused": True}, "no_number"),
        (ProviderAccount, {"is_active": False}, "no_number"),
    ],
)
def test_pauses_apply_immediately(lines: Lines, decided_by: str, model: type, change: dict, reason: str) -> None:
    lines.number(3)
    lines.call()

    model.objects.update(**change)

    assert lines.slot("alert") == reason
    model.objects.update(**{name: not value for name, value in change.items()})
    assert lines.slot() == 2


def test_number_with_more_free_lines_is_used(lines: Lines, decided_by: str) -> None:
    small, large = lines.number(2), lines.number(4)

    numbers = [lines.call().number_id for _ in range(6)]

    assert numbers[:2] == [large.pk, large.pk]
    assert sorted(numbers) == sorted([small.pk] * 2 + [large.pk] * 4)
    assert lines.slot() == "lines_busy"


def test_the_same_attempt_is_one_call_and_one_line(lines: Lines, decided_by: str) -> None:
    lines.number(2)
    call = lines.call(subject_id=77)

    assert lines.call(subject_id=77).pk == call.pk
    assert lines.slot() == 2


def test_line_of_a_failed_transaction_is_released_after_a_while(lines: Lines) -> None:
    lines.number(1)
    with pytest.raises(RuntimeError), transaction.atomic():
        capacity.propose_line(lines.pool, "lead", "lead:9:1")
        raise RuntimeError("what the call was for went wrong")
    assert lines.slot() == "lines_busy"
    assert isinstance(capacity.propose_line(lines.pool, "lead", "lead:9:1"), capacity.LineProposal)

    capacity.reconcile_pool()
    assert lines.slot() == "lines_busy"
    clock.travel(capacity.ORPHAN_GRACE_S + 1)
    assert capacity.reconcile_pool() == (0, 1)

    assert lines.slot() == 1


def test_only_its_holder_releases_a_line(lines: Lines) -> None:
    lines.number(1)
    call = lines.call(subject_id=5)

    capacity.release_lines("lead:6:1")
    capacity.release_lines("offer:5:1")
    assert lines.slot() == "lines_busy"
    capacity.release_lines(call.holder)
    capacity.release_lines(call.holder)

    # the call is still open: Postgres rejects Redis's proposal, and Redis is updated
    assert lines.slot() == "lines_busy"


@pytest.mark.parametrize("purposes", [("lead",), ("alert", "offer", "lead")])
def test_many_at_once_on_few_lines(lines: Lines, decided_by: str, purposes: tuple[str, ...]) -> None:
    lines.number(3)
    lines.number(2)
    DispatchPool.objects.filter(pk=lines.pool.pk).update(concurrency=4)

    def one(i: int) -> str:
        try:
            lines.call(purposes[i % len(purposes)], subject_id=1000 + i)
            return "called"
        except services.NoLine:
            return "no line"
        finally:
            connections.close_all()

    with ThreadPoolExecutor(12) as crowd:
        outcomes = list(crowd.map(one, range(48)))

    assert outcomes.count("called") == 4
    taken = Call.objects.filter(ended_at=None).values_list("number_id", "line_slot")
    assert len(set(taken)) == 4
    assert sorted(Call.objects.values_list("pool_slot", flat=True)) == [1, 2, 3, 4]
