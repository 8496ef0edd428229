"""The provider's limits: calls per second and concurrent calls.

Also how tests observe that the application respects them.
"""

from __future__ import annotations

import threading

import pytest
from twilio.base.exceptions import TwilioRestException

from tests.phones import Simulator, answer, busy, refused

from .conftest import ANN, BOB, US, Caller
from .server import OurServer


def test_the_excess_waits_its_turn_in_order(stepped: Simulator, ours: OurServer) -> None:
    caller = Caller(stepped, ours)
    calls = [caller(f"+160255501{n:02}") for n in range(3)]
    stepped.advance(0.5)
    assert [r.params["CallSid"] for r in ours.to("/status")] == [calls[0].sid]
    stepped.advance(1)
    assert [r.params["CallSid"] for r in ours.to("/status") if r.params["CallStatus"] == "initiated"] == [
        calls[0].sid,
        calls[1].sid,
    ]
    assert [call.status for call in calls] == ["ringing", "queued", "queued"]
    stepped.advance(2)
    fetched = [stepped.client().calls(call.sid).fetch() for call in calls]
    assert [call.status for call in fetched] == ["ringing"] * 3
    assert [round(int(call.queue_time) / 1000, 1) for call in fetched] == [0.2, 1.2, 2.2]


def test_a_cancelled_call_gives_its_turn_to_the_next(stepped: Simulator, ours: OurServer) -> None:
    caller = Caller(stepped, ours)
    first, second, third = (caller(f"+160255501{n:02}") for n in range(3))
    stepped.advance(0.3)
    stepped.client().calls(second.sid).update(status="canceled")
    stepped.advance(1)
    stepped.advance(1)
    assert [first.status, second.status, third.status] == ["ringing", "canceled", "ringing"]


def test_more_calls_at_once_than_allowed_are_refused(stepped: Simulator, ours: OurServer) -> None:
    caller = Caller(stepped, ours)
    calls = [caller(f"+160255501{n:02}") for n in range(3)]
    with pytest.raises(TwilioRestException) as caught:
        caller(ANN)
    assert (caught.value.status, caught.value.code) == (429, 10004)
    stepped.client().calls(calls[0].sid).update(status="canceled")
    caller(ANN)


def test_manual_clock_moves_only_when_advanced(stepped: Simulator, ours: OurServer) -> None:
    stepped.phone(ANN).will(answer(after=10, press="1"))
    call = Caller(stepped, ours)(ANN, timeout=30)
    stepped.advance(10.9)
    assert call.status == "ringing"
    stepped.advance(0.2)
    assert call.status == "in-progress"
    stepped.advance(60)
    assert call.status == "completed"
    assert ours.statuses() == ["initiated", "ringing", "in-progress", "completed"]
    assert ours.to("/key")[0].params["Digits"] == "1"


def test_waiting_in_the_queue_for_a_day_fails_the_call(stepped: Simulator, ours: OurServer) -> None:
    caller = Caller(stepped, ours)
    caller(ANN)
    late = caller(BOB)
    stepped.set_account(calls_per_second=0.00001)
    stepped.advance(100_001)
    assert late.status == "failed"
    assert all(lines["live"] >= 0 for lines in stepped.get("/control/lines").values())


def test_call_that_would_wait_for_more_than_a_day_is_refused(stepped: Simulator, ours: OurServer) -> None:
    stepped.set_account(calls_per_second=1 / 25_000, max_concurrent=None)
    caller = Caller(stepped, ours)
    calls = [caller(f"+160255501{n:02}") for n in range(4)]
    with pytest.raises(TwilioRestException) as caught:
        caller("+16025550104")
    assert caught.value.code == 22005
    assert stepped.creates_to("+16025550104") == 0
    stepped.client().calls(calls[1].sid).update(status="canceled")
    caller("+16025550104")


def test_request_beyond_those_in_progress_is_refused(sim: Simulator, place: Caller) -> None:
    sim.set_account(max_requests=2)
    sim.callbacks_before_create_returns(event="answered", times=2)  # the responses wait until the phones answer
    clients = [Caller(sim, place.ours) for _ in range(2)]
    waiting = [
        threading.Thread(target=caller, args=(phone,), daemon=True)
        for caller, phone in zip(clients, (ANN, BOB), strict=True)
    ]
    for thread in waiting:
        thread.start()
    ringing = [sim.phone(phone).rings() for phone in (ANN, BOB)]
    with pytest.raises(TwilioRestException) as caught:
        place("+16025550103")
    assert (caught.value.status, caught.value.code) == (429, 20429)
    assert sim.creates_to("+16025550103") == 0
    for call in ringing:
        call.answer()
    for thread in waiting:
        thread.join()
    place("+16025550103")
    assert sim.requests_in_progress(at_most=True) == 2


def test_each_account_has_its_own_pace(ours: OurServer) -> None:
    quick = {"sid": "AC" + "c3".rjust(32, "0"), "auth_token": "quick", "calls_per_second": 50}
    with Simulator.start(clock="manual", calls_per_second=1, accounts=[{**quick, "owns_any_number": True}]) as sim:
        slow_client, quick_client = sim.client(), sim.client(quick["sid"], "quick")
        for client in (slow_client, quick_client):
            for n in range(5):
                client.calls.create(to=f"+160255502{n:02}", from_=US, twiml="<Response/>")
        sim.advance(0.5)
        started = [c for c in sim.calls() if any("dialing" in line for line in c["story"])]
        assert sum(c["account_sid"] == quick["sid"] for c in started) == 5
        assert sum(c["account_sid"] == sim.account_sid for c in started) == 1


def test_maximum_of_lines_in_use_is_recorded(sim: Simulator, place: Caller) -> None:
    calls = [place(f"+160255501{n:02}") for n in range(4)]
    place(ANN, from_="+16025550200")
    for call in calls:
        call.hang_up()
        call.ended(call.status if call.now["over"] else "no-answer")
    place(BOB)
    assert sim.max_simultaneous(US) == 4
    assert sim.max_simultaneous("+16025550200") == 1
    assert sim.max_simultaneous("+16025550300") == 0


def test_creates_are_counted_per_number(sim: Simulator, place: Caller) -> None:
    sim.phone(ANN).will(refused(21214), busy())
    with pytest.raises(TwilioRestException):
        place(ANN)
    place(ANN)
    place(BOB)
    assert (sim.asked_for(ANN), sim.creates_to(ANN)) == (2, 1)
    assert (sim.asked_for(BOB), sim.creates_to(BOB)) == (1, 1)
