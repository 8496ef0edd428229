"""Limits of the provider on requests: too many in progress at once, and a full queue of calls."""

from __future__ import annotations

from collections.abc import Callable

from dispatch.core import clock
from dispatch.telephony import services
from dispatch.telephony.models import Call
from tests.harness.calls import place_call
from tests.harness.threads import BackgroundThreads
from tests.phones import manual
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, history, now_is

ANN, BOB = "+16025550101", "+16025550102"


def is_placed_by(step: Callable, call: Call) -> bool:
    """Run the placer once more, and return whether the provider has accepted the call."""
    step("placer")
    return bool(Call.objects.get(pk=call.pk).sid)


def test_call_beyond_the_requests_in_progress_is_placed_later(caller: Caller, step: Callable) -> None:
    caller.sim.set_account(max_requests=1)
    caller.sim.callbacks_before_create_returns(event="completed")  # the request is in progress until Ann hangs up
    caller.sim.phone(ANN).will(manual())
    caller.sim.phone(BOB).will(manual())
    first = caller.create(ANN)
    threads = BackgroundThreads()
    threads.start(lambda _stopping: place_call(first.pk))
    ringing = caller.sim.phone(ANN).rings()

    second = caller.call(BOB)
    assert (second.status, history(second)[-1]) == ("created", "held_back")
    assert caller.sim.creates_to(BOB) == 0

    ringing.answer().hang_up()
    threads.stop()
    clock.travel(2)
    wait_until(lambda: is_placed_by(step, second))
    assert (caller.sim.creates_to(ANN), caller.sim.creates_to(BOB)) == (1, 1)


def test_call_that_the_full_queue_refuses_is_placed_later(caller: Caller, step: Callable) -> None:
    caller.sim.set_account(calls_per_second=1 / 80_000)
    earlier = [caller.call(f"+160255502{n:02}") for n in range(2)]
    call = caller.call(ANN)
    assert (Call.objects.get(pk=call.pk).status, history(call)[-1]) == ("created", "held_back")

    for one in earlier:
        services.hang_up(one.pk)
        now_is(one, "canceled")
    clock.travel(2)
    wait_until(lambda: is_placed_by(step, call))
    assert caller.sim.creates_to(ANN) == 1
