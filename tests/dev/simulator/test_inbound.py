"""Inbound calls to the accounts' numbers."""

from __future__ import annotations

import pytest

from tests.phones import Simulator

from .conftest import ANN, OFFER, US
from .server import OurServer


def test_a_person_calls_us_and_presses_a_key(sim: Simulator, ours: OurServer) -> None:
    sim.add_number(US, voice_url=ours.says("/inbound", OFFER), status_callback=ours.base + "/status")
    call = sim.phone(ANN).calls_us(US, press="1").hears("press 1").hears("the job is yours").ended("completed")
    asked = ours.to("/inbound")[0]
    assert asked.signed
    assert (asked.params["From"], asked.params["To"]) == (ANN, US)
    assert (asked.params["Direction"], asked.params["CallStatus"]) == ("inbound", "ringing")
    assert ours.to("/key")[0].params["CallStatus"] == "in-progress"
    call.told("completed")
    assert ours.statuses() == ["completed"]
    fetched = sim.client().calls(call.sid).fetch()
    assert (fetched.direction, fetched.status) == ("inbound", "completed")


def test_manual_call(sim: Simulator, ours: OurServer) -> None:
    sim.add_number(US, voice_url=ours.says("/inbound", OFFER))
    call = sim.phone(ANN).calls_us(US).hears("press 1").press("1").hears("the job is yours")
    call.hang_up().ended("completed")


@pytest.mark.parametrize(("reason", "status"), [("", "no-answer"), ('reason="busy"', "busy")])
def test_we_can_reject_a_call(sim: Simulator, ours: OurServer, reason: str, status: str) -> None:
    sim.add_number(US, voice_url=ours.says("/inbound", f"<Reject {reason}/>"))
    call = sim.phone(ANN).calls_us(US).ended(status)
    assert call.now["duration"] == 0


def test_a_number_that_is_not_ours_cannot_be_called(sim: Simulator) -> None:
    with pytest.raises(AssertionError, match="not a number of an account"):
        sim.phone(ANN).calls_us("+16025559999")
    sim.add_number(US)
    with pytest.raises(AssertionError, match="voice_url"):
        sim.phone(ANN).calls_us(US)
