"""Durations that the provider does not promise: ringing beyond the Timeout, and calls that end after a hang-up.

Also detection in the background, whose result comes at any time after the answer.
"""

from __future__ import annotations

import pytest

from tests.phones import PhoneCall, Simulator, ignore, voicemail

from .conftest import ANN, Caller
from .server import OurServer

# The key is followed by a pause, so that the call goes on until somebody ends it.
TAKEN = '<Say>The job is yours</Say><Pause length="60"/>'


def detected_call(stepped: Simulator, ours: OurServer) -> PhoneCall:
    """Call a machine, which answers after 3 s; detection takes 3 s more. The script takes 7.5 s."""
    stepped.phone(ANN).will(voicemail(after=2))
    in_background = {"async_amd": "true", "async_amd_status_callback": ours.base + "/amd"}
    return Caller(stepped, ours)(ANN, machine_detection="Enable", **in_background)


def test_phone_may_ring_for_longer_than_its_timeout(stepped: Simulator, ours: OurServer) -> None:
    stepped.set_timing(ring_buffer=5)
    stepped.phone(ANN).will(ignore())
    call = Caller(stepped, ours)(ANN, timeout=20)
    stepped.advance(25)
    assert call.status == "ringing"
    stepped.advance(2)
    assert call.status == "no-answer"


def test_keys_are_heard_until_the_requested_end_of_the_call(stepped: Simulator, ours: OurServer) -> None:
    stepped.set_timing(hang_up=4)
    ours.says("/key", TAKEN)
    call = Caller(stepped, ours)(ANN)
    stepped.advance(1.5)
    call.answer()
    stepped.advance(2)
    live = stepped.client().calls(call.sid)
    assert live.update(status="completed").status == "in-progress"
    stepped.advance(1)
    call.press("1")
    stepped.advance(2)
    assert (call.status, ours.to("/key")[0].params["Digits"]) == ("in-progress", "1")
    stepped.advance(2)
    assert (call.status, call.now["ended_by"], ours.statuses()[-1]) == ("completed", "api", "completed")


@pytest.mark.parametrize(("wanted", "found"), [("canceled", "in-progress"), ("completed", "completed")])
def test_phone_can_be_answered_until_the_requested_end(
    stepped: Simulator, ours: OurServer, wanted: str, found: str
) -> None:
    stepped.set_timing(hang_up=3)
    call = Caller(stepped, ours)(ANN)
    stepped.advance(1.5)
    assert stepped.client().calls(call.sid).update(status=wanted).status == "ringing"
    call.answer()
    stepped.advance(4)
    assert call.status == found


def test_queued_call_ends_at_once(stepped: Simulator, ours: OurServer) -> None:
    stepped.set_timing(hang_up=3)
    call = Caller(stepped, ours)(ANN)
    assert stepped.client().calls(call.sid).update(status="completed").status == "canceled"


def test_detection_in_the_background_is_reported_during_the_call(stepped: Simulator, ours: OurServer) -> None:
    call = detected_call(stepped, ours)
    stepped.advance(4)
    assert "AnsweredBy" not in ours.to("/voice")[0].params
    assert ours.to("/amd") == []
    stepped.advance(3)
    (report,) = ours.to("/amd")
    assert report.signed
    assert report.params == {
        "CallSid": call.sid,
        "AccountSid": stepped.account_sid,
        "AnsweredBy": "machine_start",
        "MachineDetectionDuration": "3000",
    }
    assert stepped.client().calls(call.sid).fetch().answered_by == "machine_start"


@pytest.mark.parametrize(
    ("late", "order"), [("answered", ["/amd", "/status"]), ("detection", ["/status", "/amd"])]
)
def test_detection_is_reported_before_or_after_the_answer(
    stepped: Simulator, ours: OurServer, late: str, order: list[str]
) -> None:
    stepped.delay_callbacks(10, times=1, event=late)
    detected_call(stepped, ours)
    stepped.advance(30)
    found = [one.path for one in ours.received if one.path == "/amd" or one.params["CallStatus"] == "in-progress"]
    assert [path for path in found if path != "/voice"] == order


def test_call_that_ends_before_the_detection_has_no_report(stepped: Simulator, ours: OurServer) -> None:
    call = detected_call(stepped, ours)
    stepped.advance(4)
    call.hang_up()
    stepped.advance(10)
    assert (call.status, ours.to("/amd")) == ("completed", [])


def test_nonsense_is_refused(stepped: Simulator) -> None:
    with pytest.raises(AssertionError, match="hang_up must be a number of seconds"):
        stepped.set_timing(hang_up=-1)
    with pytest.raises(AssertionError, match="unknown keys"):
        stepped.set_timing(lunch=3)
