"""A person may take control of a phone and release it."""

from __future__ import annotations

from tests.phones import Simulator, answer, busy

from .conftest import ANN, Caller
from .server import OurServer


def state_of(sim: Simulator, number: str) -> dict:
    return sim.get("/control/phones")["phones"][number]


def test_a_phone_that_is_taken_while_it_rings_does_nothing_by_itself(ours: OurServer) -> None:
    with Simulator.start(clock="manual") as sim:
        sim.phone(ANN).will(answer(after=20, press="2"))
        call = Caller(sim, ours)(timeout=100)
        sim.advance(10)
        assert call.status == "ringing"
        sim.request("POST", f"/control/phones/{ANN}/take")
        assert state_of(sim, ANN)["taken"]
        sim.advance(30)  # by now the script would have answered
        assert call.status == "ringing"
        call.answer()
        sim.advance(3)
        call.press("1")
        sim.advance(3)
        call.hears("the job is yours")


def test_a_phone_that_is_given_back_does_what_it_did(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(busy())
    sim.request("POST", f"/control/phones/{ANN}/take")
    sim.request("POST", f"/control/phones/{ANN}/take")
    assert state_of(sim, ANN)["does"] == "manual"
    place().decline()
    sim.request("POST", f"/control/phones/{ANN}/release")
    assert not state_of(sim, ANN)["taken"]
    place().ended("busy")


def test_the_phones_tell_their_latest_calls_and_texts(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(answer(press="1"))
    call = place().ended("completed")
    sim.add_number("+16025550100")
    sim.phone(ANN).texts_us("+16025550100", "On my way")
    told = state_of(sim, ANN)
    assert told["calls"][0]["sid"] == call.sid
    assert told["calls"][0]["over"]
    assert told["calls"][0]["keys"] == "1"
    assert (told["texts"][0]["body"], told["texts"][0]["theirs"]) == ("On my way", True)
    changes = sim.get("/control/changes", after=0)["changes"]
    assert {"message", "call"} <= {one["kind"] for one in changes if one.get("phone") == ANN}
