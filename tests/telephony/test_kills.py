"""A process is killed at each point of a call's way; what remains settles it, and nobody is called twice."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from dispatch.core import clock, fault_injection
from dispatch.telephony import services
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import WebhookEvent
from dispatch.telephony.services.call_status import receive_webhook
from tests.phones import answer, manual
from tests.support.processes import environment, running
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, history, is_placed, now_is, run_loop

ANN = "+16025550101"


@pytest.fixture
def die_at(caller: Caller, request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Run a line of Python in a separate process, which is killed at the named point."""
    from django.db import connection

    def run(point: str, line: str) -> None:
        env = environment(
            connection.settings_dict["NAME"],
            SIMULATOR_URL=caller.sim.base_url,
            DISPATCH_FAULTS=f"{point}=kill",
            DISPATCH_DATA_DIR=str(request.getfixturevalue("settings").DATA_DIR),
        )
        imports = "from dispatch.telephony import services\nfrom tests.harness.calls import place_call"
        with running("shell", "-v", "0", "-c", f"{imports}\n{line}", env=env) as child:
            assert child.ends() == -signal.SIGKILL, child.log()

    return run


def reconcile(*seconds: float) -> None:
    for wait in seconds:
        clock.travel(wait)
        for name in ("placer", "calls", "lines"):
            run_loop(name)


def test_killed_after_claiming_it_was_never_asked(caller: Caller, die_at: Callable) -> None:
    call = caller.create(ANN)

    die_at("telephony.place.claimed", f"place_call({call.pk})")

    assert Call.objects.get(pk=call.pk).status == "requesting"
    reconcile(2, 16, 61)
    assert now_is(call, "not_placed").ended_at
    assert caller.sim.asked_for(ANN) == 0
    wait_until(lambda: caller.listener.told(call) == ["unknown", "not_placed"])
    assert caller.create(ANN).line_slot == call.line_slot


def test_killed_after_the_request_webhooks_resolve_the_call(caller: Caller, die_at: Callable) -> None:
    phone = caller.sim.phone(ANN).will(answer(press="1"))
    call = caller.create(ANN)

    die_at("telephony.place.sent", f"place_call({call.pk})")

    phone.rings().hears("the job is yours").ended()
    now_is(call, "completed")
    reconcile(2, 16, 61)
    assert caller.sim.asked_for(ANN) == 1
    assert history(call).count("completed") == 1


def test_killed_after_the_request_the_listing_resolves_the_call(caller: Caller, die_at: Callable) -> None:
    caller.sim.lose_callbacks()
    call = caller.create(ANN)

    die_at("telephony.place.sent", f"place_call({call.pk})")
    caller.sim.phone(ANN).rings()
    reconcile(16, 1)

    row = Call.objects.get(pk=call.pk)
    assert row.status in ("submitted", "ringing")
    assert row.sid == caller.sim.calls(to=ANN)[0]["sid"]
    reconcile(61, 61)
    assert caller.sim.asked_for(ANN) == 1


def test_killed_after_writing_the_callbacks_tell_the_purpose(caller: Caller, die_at: Callable) -> None:
    caller.sim.phone(ANN).will(answer(press="2"))
    call = caller.create(ANN)

    die_at("telephony.place.written", f"place_call({call.pk})")

    now_is(call, "completed")
    wait_until(lambda: caller.listener.told(call)[-1:] == ["completed"])
    assert caller.sim.asked_for(ANN) == 1


def test_killed_before_placing_the_placer_takes_it_up(caller: Caller) -> None:
    call = caller.create(ANN)

    reconcile(1.1)

    is_placed(call)
    assert caller.sim.asked_for(ANN) == 1


@pytest.mark.parametrize("point", ["telephony.hang_up.asking", "telephony.hang_up.sent"])
def test_killed_while_hanging_up(caller: Caller, die_at: Callable, point: str) -> None:
    call = caller.call(ANN, ring_timeout_s=600)
    caller.sim.phone(ANN).rings()

    lines = (
        f"services.hang_up({call.pk})\nfrom dispatch.telephony.services import hang_ups\nhang_ups.hang_up_due()"
    )
    die_at(point, lines)
    reconcile(0, 16)

    now_is(call, "canceled")
    assert not caller.sim.open_calls()
    wait_until(lambda: caller.listener.told(call)[-1:] == ["canceled"])


def test_webhook_is_repeated_after_the_web_process_died(caller: Caller) -> None:
    """The provider repeats what was not answered; the purpose hears of it then."""
    caller.sim.phone(ANN).will(answer(press="1"))
    deaths = []

    def die_now_and_then() -> None:
        deaths.append(1)
        if len(deaths) % 2:
            raise RuntimeError("died between the commit and the purpose")

    with fault_injection.arm_crash_point("telephony.webhook.committed", die_now_and_then):
        call = caller.call(ANN)
        wait_until(lambda: caller.listener.told(call)[-1:] == ["completed"])

    assert len(deaths) >= 4, "at least two webhooks were repeated"
    assert caller.listener.keys == [(call.pk, "1")]
    assert history(call).count("key_pressed") == 1
    assert services.open_call_of("test", call.subject_id) is None


@pytest.mark.parametrize("ended", [False, True], ids=["going-on", "ended"])
def test_killed_after_storing_a_key_the_loop_acts_on_it(caller: Caller, die_at: Callable, ended: bool) -> None:
    caller.sim.phone(ANN).will(manual())
    call = caller.create(ANN)
    Call.objects.filter(pk=call.pk).update(status="answered", sid="CA0001", answered_at=clock.now())
    hook = f"sid='CA0001', status='answered', key='k', kind='gather', account_sid={caller.sim.account_sid!r}"

    die_at(
        "telephony.webhook.committed",
        "from dispatch.telephony.services.call_status import receive_webhook\n"
        "from dispatch.telephony.providers.base import WebhookEvent\n"
        f"receive_webhook({call.pk}, WebhookEvent({hook}, digits='1', payload={{'Digits': '1'}}))",
    )

    if ended:
        Call.objects.filter(pk=call.pk).update(status="completed", ended_at=clock.now())
    assert caller.listener.keys == []
    for _ in range(3):
        clock.travel(6)
        run_loop("calls_keys")
    assert caller.listener.keys == [(call.pk, "1")]


def test_killed_while_acting_on_a_key_it_is_acted_on_again(caller: Caller) -> None:
    caller.sim.phone(ANN).will(manual())
    call = caller.create(ANN)
    Call.objects.filter(pk=call.pk).update(status="answered", sid="CA0001", answered_at=clock.now())
    receive_webhook(
        call.pk,
        WebhookEvent(
            "CA0001", "answered", key="k", kind="gather", account_sid=caller.sim.account_sid, digits="1",
            payload={"Digits": "1"},
        ),
    )  # fmt: skip
    clock.travel(6)
    with fault_injection.arm_crash_point("telephony.key.acted_on"), pytest.raises(fault_injection.Interrupted):
        run_loop("calls_keys")
    clock.travel(21)
    run_loop("calls_keys")
    clock.travel(21)
    run_loop("calls_keys")
    assert caller.listener.keys == [(call.pk, "1")] * 2
