"""Injected faults, and the state afterwards."""

from __future__ import annotations

import time

import pytest
import requests
from twilio.base.exceptions import TwilioRestException

from tests.phones import ACCOUNT_SID, Simulator, answer, busy
from tests.support.waiting import PATIENCE, wait_until

from .conftest import ANN, BOB, Caller
from .server import OurServer


def failing(place: Caller, to: str = ANN) -> TwilioRestException:
    with pytest.raises(TwilioRestException) as caught:
        place(to)
    return caught.value


def test_429_creates_nothing_and_says_when_to_come_back(sim: Simulator, place: Caller) -> None:
    sim.answer_429(retry_after=7)
    url = f"{sim.base_url}/2010-04-01/Accounts/{sim.account_sid}/Calls.json"
    form = {"To": ANN, "From": "+16025550100", "Twiml": "<Response/>"}
    refused = requests.post(url, data=form, auth=(sim.account_sid, sim.auth_token), timeout=60)
    assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (429, 20429, "7")
    assert sim.creates_to(ANN) == 0
    place()
    assert (sim.asked_for(ANN), sim.creates_to(ANN)) == (2, 1)


def test_concurrency_error_can_be_injected(sim: Simulator, place: Caller) -> None:
    sim.fault("concurrency")
    assert failing(place).code == 10004


@pytest.mark.parametrize(("name", "status", "code"), [("answer_500", 500, 20500), ("answer_503", 503, 20503)])
@pytest.mark.parametrize("creates", [False, True])
def test_a_server_error_hides_whether_there_is_a_call(
    sim: Simulator, place: Caller, name: str, status: int, code: int, creates: bool
) -> None:
    getattr(sim, name)(creates=creates)
    error = failing(place)
    assert (error.status, error.code) == (status, code)
    assert sim.creates_to(ANN) == int(creates)
    assert sim.complaints() == []


@pytest.mark.parametrize(("name", "created"), [("time_out_before_creating", 0), ("time_out_after_creating", 1)])
def test_a_time_out_before_or_after_creating(sim: Simulator, ours: OurServer, name: str, created: int) -> None:
    getattr(sim, name)(hold=30)
    impatient = Caller(sim, ours)
    impatient.client = sim.client(timeout=0.3)
    with pytest.raises(requests.ReadTimeout):
        impatient()
    wait_until(lambda: sim.asked_for(ANN) == 1 and sim.creates_to(ANN) == created)
    assert len(sim.client().calls.list(to=ANN)) == created


@pytest.mark.parametrize(
    ("name", "created"),
    [("time_out_after_creating", 1), ("reset_before_creating", 0), ("reset_after_creating", 1)],
)
def test_a_connection_that_is_cut(sim: Simulator, place: Caller, name: str, created: int) -> None:
    getattr(sim, name)(**({"hold": 0.2} if name.startswith("time") else {}))
    with pytest.raises(requests.ConnectionError):
        place()
    assert sim.creates_to(ANN) == created
    if created:
        sim.phone(ANN).rings()


def test_a_slow_create_keeps_the_caller_waiting_but_not_the_phone(
    sim: Simulator, ours: OurServer, place: Caller
) -> None:
    sim.phone(ANN).will(busy(0.1))
    sim.slow_create(0.5)
    began = time.monotonic()
    place()
    assert time.monotonic() - began >= 0.5
    wait_until(lambda: ours.statuses() == ["initiated", "ringing", "busy"])


def test_a_callback_can_come_before_the_create_returns(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.callbacks_before_create_returns("ringing")
    place()
    assert "ringing" in ours.statuses()


def test_the_list_can_lag(ours: OurServer) -> None:
    with Simulator.start(clock="manual") as sim:
        sim.list_lags(30)
        call = Caller(sim, ours)()
        client = sim.client()
        sim.advance(29)
        assert client.calls.list(to=ANN) == []
        assert client.calls(call.sid).fetch().sid == call.sid
        sim.advance(2)
        assert [c.sid for c in client.calls.list(to=ANN)] == [call.sid]


def test_lost_callbacks_never_arrive(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(busy())
    sim.lose_callbacks(event="completed")
    call = place().ended("busy")
    ours.waits_for("/status", 2)
    sim.until(lambda: any(hook.get("fault") == "lose" for hook in call.now["webhooks"]), PATIENCE, call.story)
    assert ours.statuses() == ["initiated", "ringing"]


def test_duplicated_callbacks_carry_the_same_number(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(busy())
    sim.duplicate_callbacks()
    place().ended("busy")
    ours.waits_for("/status", 6)
    assert [r.params["SequenceNumber"] for r in ours.to("/status")] == ["0", "0", "1", "1", "2", "2"]


def test_delayed_callbacks_arrive_after_later_ones(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(busy())
    sim.delay_callbacks(40, event="ringing")
    place().ended("busy")
    ours.waits_for("/status", 3)
    assert ours.statuses() == ["initiated", "busy", "ringing"]


def test_reordered_callbacks_are_overtaken(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(answer(press="1"))
    sim.reorder_callbacks(times=1, event="answered")
    place().ended("completed")
    ours.waits_for("/status", 4)
    assert ours.statuses() == ["initiated", "ringing", "completed", "in-progress"]


def test_lost_webhooks_look_like_an_unreachable_server(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.lose_webhooks("gather")
    call = place().answer().hears("press 1").press("1").ended("completed")
    assert ours.to("/key") == []
    assert call.now["error_code"] == 11200


def test_a_fault_can_be_for_one_number_and_skip_the_first(sim: Simulator, place: Caller) -> None:
    sim.answer_500(to=BOB, skip=1)
    place(ANN)
    place(BOB)
    assert failing(place, BOB).status == 500
    place(BOB)


def test_fault_can_be_random(sim: Simulator, place: Caller) -> None:
    sim.answer_503(times=None, probability=0.5)
    outcomes = []
    for number in range(24):
        try:
            place(f"+1602555{number:04}")
            outcomes.append(True)
        except TwilioRestException:
            outcomes.append(False)
    assert 4 <= sum(outcomes) <= 20
    sim.heal()
    place(ANN)


def test_an_unknown_fault_is_refused(sim: Simulator) -> None:
    with pytest.raises(AssertionError, match="unknown fault"):
        sim.fault("earthquake")
    with pytest.raises(AssertionError, match="unknown keys"):
        sim.fault("lose", colour="red")


def test_a_slow_server_is_asked_again_though_it_handled_the_request(
    sim: Simulator, ours: OurServer, place: Caller
) -> None:
    sim.slow_webhooks(5, purpose="twiml")
    call = place(url=ours.base + "/voice#rc=3&rp=ct,rt,5xx&ct=2000&rt=4000")
    call.answer().ended()
    assert len(ours.to("/voice")) > 1


def test_a_suspended_account_is_refused_everything_but_its_state(sim: Simulator, place: Caller) -> None:
    sim.set_account(status="suspended")
    with pytest.raises(TwilioRestException) as refused:
        place()
    assert (refused.value.status, refused.value.code) == (403, 20005)
    assert sim.client().api.v2010.accounts(ACCOUNT_SID).fetch().status == "suspended"
    sim.reset()
    place()
