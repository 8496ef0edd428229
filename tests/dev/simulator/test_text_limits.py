"""What keeps texts from arriving: carriers' filters, the number's queue, trial accounts, a missing profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twilio.base.exceptions import TwilioRestException

from dispatch.telephony import sms_rules
from tests.phones import Simulator

from .conftest import ANN, BOB, US, Caller
from .server import OurServer


@pytest.fixture(scope="module")
def stepped_process() -> Iterator[Simulator]:
    with Simulator.start(clock="manual") as simulator:
        yield simulator


@pytest.fixture
def stepped(stepped_process: Simulator) -> Simulator:
    """A simulator with a manual clock."""
    stepped_process.reset()
    return stepped_process


def send(sim: Simulator, to: str = ANN, body: str = "There is a job for you", **more: Any) -> str:
    return str(sim.client().messages.create(to=to, from_=US, body=body, **more).sid)


def state_of(sim: Simulator, sid: str) -> tuple[str, int | None]:
    found = sim.client().messages(sid).fetch()
    return str(found.status), found.error_code


def refusal(sim: Simulator, **more: Any) -> tuple[int, int]:
    with pytest.raises(TwilioRestException) as caught:
        send(sim, **more)
    return caught.value.status, caught.value.code


@pytest.mark.parametrize("code", [30006, 30007, 30034])
def test_a_carrier_drops_a_text_that_was_sent(stepped: Simulator, code: int) -> None:
    stepped.filter_texts(code, to=ANN, times=1)
    filtered, other, later = send(stepped), send(stepped, BOB), send(stepped)
    stepped.advance(10)
    assert state_of(stepped, filtered) == ("undelivered", code)
    assert [state_of(stepped, sid) for sid in (other, later)] == [("delivered", None)] * 2
    (history,) = [each for each in stepped.messages() if each["sid"] == filtered]
    assert [each["status"] for each in history["statuses"]] == ["queued", "sending", "sent", "undelivered"]


def test_texts_leave_a_number_by_segments(stepped: Simulator) -> None:
    stepped.set_account(text_segments_per_second=0.1)
    long, short = send(stepped, body="я" * 80), send(stepped)
    stepped.advance(2)
    assert [state_of(stepped, sid)[0] for sid in (long, short)] == ["delivered", "queued"]
    stepped.advance(17)
    assert state_of(stepped, short)[0] == "queued", "two segments take 20 seconds"
    stepped.advance(3)
    assert state_of(stepped, short)[0] == "delivered"
    assert stepped.client().messages(long).fetch().num_segments == "2"


@pytest.mark.parametrize(
    "body", ["ñ" * 160, "ñ" * 161, "[" * 80, "[" * 81, "`" * 70, "`" * 71, "я" * 71, "😀" * 36, "a" * 307]
)
def test_segments_are_counted_in_the_alphabet_of_sms(stepped: Simulator, body: str) -> None:
    sent = send(stepped, body=body)
    assert stepped.client().messages(sent).fetch().num_segments == str(sms_rules.segments(body))


def test_a_full_queue_refuses_texts_or_loses_them(stepped: Simulator) -> None:
    stepped.set_account(text_segments_per_second=0.1, text_queue_s=15)
    for _ in range(2):
        send(stepped)
    assert refusal(stepped) == (429, 21611)
    stepped.set_account(text_segments_per_second=0.1, text_queue_s=15, text_overflow=30001)
    lost = send(stepped)
    stepped.advance(1)
    assert state_of(stepped, lost) == ("failed", 30001)


def test_a_text_expires_in_the_queue(stepped: Simulator) -> None:
    stepped.set_account(text_segments_per_second=0.01)
    send(stepped)
    late = send(stepped, validity_period=60)
    stepped.advance(59)
    assert state_of(stepped, late) == ("queued", None)
    stepped.advance(5)
    assert state_of(stepped, late) == ("failed", 30036)


def test_trial_accounts_reach_only_verified_numbers(stepped: Simulator, ours: OurServer) -> None:
    stepped.set_account(type="Trial", verified=[BOB])
    assert refusal(stepped) == (400, 21608)
    send(stepped, BOB)
    with pytest.raises(TwilioRestException) as caught:
        Caller(stepped, ours)(ANN)
    assert caught.value.code == 21219


def test_without_an_approved_profile_nobody_in_the_us_is_reached(stepped: Simulator, ours: OurServer) -> None:
    stepped.set_account(profile_approved=False)
    assert refusal(stepped) == (400, 21608)
    with pytest.raises(TwilioRestException) as caught:
        Caller(stepped, ours)(ANN)
    assert caught.value.code == 21216


def test_credentials_belong_to_a_region(sim: Simulator) -> None:
    sim.set_account(region="ie1")
    client = sim.client()
    url = f"{sim.base_url}/2010-04-01/Accounts/{sim.account_sid}.json"
    for host, status in (
        ("api.dublin.ie1.twilio.com", 200),
        ("api.ie1.twilio.com", 200),
        ("api.twilio.com", 401),
        ("api.sydney.au1.twilio.com", 401),
    ):
        answer = client.http_client.request(
            "GET", url, headers={"Host": host}, auth=(sim.account_sid, sim.auth_token)
        )
        assert answer.status_code == status, host


def test_callbacks_do_not_wait_for_each_other(sim: Simulator, place: Caller, ours: OurServer) -> None:
    sim.overlap_callbacks()
    sim.slow_webhooks(60, purpose="status", times=1)
    sim.phone(ANN).will({"do": "busy", "after": 1})
    call = place().ended("busy")
    ours.waits_for("/status", 3)
    assert not call.callbacks("initiated"), "the first one is still waiting for its answer"
    assert sorted(ours.statuses()) == ["busy", "initiated", "ringing"]
