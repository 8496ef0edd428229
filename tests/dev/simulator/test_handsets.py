"""Behaviors of handsets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.phones import (
    PhoneCall,
    Simulator,
    answer,
    busy,
    decline,
    fails,
    gives_up,
    ignore,
    mix,
    voicemail,
)
from tests.support.waiting import PATIENCE, wait_until

from .conftest import ANN, BOB, Caller
from .server import OurServer


def test_a_person_answers_and_presses_1(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(answer(press="1"))
    call = place().ended("completed").told("completed").hears("the job is yours")
    assert ours.to("/key")[0].params["Digits"] == "1"
    assert ours.statuses() == ["initiated", "ringing", "in-progress", "completed"]
    assert call.now["ended_by"] == "twiml"


def test_a_key_can_be_pressed_at_a_given_moment(sim: Simulator, ours: OurServer, place: Caller) -> None:
    # Given with the call, or the key might come while a slow machine still fetches what to say.
    document = f'<Say>One moment</Say><Gather numDigits="1" timeout="9" action="{ours.base}/key"/>'
    sim.phone(ANN).will(answer(press="2", press_after=4))
    sim.phone(BOB).will(answer(press="3", when_heard="one moment"))
    for to, key, earliest in ((ANN, "2", 4.0), (BOB, "3", 0.5)):
        pressed = place(to, twiml=document).ended("completed").now["keys"][0]
        assert (pressed["key"], pressed["used"]) == (key, True)
        assert pressed["at"] > earliest


@pytest.mark.parametrize(
    ("behaviour", "status", "heard"),
    [
        (ignore(), "no-answer", ["initiated", "ringing", "no-answer"]),
        (busy(), "busy", ["initiated", "ringing", "busy"]),
        (decline(), "busy", ["initiated", "ringing", "busy"]),
        (gives_up(), "no-answer", ["initiated", "ringing", "no-answer"]),
        (fails(13224), "failed", ["initiated", "ringing", "failed"]),
    ],
)
def test_calls_that_are_not_answered(
    sim: Simulator, ours: OurServer, place: Caller, behaviour: dict[str, Any], status: str, heard: list[str]
) -> None:
    sim.phone(ANN).will(behaviour)
    call = place(timeout=5).ended(status).told(status)
    assert ours.statuses() == heard
    last = ours.to("/status")[-1].params
    assert last["CallDuration"] == "0"
    assert last.get("ErrorCode") == ("13224" if status == "failed" else None)
    assert ours.to("/voice") == []
    assert sim.client().calls(call.sid).fetch().duration == "0"


def test_ringing_ends_at_the_time_limit_of_the_request(sim: Simulator, place: Caller) -> None:
    sim.phone(ANN).will(ignore())
    call = place(timeout=7).ended("no-answer").now
    ringing, ended = (item["at"] for item in call["statuses"][-2:])
    assert 7 <= ended - ringing < 30, "not the usual 60 s"


def test_a_machine_answers_and_is_detected(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(voicemail())
    call = place(machine_detection="Enable").ended("completed").hears("goodbye")
    assert call.now["keys"] == []
    assert ours.to("/voice")[0].params["AnsweredBy"] == "machine_start"
    assert sim.client().calls(call.sid).fetch().answered_by == "machine_start"
    human = place(BOB, machine_detection="Enable")
    human.answer().hears("press 1")
    assert ours.to("/voice")[1].params["AnsweredBy"] == "human"


def test_without_detection_nobody_says_who_answered(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(voicemail())
    place().ended("completed")
    assert "AnsweredBy" not in ours.to("/voice")[0].params


def test_hanging_up_before_the_key(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(answer(then_hang_up=True))
    call = place().ended("completed").told("completed")
    assert call.now["ended_by"] == "phone"
    assert ours.to("/key") == []


def test_hanging_up_in_the_middle_of_a_sentence(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(answer(hang_up_during="press 1"))
    call = place().ended("completed").now
    assert [words["complete"] for words in call["said"]] == [False]
    assert ours.to("/key") == []


def test_behaviours_are_used_one_per_call_and_the_last_one_stays(sim: Simulator, place: Caller) -> None:
    sim.phone(ANN).will(ignore(), busy(), answer(press="1"))
    ends = [place(timeout=3), place(), place(), place()]
    for call, status in zip(ends, ["no-answer", "busy", "completed", "completed"], strict=True):
        call.ended(status)


def test_a_mix_is_the_same_for_the_same_seed(sim: Simulator, place: Caller) -> None:
    def outcomes() -> list[str]:
        sim.others_will(mix((1, busy(0.1)), (1, fails(after=0.1)), (2, gives_up(0.1))))
        calls = [place(f"+1602555{n:04}") for n in range(20)]
        for call in calls:
            sim.until(lambda c=call: c.now["over"], PATIENCE, call.story)
        return [call.status for call in calls]

    first = outcomes()
    assert set(first) == {"busy", "failed", "no-answer"}
    sim.reset()
    assert outcomes() == first


def test_a_phone_without_a_script_waits_for_the_test(sim: Simulator, place: Caller) -> None:
    place()
    call = sim.phone(ANN).rings()
    call.answer().hears("press 1").press("1").hears("the job is yours").ended("completed")
    place()
    again = sim.phone(ANN).rings().answer().hears("press 1").hang_up().ended("completed")
    assert again.now["ended_by"] == "control"
    assert len(again.now["keys"]) == 0


def test_manual_phone_may_be_slow(sim: Simulator, place: Caller) -> None:
    """The limits of a phone that follows a script have passed for it, too."""
    sim.phone(BOB).will(ignore(), answer())
    call = place(timeout=5)
    wait_until(lambda: call.status == "ringing")
    place(BOB, timeout=5).ended("no-answer")
    call.answer().hears("press 1")
    place(BOB).hears("goodbye").ended("completed")
    call.press("1").hears("the job is yours")


def test_manual_decline_and_hang_up_while_ringing(sim: Simulator, place: Caller) -> None:
    place().decline().ended("busy")
    second = place()
    sim.phone(ANN).rings()
    second.hang_up().ended("no-answer")


def test_a_phone_cannot_press_before_it_has_answered(place: Caller) -> None:
    call: PhoneCall = place()
    with pytest.raises(AssertionError, match="cannot press"):
        call.press_unasked("1")
