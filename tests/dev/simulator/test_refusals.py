"""What the provider would reject, and what the simulator does not know, is rejected with an error."""

from __future__ import annotations

import base64
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from twilio.base.exceptions import TwilioRestException

from tests.phones import ACCOUNT_SID, AUTH_TOKEN, Simulator, refused

from .conftest import ANN, US, Caller
from .server import OurServer


def refusal(place: Caller, **more: Any) -> tuple[int, int]:
    with pytest.raises(TwilioRestException) as caught:
        place(**more)
    return caught.value.status, caught.value.code


def post(sim: Simulator, form: dict[str, Any], path: str = "Calls.json") -> requests.Response:
    url = f"{sim.base_url}/2010-04-01/Accounts/{ACCOUNT_SID}/{path}"
    return requests.post(url, data=form, auth=(ACCOUNT_SID, AUTH_TOKEN), timeout=60)


@pytest.mark.parametrize(
    ("to", "code"),
    [
        ("6025550101", 21211),
        ("+1602", 21211),
        ("nobody", 21211),
        ("+11025550101", 21217),
        ("+447911123456", 21215),
        ("+19005550101", 21216),
    ],
)
def test_numbers_that_cannot_be_called(sim: Simulator, place: Caller, to: str, code: int) -> None:
    assert refusal(place, to=to) == (400, code)
    assert sim.calls() == []
    assert sim.complaints() == [], "what is wrong with a number is no mistake of the code"


def test_the_caller_number_must_be_ours(sim: Simulator, place: Caller) -> None:
    account = {"sid": ACCOUNT_SID, "auth_token": AUTH_TOKEN, "numbers": [US]}
    sim.request("PUT", "/control/accounts", json=account)
    assert refusal(place, from_="+16025559999") == (400, 21210)
    assert refusal(place, from_="us") == (400, 21212)
    place(ANN)


@pytest.mark.parametrize("code", [21211, 21214, 21215, 21217, 21219])
def test_a_phone_can_be_refused_with_any_code_once(place: Caller, sim: Simulator, code: int) -> None:
    sim.phone(ANN).will(refused(code), {"do": "manual"})
    assert refusal(place) == (400, code)
    place().hang_up()
    assert (sim.asked_for(ANN), sim.creates_to(ANN)) == (2, 1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"To": None}, 21201),
        ({"From": None}, 21213),
        ({"Url": None}, 21205),
        ({"Url": "/voice"}, 21205),
        ({"Url": "http://example.com/voice"}, 21205),
        ({"Url": "http://127.0.0.1:1/voice#rc=9"}, 21205),
        ({"Url": "http://127.0.0.1:1/voice#rp=always"}, 21205),
        ({"Url": "http://127.0.0.1:1/voice#retries=3"}, 21205),
        ({"StatusCallback": "callback"}, 21609),
        ({"StatusCallbackEvent": "started"}, 21626),
        ({"Timeout": "soon"}, 20001),
        ({"Timeout": "601"}, 20001),
        ({"MachineDetection": "yes"}, 20001),
        ({"Method": "PUT"}, 20001),
        ({"SendDigits": "call me"}, 20001),
        ({"Colour": "blue"}, 20001),
        ({"Record": "true"}, 20001),
        ({"ApplicationSid": "AP1"}, 20001),
    ],
)
def test_a_mistaken_request_is_refused_and_complained_about(
    sim: Simulator, change: dict[str, Any], code: int
) -> None:
    form = {"To": ANN, "From": US, "Url": "http://127.0.0.1:1/voice", **change}
    answer_ = post(sim, {name: value for name, value in form.items() if value is not None})
    assert (answer_.status_code, answer_.json()["code"]) == (400, code)
    assert [str(code) in line for line in sim.complaints()] == [True]
    assert sim.calls() == []
    sim.forgive()


def test_an_unknown_path_is_complained_about(sim: Simulator) -> None:
    assert post(sim, {}, "Faxes.json").json()["code"] == 20404
    assert (
        requests.delete(
            f"{sim.base_url}/2010-04-01/Accounts/{ACCOUNT_SID}/Calls.json",
            auth=(ACCOUNT_SID, AUTH_TOKEN),
            timeout=5,
        ).status_code
        == 405
    )
    assert len(sim.complaints()) == 2
    sim.forgive()


def test_client_that_dies_while_it_sends_is_no_mistake_of_the_code(sim: Simulator, place: Caller) -> None:
    where = urlsplit(sim.base_url)
    login = base64.b64encode(f"{ACCOUNT_SID}:{AUTH_TOKEN}".encode()).decode()
    head = (
        f"POST /2010-04-01/Accounts/{ACCOUNT_SID}/Calls.json HTTP/1.1\r\nHost: {where.netloc}\r\n"
        f"Authorization: Basic {login}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        "Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection((str(where.hostname), where.port), timeout=10) as client:
        client.sendall(head.encode())
        assert b"100 Continue" in client.recv(1000)  # it reads the body now
        client.sendall(b"To=")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, as of a kill
    place(ANN)
    assert sim.complaints() == []
    assert len(sim.calls()) == 1


def test_body_that_is_not_a_form_is_rejected(sim: Simulator) -> None:
    url = f"{sim.base_url}/2010-04-01/Accounts/{ACCOUNT_SID}/Calls.json"
    answer_ = requests.post(url, json={"To": ANN}, auth=(ACCOUNT_SID, AUTH_TOKEN), timeout=60)
    assert answer_.status_code == 400
    assert len(sim.complaints()) == 1
    sim.forgive()


@pytest.mark.parametrize(
    ("document", "about"),
    [
        ('<Dial record="true">+16025550101</Dial>', "record"),
        ("<Dial/>", "numbers"),
        ('<Say volume="9">Hello</Say>', "volume"),
        ("<Say>Hello", "12100"),
        ('<Gather numDigits="many"/>', "many"),
        ("<Gather><Redirect>/x</Redirect></Gather>", "Redirect"),
        ("Hello", "Hello"),
        ("<Say/>", "empty"),
        ("<Reject/>", "Reject"),
    ],
)
def test_twiml_that_no_provider_takes_fails_the_call(
    sim: Simulator, ours: OurServer, place: Caller, document: str, about: str
) -> None:
    ours.says("/voice", document)
    call = place()
    call.answer()
    call.ended("failed").told("failed")
    assert about in sim.complaints()[0]
    assert str(call.now["error_code"]).startswith("12")
    assert "ErrorCode" not in call.callbacks("failed")[0]["params"], "the provider reports only the SIP code"
    sim.forgive()


def test_twiml_of_another_content_type_fails_the_call(sim: Simulator, ours: OurServer, place: Caller) -> None:
    ours.says("/voice", "<Say>Hello</Say>", "application/json")
    place().answer().ended("failed")
    assert "12300" in sim.complaints()[0]
    sim.forgive()
