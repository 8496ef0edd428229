"""The creator of a call requests it at once, unless something forbids or delays it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import OperationalError, connections

from accounts.models import Organization
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.db import lock_waits
from dispatch.telephony import services
from dispatch.telephony.models import Call, SpendCap
from tests.support.row_locks import ends_while_held
from tests.telephony.conftest import Caller, history, is_placed

ANN, BOB = "+16025550101", "+16025550102"


def test_new_call_is_requested_at_once(caller: Caller) -> None:
    call = caller.create(ANN)
    services.place_soon(call)
    is_placed(call)
    row = Call.objects.get(pk=call.pk)
    assert row.requested_at is not None
    assert row.send_by is not None
    assert row.requested_at < row.send_by <= row.place_by
    assert history(call)[:2] == ["created", "requesting"]


def test_however_many_request_a_new_call_the_provider_is_asked_once(caller: Caller) -> None:
    call = caller.create(ANN)

    def one(_: int) -> None:
        try:
            services.place_soon(call)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(5) as crowd:
        list(crowd.map(one, range(10)))
    is_placed(call)
    assert caller.sim.asked_for(ANN) == 1
    assert history(call).count("requesting") == 1


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (Organization, {"is_active": False}),
        (DispatchPool, {"is_paused": True}),
        (OutboundNumber, {"is_paused": True}),
        (ProviderAccount, {"is_active": False}),
    ],
)
def test_what_was_paused_meanwhile_is_not_requested(caller: Caller, model: type, change: dict) -> None:
    call = caller.create(ANN)
    model.objects.update(**change)
    services.place_soon(call)
    assert caller.sim.asked_for(ANN) == 0
    assert Call.objects.get(pk=call.pk).status == "created"


def test_call_that_was_cancelled_meanwhile_is_not_requested(caller: Caller) -> None:
    call = caller.create(ANN)
    services.hang_up(call.pk)
    services.place_soon(call)
    assert caller.sim.asked_for(ANN) == 0
    assert Call.objects.get(pk=call.pk).status == "canceled"


def test_call_whose_account_was_refused_meanwhile_ends(caller: Caller) -> None:
    call = caller.create(ANN)
    ProviderAccount.objects.update(outage="refused", outage_since=clock.now())
    services.place_soon(call)
    assert caller.sim.asked_for(ANN) == 0
    assert Call.objects.get(pk=call.pk).status == "not_placed"


def test_call_whose_deadline_passed_meanwhile_ends(caller: Caller) -> None:
    call = caller.create(ANN)
    Call.objects.filter(pk=call.pk).update(place_by=clock.now() - timedelta(seconds=1))
    services.place_soon(call)
    assert caller.sim.asked_for(ANN) == 0
    assert Call.objects.get(pk=call.pk).status == "not_placed"


def test_more_urgent_call_that_waits_for_the_rate_is_first(caller: Caller) -> None:
    urgent, call = caller.create(ANN), caller.create(BOB)
    Call.objects.filter(pk=urgent.pk).update(priority=1, not_before=clock.now() + timedelta(seconds=1))
    services.place_soon(call)
    assert caller.sim.asked_for(BOB) == 0
    assert Call.objects.get(pk=call.pk).status == "created"


def test_call_is_counted_by_the_spending_cap(caller: Caller) -> None:
    cap = SpendCap.objects.create(organization=caller.organization, amount=Decimal(5), currency="USD")
    call = caller.create(ANN)
    services.place_soon(call)
    is_placed(call)
    cap.refresh_from_db()
    assert cap.spent > 0


def test_second_call_of_an_account_waits_for_its_rate(caller: Caller) -> None:
    ProviderAccount.objects.update(calls_per_second=0.1)
    first, second = caller.create(ANN), caller.create(BOB)
    services.place_soon(first)
    services.place_soon(second)
    is_placed(first)
    row = Call.objects.get(pk=second.pk)
    assert row.status == "created"
    assert row.not_before > clock.now()


def test_call_whose_row_is_locked_is_left_to_the_placer(caller: Caller, step: Callable) -> None:
    call = caller.create(ANN)

    def request() -> None:
        with lock_waits.limit_lock_waits(lock_waits.LOOP_S):  # as in a worker
            services.place_soon(call)

    with pytest.raises(OperationalError):
        ends_while_held([call], request, within=15)
    assert caller.sim.asked_for(ANN) == 0
    clock.travel(2)
    step("placer")
    is_placed(call)
