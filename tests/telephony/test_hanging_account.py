"""An account whose provider accepts connections and never answers delays no other account."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.core.runtime.fair_threads import FairThreads
from dispatch.core.runtime.loops import find_loop
from dispatch.telephony import services
from dispatch.telephony.models import Call, Text
from dispatch.telephony.request_threads import CALLS, HANG_UPS, LOOKUPS
from tests.core.loops import runs
from tests.harness.black_hole import BlackHole, black_hole
from tests.phones import manual
from tests.support import factories
from tests.support.processes import environment, running
from tests.support.waiting import PATIENCE, wait_until
from tests.telephony.conftest import Caller, create_text, is_placed, now_is, run_loop

ANN, BOB = "+16025550101", "+16025550102"
TOKEN = "token-of-the-other"
PER_KEY = 16


class Other(Caller):
    """Another organization, whose account the simulator knows by another SID."""

    def __init__(self, caller: Caller, lines: int = 60) -> None:
        super().__init__(caller.sim, caller.listener)
        self._subject = 1000
        self.account.account_sid = "AC" + "b2".rjust(32, "0")
        self.account.auth_token = TOKEN
        self.account.save()
        self.number.max_channels = self.pool.concurrency = lines
        self.number.save()
        self.pool.save()
        sid = self.account.account_sid
        owns = {"sid": sid, "auth_token": TOKEN, "calls_per_second": 1000.0, "owns_any_number": True}
        self.sim.request("PUT", "/control/accounts", json=owns)

    def create_many(self, count: int, **changes: Any) -> list[Call]:
        return [self.create(f"+1602555{n:04d}", **changes) for n in range(200, 200 + count)]


@pytest.fixture
def other(caller: Caller) -> Other:
    return Other(caller)


@pytest.fixture
def hole(caller: Caller, other: Other, settings: Any) -> Iterator[BlackHole]:
    settings.PROVIDER_TIMEOUT_S = PATIENCE
    with black_hole(other.account.account_sid, caller.sim.base_url) as hole:
        yield hole


def at_the_provider(calls: list[Call], **changes: Any) -> None:
    """Let the calls be open at the provider, or unknown."""
    for call in calls:
        fields = {"status": "ringing", "sid": f"CA{call.pk:032d}", "requested_at": clock.now(), **changes}
        Call.objects.filter(pk=call.pk).update(**fields)


def test_calls_of_other_accounts_are_placed_while_one_hangs(caller: Caller, other: Other, hole: BlackHole) -> None:
    hanging = other.create_many(60)
    clock.travel(2)
    with runs(find_loop("placer")):
        wait_until(lambda: hole.held() == PER_KEY)
        for n in range(5):
            is_placed(caller.create(f"+160255501{n:02d}", place_by=clock.now() + timedelta(minutes=5)))
            clock.travel(2)
        ours = Call.objects.filter(pk__in=[call.pk for call in hanging])
        assert hole.held() == PER_KEY
        # What no thread can request is not claimed either.
        assert ours.filter(status="requesting").count() == PER_KEY
        assert ours.filter(status="created").count() == 60 - PER_KEY
        hole.give_back()
        wait_until(lambda: not ours.filter(status__in=("created", "requesting")).exists())
    assert ours.filter(status="unknown").count() == PER_KEY
    # A call that is accepted after the cut may end the outage; failures written later begin another.
    assert set(outages_of(other.account)) == {"no_answer"}
    assert outages_of(caller.account) == []
    open_calls = ours.filter(ended_at=None)  # none is lost: the provider knows nothing of them
    for call in open_calls.exclude(sid=None):  # requested after the cut: they would ring for a while
        services.hang_up(call.pk)
    wait_until(
        lambda: (clock.travel(61), run_loop("calls"), not open_calls.exists())[2],
        message=lambda: str(list(open_calls.values("status", "sid", "send_by", "hang_up_at"))),
    )
    assert max(caller.sim.asked_for(str(call.to_phone)) for call in hanging) <= 1, "none is placed twice"


def outages_of(account: ProviderAccount) -> list[str]:
    """Return the outages of the account that have begun."""
    began = Event.objects.filter(kind="account.outage_began", subject_id=account.pk).order_by("id")
    return [str(event.data["outage"]) for event in began]


def settle(step: Callable[[], Any]) -> None:
    """Run the step until nothing is in progress in threads."""

    def is_done() -> bool:
        step()
        return not (CALLS.items() or LOOKUPS.items() or HANG_UPS.items())

    wait_until(is_done)


def test_an_account_that_returns_places_its_calls_again(caller: Caller, other: Other, hole: BlackHole) -> None:
    other.create_many(PER_KEY + 2)
    clock.travel(2)
    run_loop("placer")
    wait_until(lambda: hole.held() == PER_KEY)
    hole.give_back()
    wait_until(lambda: not CALLS.items())

    def is_back() -> bool:
        clock.travel(6)
        run_loop("account_probes")
        account = ProviderAccount.objects.get(pk=other.account.pk)
        return not account.outage or account.is_on_trial

    wait_until(is_back)
    call = other.create("+16025550399")
    clock.travel(2)
    run_loop("placer")
    is_placed(call)


def test_a_call_whose_account_is_busy_is_left_to_the_placer(caller: Caller) -> None:
    slots = [CALLS.reserve(caller.account.pk, f"busy {n}") for n in range(PER_KEY)]
    call = caller.create(ANN)
    services.place_soon(call)
    assert Call.objects.get(pk=call.pk).status == "created"
    for slot in slots:
        assert slot is not None
        with slot:
            pass
    clock.travel(2)
    run_loop("placer")
    is_placed(call)
    services.place_soon(call)
    assert caller.sim.asked_for(ANN) == 1


def test_hang_ups_of_other_accounts_go_out_while_one_hangs(caller: Caller, other: Other, hole: BlackHole) -> None:
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    caller.sim.phone(ANN).rings()
    hanging = other.create_many(20)
    at_the_provider(hanging)
    for theirs in hanging:
        services.hang_up(theirs.pk)
    wait_until(lambda: hole.held() == 4)

    services.hang_up(call.pk)

    now_is(call, "canceled")
    assert hole.held() == 4
    due = Call.objects.filter(hang_up_at__lte=clock.now()).count()
    assert due == 16, "what no thread can request stays due"
    hole.give_back()
    caller.sim.forgive()  # it never heard of their calls
    clock.travel(16)
    wait_until(lambda: (settle(lambda: run_loop("calls_hang_up")), no_open_call())[1])


def test_the_ends_of_alert_calls_are_found_while_another_account_hangs(
    caller: Caller, other: Other, hole: BlackHole
) -> None:
    caller.sim.lose_callbacks(event="completed")
    call = caller.call(ANN)
    Call.objects.filter(pk=call.pk).update(purpose="alert")
    caller.sim.phone(ANN).rings().decline().ended("busy")
    at_the_provider(other.create_many(20), requested_at=clock.now() - timedelta(hours=1))
    clock.travel(85)
    run_loop("calls_end")
    assert now_is(call, "busy").ended_at
    wait_until(lambda: hole.held() == 4)
    hole.give_back()
    caller.sim.forgive()  # it never heard of their calls
    clock.travel(61)
    wait_until(lambda: (clock.travel(6), settle(lambda: run_loop("calls_end")), no_open_call())[2])


def no_open_call() -> bool:
    return not Call.objects.filter(ended_at=None).exists()


def test_unknown_calls_and_texts_of_others_are_resolved_while_one_hangs(
    texter: Caller, hole: BlackHole, other: Other
) -> None:
    texter.sim.lose_callbacks()
    texter.sim.reset_after_creating()
    call = texter.call(ANN)
    texter.sim.fault("reset_after", on="message")
    text = services.send_text(create_text(texter, BOB).pk)
    assert (call.status, text.status) == ("unknown", "unknown")
    hanging = other.create_many(20)
    past = clock.now() - timedelta(hours=1)
    at_the_provider(hanging, status="unknown", sid=None, requested_at=past, send_by=past)

    run_loop("calls_unknown")
    wait_until(lambda: hole.held() == 4)
    run_loop("texts_reconciler")

    wait_until(lambda: Call.objects.get(pk=call.pk).sid)
    wait_until(lambda: Text.objects.get(pk=text.pk).sid)
    assert hole.held() == 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dispatcher_that_ends_while_requests_hang_places_nothing_twice(
    caller: Caller, other: Other, number: int
) -> None:
    hanging = other.create_many(20)
    caller.sim.time_out_before_creating(times=None, hold=600, **{"from": str(other.number.phone)})
    clock.travel(2)
    env = environment(
        connection.settings_dict["NAME"],
        SIMULATOR_URL=caller.sim.base_url,
        PROVIDER_TIMEOUT_S=str(PATIENCE if number == signal.SIGKILL else 5),
    )
    ours = Call.objects.filter(pk__in=[call.pk for call in hanging])
    with running("dispatcher", "--only", "placer", env=env) as dispatcher:
        wait_until(lambda: ours.filter(status="requesting").count() == PER_KEY, message=dispatcher.log)
        healthy = caller.create(ANN)
        is_placed(healthy)
        if number == signal.SIGKILL:
            dispatcher.kill()
        else:
            assert dispatcher.stop() == 0, dispatcher.log()
            assert ours.filter(status="unknown").count() >= PER_KEY, "their threads wrote the outcome"
    caller.sim.heal()
    asked = {str(call.to_phone): caller.sim.asked_for(str(call.to_phone)) for call in hanging}
    assert set(asked.values()) <= {0, 1}
    for seconds in (20, 16, 61, 61):
        clock.travel(seconds)
        run_loop("calls")
        run_loop("account_probes")
        run_loop("placer")
    assert {phone: caller.sim.asked_for(phone) for phone, count in asked.items() if count} == {
        phone: 1 for phone, count in asked.items() if count
    }
    assert not ours.filter(sid=None, ended_at=None).exists(), "none is lost"
    caller.sim.forgive()  # connections were cut


@pytest.fixture(autouse=True)
def _without_threads_at_the_end() -> Iterator[None]:
    yield
    FairThreads.stop_threads(PATIENCE)


def test_an_organization_takes_its_turn_among_texts(texter: Caller) -> None:
    mine = [create_text(texter, f"+160255503{n:02d}", n) for n in range(1, 4)]
    theirs = Other(texter)
    factories.number(theirs.organization, sends_texts=True)
    text = create_text(theirs, ANN, 99)
    from dispatch.telephony import sql

    due = [row.id for row in sql.texts_to_send(clock.now() + timedelta(seconds=1), 10)]
    assert due == [mine[0].pk, text.pk, mine[1].pk, mine[2].pk]
