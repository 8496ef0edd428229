"""Lines that a dead dialer held, while limits are changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from dispatch.capacity import line_leases
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, fault_injection
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call
from dispatch.telephony.services.calls import lock_call, transition
from tests.harness.leads import Floor
from tests.support import factories
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(provider="noop")]


def die_with(floor: Floor, leads: int, point: str = "leads.claim.taken") -> list[int]:
    """Kill a dialer that holds the lines of these leads, and let its lease end."""
    ids = floor.add_many(leads)
    floor.promote()
    with fault_injection.arm_crash_point(point), pytest.raises(fault_injection.Interrupted):
        floor.claim()
    clock.travel(16)
    floor.step("leads_workers")
    return ids


def change(floor: Floor, **fields: Any) -> None:
    OutboundNumber.objects.filter(pk=floor.number.pk).update(**fields)


def assert_within_the_limits(floor: Floor) -> None:
    number = OutboundNumber.objects.get(pk=floor.number.pk)
    open_calls = Call.objects.filter(number=number, ended_at=None)
    assert open_calls.count() <= number.max_channels
    assert all(call.line_slot <= number.max_channels for call in open_calls)


def test_lowered_lines_bind_leads_that_a_dead_dialer_held(floor: Floor) -> None:
    die_with(floor, 5)
    change(floor, max_channels=1)
    assert len(floor.claim().calls) == 1
    assert_within_the_limits(floor)
    assert floor.claim().why == "lines_busy"


def test_a_slot_reserved_since_is_not_taken_over(floor: Floor) -> None:
    die_with(floor, 5)
    change(floor, reserved_for_alerts=3)
    assert len(floor.claim().calls) == 2
    assert sorted(Call.objects.values_list("line_slot", flat=True)) == [1, 2]


def test_a_lowered_concurrency_binds_leads_that_a_dead_dialer_held(floor: Floor) -> None:
    die_with(floor, 5)
    floor.pool.concurrency = 2
    floor.pool.save()
    assert len(floor.claim().calls) == 2
    assert floor.claim().why == "pool_full"


def test_a_line_within_the_limits_is_not_taken_over_beside_calls_beyond_them(floor: Floor) -> None:
    floor.number.max_channels = 3
    floor.number.save()
    floor.add_many(3)
    floor.promote()
    floor.claim()
    with transaction.atomic():
        transition(lock_call(Call.objects.get(line_slot=1).pk), "completed")
    die_with(floor, 1)
    change(floor, max_channels=2)
    assert floor.claim().calls == []
    assert sorted(Call.objects.filter(ended_at=None).values_list("line_slot", flat=True)) == [2, 3]


def to_another_pool(floor: Floor) -> None:
    change(floor, pool=factories.pool(floor.organization))


def paused(floor: Floor) -> None:
    change(floor, is_paused=True)


@pytest.mark.parametrize("withdraw", [paused, to_another_pool])
def test_a_withdrawn_number_does_not_call_for_a_dead_dialer(
    floor: Floor, withdraw: Callable[[Floor], None]
) -> None:
    ids = die_with(floor, 3)
    withdraw(floor)
    other = factories.number(floor.organization, account=floor.account, pool=floor.pool, max_channels=2)
    assert len(floor.claim().calls) == 2
    assert set(Call.objects.values_list("number_id", flat=True)) == {other.pk}
    assert sorted(Lead.objects.filter(pk__in=ids).values_list("status", flat=True)) == [
        "backlog", "processing", "processing",
    ]  # fmt: skip


def test_running_dialer_continues_when_a_number_is_withdrawn(floor: Floor) -> None:
    die_with(floor, 3)
    paused(floor)
    factories.number(floor.organization, account=floor.account, pool=floor.pool, max_channels=5)
    floor.start()
    try:
        more = floor.add_many(2)
        wait_for_calls(5)
        assert floor.outcomes(more) == {"processing": 2}
    finally:
        floor.stop()


def test_the_line_of_a_call_is_known_again_after_its_dialer_died(floor: Floor) -> None:
    die_with(floor, 1, "leads.claim.committed")
    first = floor.number
    paused(floor)
    other = factories.number(floor.organization, account=floor.account, pool=floor.pool, max_channels=2)
    assert floor.claim().calls == []
    change(floor, is_paused=False)
    assert floor.lines_in_use() == 1
    floor.number = other
    assert floor.lines_in_use() == 0
    floor.number = first


def test_a_proposal_does_not_repeat_a_slot_outside_of_the_limits(floor: Floor) -> None:
    for n in range(3):
        line_leases.propose_line(floor.pool, "offer", f"offer:{n}:1")
    change(floor, max_channels=1)
    for holder in ("offer:0:1", "offer:1:1"):
        line_leases.return_lines(holder)
    again = line_leases.propose_line(floor.pool, "offer", "offer:2:1")
    assert isinstance(again, line_leases.LineProposal)
    assert again.line_slot == 1


def wait_for_calls(count: int) -> None:
    wait_until(lambda: Call.objects.filter(ended_at=None).count() == count)
