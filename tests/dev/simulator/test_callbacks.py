"""Status callbacks: which, in what order, signed, and how hard the simulator tries."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.phones import Simulator, answer, busy
from tests.support.waiting import PATIENCE

from .conftest import ANN, Caller
from .server import OurServer


def test_every_callback_is_signed_numbered_and_dated(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(answer(press="1"))
    call = place().told("completed")
    sent = ours.to("/status")
    assert all(request.signed for request in sent)
    assert [request.params["SequenceNumber"] for request in sent] == ["0", "1", "2", "3"]
    for request in sent:
        assert request.params["CallSid"] == call.sid
        assert request.params["CallbackSource"] == "call-progress-events"
        assert parsedate_to_datetime(request.params["Timestamp"]).tzinfo is not None
    assert int(sent[-1].params["CallDuration"]) == call.now["duration"] > 0
    assert "CallDuration" not in sent[0].params


def test_only_the_end_is_reported_unless_more_is_asked_for(ours: OurServer, place: Caller, sim: Simulator) -> None:
    sim.phone(ANN).will(busy())
    place(status_callback_event=[]).told("busy")
    assert ours.statuses() == ["busy"]
    assert ours.to("/status")[0].params["SequenceNumber"] == "0"


def test_the_fragment_is_not_part_of_the_signature(ours: OurServer, place: Caller) -> None:
    call = place(
        url=ours.base + "/voice?call=1#rc=2&rp=ct,rt,5xx", status_callback=ours.base + "/status?call=1#rc=3&rp=all"
    )
    call.answer().hears("press 1").hang_up().told("completed")
    assert all(request.signed for request in ours.received)
    assert ours.to("/status")[0].params["call"] == "1"


def test_a_call_cancelled_in_the_queue_sends_no_callback(ours: OurServer) -> None:
    with Simulator.start(clock="manual") as sim:
        caller = Caller(sim, ours)
        call = caller()
        sim.client().calls(call.sid).update(status="canceled")
        call.ended("canceled")
        sim.advance(60)
        assert ours.received == []
        assert sim.get("/control/lines")["+16025550100"]["open"] == 0


def test_a_ringing_call_can_be_cancelled_and_says_so(sim: Simulator, ours: OurServer, place: Caller) -> None:
    call = place()
    sim.phone(ANN).rings()
    updated = sim.client().calls(call.sid).update(status="canceled")
    assert updated.status == "canceled"
    call.ended("canceled").told("canceled")


def test_a_cancel_after_the_answer_changes_nothing_but_completed_hangs_up(sim: Simulator, place: Caller) -> None:
    call = place().answer().hears("press 1")
    live = sim.client().calls(call.sid)
    assert live.update(status="canceled").status == "in-progress"
    assert live.update(status="completed").status == "completed"
    call.told("completed")
    assert call.now["ended_by"] == "api"


@pytest.mark.parametrize(
    ("fragment", "troubles", "attempts"),
    [
        ("", [500, 500], 1),
        ("#rc=3&rp=ct,rt,5xx", [500, 503], 3),
        ("#rc=1&rp=5xx", [500, 500, 500], 2),
        ("#rc=3&rp=5xx", [404], 1),
        ("#rc=2&rp=4xx", [404], 2),
        ("#rc=2&rp=all", [429, 500], 3),
        ("#rc=1&rp=rt&rt=400", [1.0], 2),
        ("#rc=1&rt=300", [0.8], 1),
    ],
)
def test_retries_follow_the_overrides_in_the_address(
    sim: Simulator, ours: OurServer, place: Caller, fragment: str, troubles: list[int | float], attempts: int
) -> None:
    sim.phone(ANN).will(busy(0))
    ours.breaks("/status", *troubles)
    call = place(status_callback=ours.base + "/status" + fragment, status_callback_event=["completed"])
    call.ended("busy")
    sim.until(lambda: len(call.callbacks()) >= attempts, PATIENCE, call.story)
    first, last = call.callbacks()[0], call.callbacks()[-1]
    assert len(ours.waits_for("/status", attempts)) == attempts == last["number"]
    if "rt=" in fragment:  # on a machine that is busy enough the answer to the second comes too late as well
        assert first["error"] == "rt"
    else:
        assert (last["status"] == 200) == (attempts > len(troubles))


def test_a_first_attempt_that_hangs_leaves_time_for_a_second(ours: OurServer, settings: Any) -> None:
    with Simulator.start(speed=4, timing={"webhook_floor": 0.5}) as sim:
        ours.breaks("/voice", 20.0)
        call = Caller(sim, ours)(url=ours.base + "/voice" + settings.WEBHOOK_RETRIES)
        call.answer().hears("Press 1 to accept")
        asked = [hook for hook in call.now["webhooks"] if hook["purpose"] == "twiml"]
        assert [hook["error"] for hook in asked] == ["rt", ""]


def test_a_refused_connection_is_tried_again_once(sim: Simulator, place: Caller, unused_tcp_port: int) -> None:
    sim.phone(ANN).will(busy(0))
    call = place(status_callback=f"http://127.0.0.1:{unused_tcp_port}/status", status_callback_event=["completed"])
    call.ended("busy")
    sim.until(lambda: len(call.callbacks()) == 2, PATIENCE, call.story)
    assert [hook["error"] for hook in call.callbacks()] == ["ct", "ct"]


def test_hanging_server_times_out(ours: OurServer) -> None:
    with Simulator.start(speed=20, timing={"webhook_floor": 0.3}) as sim:
        ours.breaks("/voice", 14.0)
        call = Caller(sim, ours)(status_callback_event=["completed"])
        call.answer().ended("completed")
        assert call.now["error_code"] == 11200
        asked = next(hook for hook in call.now["webhooks"] if hook["purpose"] == "twiml")
        assert asked["error"] == "rt"
        assert 0.5 <= asked["seconds"] < 14, "15 s at 20 times the speed"
