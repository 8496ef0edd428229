"""A call that goes on after the provider was asked to end it, as Twilio's do: it keeps its line until its end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from dispatch.capacity import redis_scripts
from dispatch.core import clock
from dispatch.core.redis.client import client
from dispatch.telephony import services
from dispatch.telephony.models import Call
from dispatch.telephony.services import hang_ups
from tests.harness.provider import signed
from tests.phones import manual
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, now_is

ANN = "+16025550101"
# Simulated seconds, longer than any test: the call ends when its phone hangs up, or the test lets it end.
NEVER = 1_000_000


def leases() -> int:
    return int(client().hlen(f"{redis_scripts.base_key()}:leases"))


def is_asked(call: Call) -> bool:
    """Return whether the provider was asked to end the call, and the next request is due later."""
    row = Call.objects.get(pk=call.pk)
    return row.hang_up_at is not None and row.checked_at is not None and row.hang_up_at > row.checked_at


def test_line_is_in_use_until_the_call_really_ends(caller: Caller) -> None:
    caller.sim.set_timing(hang_up=NEVER)
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    talking = caller.sim.phone(ANN).rings().answer().hears("there is a job")
    now_is(call, "answered")

    services.hang_up(call.pk)
    wait_until(lambda: is_asked(call))

    assert (now_is(call, "answered").ended_at, leases()) == (None, 1)
    with pytest.raises(services.PhoneBusy):
        caller.create(ANN)
    talking.hang_up().ended("completed")
    assert now_is(call, "completed").hang_up_at is None
    wait_until(lambda: leases() == 0)


def test_key_pressed_after_the_hang_up_was_requested_has_its_effect(caller: Caller) -> None:
    caller.sim.set_timing(hang_up=NEVER)
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    talking = caller.sim.phone(ANN).rings().answer().hears("there is a job")

    services.hang_up(call.pk)
    wait_until(lambda: is_asked(call))
    talking.press("1").hears("the job is yours").ended("completed")

    now_is(call, "completed")
    assert caller.listener.keys == [(call.pk, "1")]


def test_phone_that_is_answered_after_a_requested_hang_up_hears_nothing(caller: Caller) -> None:
    caller.sim.set_timing(hang_up=NEVER)
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    ringing = caller.sim.phone(ANN).rings()

    services.hang_up(call.pk)
    wait_until(lambda: is_asked(call))
    ringing.answer().ended("completed").has_not_heard("there is a job")

    now_is(call, "completed")


def test_end_that_is_not_reported_is_found_by_the_next_hang_up(caller: Caller, step: Callable) -> None:
    caller.sim.set_timing(hang_up=NEVER)
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    talking = caller.sim.phone(ANN).rings().answer().hears("there is a job")
    now_is(call, "answered")
    services.hang_up(call.pk)
    wait_until(lambda: is_asked(call))

    caller.sim.lose_callbacks()
    talking.hang_up().ended("completed")
    clock.travel(16)
    step("calls")

    now_is(call, "completed")


def test_hang_up_that_is_one_request_too_many_is_repeated_soon(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_ups, "AGAIN", timedelta(minutes=10))  # when a failed request is repeated
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    caller.sim.phone(ANN).rings()
    caller.sim.answer_429(on="update")

    services.hang_up(call.pk)
    wait_until(lambda: caller.sim.get("/control/complaints")["rejections"])

    clock.travel(60)
    now_is(call, "canceled")


@pytest.mark.parametrize("is_first", [True, False])
def test_result_of_detection_counts_before_and_after_the_answer(caller: Caller, is_first: bool) -> None:
    """Twilio posts the result of detection in the background without a CallStatus or a SequenceNumber."""
    caller.sim.lose_callbacks()
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    caller.sim.phone(ANN).rings()
    detected = signed(caller.sim, call, "status", AnsweredBy="machine_start", MachineDetectionDuration="3000")
    answered = signed(caller.sim, call, "status", CallStatus="in-progress", SequenceNumber="2")

    reports = [detected, answered, detected] if is_first else [answered, detected, detected]
    for report in reports:
        assert report.post().status_code == 204

    row = now_is(call, "answered")
    assert row.answered_by == "machine_start"
    ended = signed(caller.sim, call, "status", CallStatus="completed", SequenceNumber="3", CallDuration="4")
    assert ended.post().status_code == 204
    assert now_is(call, "completed").answered_by == "machine_start"
