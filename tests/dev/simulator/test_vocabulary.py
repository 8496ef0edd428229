"""The test vocabulary for phones: what it waits for, and what it reports on failure."""

from __future__ import annotations

import pytest

from tests.phones import Simulator, answer
from tests.support.waiting import wait_until

from .conftest import ANN, BOB, Caller


def test_failure_shows_the_whole_story(place: Caller) -> None:
    call = place().answer().hears("press 1")
    with pytest.raises(AssertionError) as caught:
        call.hears("something else", within=0.2)
    told = str(caught.value)
    for part in (
        "something else",
        "created, queued",
        "rings",
        "answered",
        "says: Press 1 to accept",
        "/voice: 200",
    ):
        assert part in told


def test_unexpected_end_is_reported(place: Caller) -> None:
    with pytest.raises(AssertionError, match="expected the call to end as completed"):
        place().decline().ended("completed")


def test_a_phone_that_does_not_ring_shows_what_happened_instead(sim: Simulator, place: Caller) -> None:
    place(BOB)
    with pytest.raises(AssertionError, match=r"\+16025550101 did not ring[\s\S]*\+16025550102"):
        sim.phone(ANN).rings(within=0.2)
    sim.phone(ANN).did_not_ring()
    with pytest.raises(AssertionError, match="was called"):
        sim.phone(BOB).did_not_ring()


def test_rings_continues_with_the_next_call(sim: Simulator, place: Caller) -> None:
    first, second = place(), place()
    assert sim.phone(ANN).rings().sid == first.sid
    assert sim.phone(ANN).rings().sid == second.sid
    assert [call.sid for call in sim.calls_to(ANN)] == [first.sid, second.sid]
    assert {call.sid for call in sim.open_calls()} == {first.sid, second.sid}


def test_complaints_fail_a_test_unless_expected(sim: Simulator) -> None:
    sim.client().http_client.request("GET", f"{sim.base_url}/2010-04-01/Nothing.json")
    with pytest.raises(AssertionError, match="Nothing"):
        sim.assert_no_complaints()
    sim.forgive()
    sim.assert_no_complaints()


def test_waiting_gives_up_with_the_last_reason() -> None:
    def never() -> bool:
        raise AssertionError("three are missing")

    with pytest.raises(AssertionError, match=r"not within 0.05 s\nof jobs\nthree are missing"):
        wait_until(never, message="of jobs", timeout=0.05)
    assert wait_until(lambda: "now") == "now"


def test_all_phones_can_be_given_a_habit(sim: Simulator, place: Caller) -> None:
    sim.others_will(answer(press="1"))
    place(ANN).ended("completed")
    place(BOB).hears("the job is yours").ended("completed")
