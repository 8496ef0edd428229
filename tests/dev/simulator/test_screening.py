"""Call screening: an assistant answers for the person, who takes the call later or not at all."""

from __future__ import annotations

import pytest

from tests.phones import Simulator, screens

from .conftest import ANN, Caller
from .server import OurServer


def pressed(call) -> list[str]:
    return [key["key"] for key in call.now["keys"]]


def test_the_person_takes_the_call_and_hears_the_repeated_prompt(sim: Simulator, place: Caller) -> None:
    sim.phone(ANN).will(screens(press="1", decide_after=10))
    ask = '<Gather numDigits="1" action="/key" timeout="5"><Say>Press 1 to accept</Say></Gather>'
    call = (
        place(twiml=ask.replace("/key", place.ours.base + "/key") * 3).hears("The job is yours").ended("completed")
    )
    assert pressed(call) == ["1"]
    story = "\n".join(call.now["story"])
    assert story.index("an assistant screens the call") < story.index("the person takes the call")
    assert story.index("the person takes the call") < story.index("key 1 pressed")


def test_a_person_who_takes_the_call_while_it_listens_can_press_at_once(sim: Simulator, place: Caller) -> None:
    sim.phone(ANN).will(screens(press="1", decide_after=30))
    ask = f'<Gather numDigits="1" action="{place.ours.base}/key" timeout="60"><Say>Press 1</Say></Gather>'
    assert pressed(place(twiml=ask).hears("The job is yours")) == ["1"]


def test_an_assistant_that_declines_hangs_up_without_a_key(sim: Simulator, place: Caller, ours: OurServer) -> None:
    sim.phone(ANN).will(screens("hang_up", press="1", decide_after=2))
    call = place().ended("completed")
    assert (call.now["ended_by"], pressed(call), ours.to("/key")) == ("phone", [], [])
    assert "the person declines" in call.story()


def test_an_assistant_that_takes_a_message_presses_nothing(sim: Simulator, place: Caller) -> None:
    sim.phone(ANN).will(screens("voicemail", press="1", decide_after=1))
    call = place(machine_detection="Enable").ended("completed")
    assert pressed(call) == []
    assert call.now["answered_by"] == "machine_start"


def test_nonsense_is_refused(sim: Simulator) -> None:
    with pytest.raises(AssertionError, match="'then' is one of"):
        sim.phone(ANN).will({"do": "screen", "then": "sing"})
