"""Execution of TwiML: what is said, what is listened for, and which document comes next."""

from __future__ import annotations

from typing import Any

import pytest
from twilio.base.exceptions import TwilioRestException

from tests.phones import Simulator, answer
from tests.support.audio import wav

from .conftest import ANN, Caller
from .server import OurServer


def test_spoken_text_is_recorded_in_order_with_its_voice(sim: Simulator, place: Caller, ours: OurServer) -> None:
    bell = ours.serves("/bell.wav", wav(1), "audio/wav")
    sim.phone(ANN).will(answer())
    call = place(
        twiml='<Say voice="Polly.Joanna" language="en-US">Good day</Say><Pause length="2"/>'
        f"<Play>{bell}</Play><Say loop='2'>Bye</Say>"
    ).ended("completed")
    said = call.now["said"]
    assert [words["text"] for words in said] == ["Good day", f"[plays {bell}]", "Bye", "Bye"]
    assert (said[0]["voice"], said[0]["language"]) == ("Polly.Joanna", "en-US")
    assert said[1]["at"] - said[0]["at"] >= 2.3, "half a second of words and two of pause"
    (played,) = call.now["plays"]
    assert {**played, "at": 0} == {
        "at": 0, "url": bell, "status": 200, "content_type": "audio/wav", "bytes": len(wav(1)), "seconds": 1.0,
        "complete": True,
    }  # fmt: skip
    (asked,) = ours.to("/bell.wav")
    assert (asked.method, asked.signed) == ("GET", True)


@pytest.mark.parametrize(
    ("content", "kind", "code"),
    [
        (b"<html/>", "text/html", 12300),
        (b"a text", "audio/wav", 12300),
        (b"a text", "audio/mpeg", 12300),
        (b"", "", 11200),
    ],
)
def test_a_file_that_is_no_audio_is_an_error(
    sim: Simulator, place: Caller, ours: OurServer, content: bytes, kind: str, code: int
) -> None:
    sim.forgive()
    sim.phone(ANN).will(answer())
    if not kind:
        ours.breaks("/bell.wav", 404)
    file = ours.serves("/bell.wav", content, kind or "audio/wav")
    call = place(twiml=f"<Gather><Play>{file}</Play></Gather><Say>Bye</Say>").ended(
        "completed" if code == 11200 else "failed"
    )
    assert call.now["error_code"] == code
    assert "Bye" not in call.said


def test_a_document_is_asked_for_with_the_facts_of_the_call(ours: OurServer, place: Caller) -> None:
    call = place()
    call.answer().hears("press 1")
    asked = ours.to("/voice")[0]
    assert asked.signed
    assert asked.params["CallSid"] == call.sid
    assert asked.params["CallStatus"] == "in-progress"
    assert asked.params["Direction"] == "outbound-api"


def test_a_document_can_be_asked_for_by_get(ours: OurServer, place: Caller) -> None:
    place(url=ours.base + "/voice?job=7", method="GET").answer().hears("press 1")
    asked = ours.to("/voice")[0]
    assert (asked.method, asked.signed, asked.params["job"]) == ("GET", True, "7")


def test_without_a_key_gather_falls_through(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(answer())
    place().hears("goodbye").ended("completed")
    assert ours.to("/key") == []


def test_an_empty_result_reaches_the_action_when_asked_for(sim: Simulator, ours: OurServer, place: Caller) -> None:
    sim.phone(ANN).will(answer())
    ours.says("/voice", '<Gather timeout="2" action="/key" actionOnEmptyResult="true"><Say>Press</Say></Gather>')
    place().hears("the job is yours")
    assert ours.to("/key")[0].params["Digits"] == ""


@pytest.mark.parametrize(
    ("attributes", "keys", "digits", "finished"),
    [
        ('numDigits="3"', "1234", "123", None),
        ("", "42#", "42", "#"),
        ('finishOnKey="*"', "7#*", "7#", "*"),
        ('finishOnKey="" numDigits="2"', "*#", "*#", None),
        ('timeout="2"', "55", "55", None),
        ('numDigits="1"', "*", "*", None),
    ],
)
def test_digits_end_by_number_by_key_or_by_time(
    sim: Simulator, ours: OurServer, place: Caller, attributes: str, keys: str, digits: str, finished: str | None
) -> None:
    ours.says("/voice", f'<Gather {attributes} action="/key"><Say>Which job</Say></Gather>')
    sim.phone(ANN).will(answer(press=keys))
    place().hears("the job is yours")
    sent = ours.to("/key")[0].params
    assert (sent["Digits"], sent.get("FinishedOnKey")) == (digits, finished)


def test_finishing_key_alone_is_not_a_result(ours: OurServer, place: Caller) -> None:
    ours.says("/voice", '<Gather action="/key"><Say>Which job</Say></Gather><Say>Nothing then</Say>')
    place().answer().hears("which job").press("#").hears("nothing then")
    assert ours.to("/key") == []


def test_key_outside_of_a_gather_is_lost(ours: OurServer, place: Caller) -> None:
    ours.says("/voice", "<Say>One moment</Say><Pause length='600'/>")
    call = place().answer().hears("one moment").press_unasked("1").hang_up().ended("completed")
    assert [key["used"] for key in call.now["keys"]] == [False]


def test_without_an_action_gather_asks_the_same_document_again(ours: OurServer, place: Caller) -> None:
    ours.says("/voice", '<Gather numDigits="1"><Say>Star to repeat</Say></Gather>')
    call = place().answer().hears("star to repeat").press("*")
    ours.waits_for("/voice", 2)
    assert ours.to("/voice")[1].params["Digits"] == "*"
    call.hang_up()


def test_addresses_are_relative_to_the_document(ours: OurServer, place: Caller) -> None:
    ours.says("/calls/7/start", "<Redirect>menu</Redirect>")
    ours.says("/calls/7/menu", '<Gather numDigits="1" action="../8/done"><Say>Press</Say></Gather>')
    ours.says("/calls/8/done", '<Redirect method="GET">/end</Redirect>')
    ours.says("/end", "<Say>Made it</Say><Hangup/><Say>Never said</Say>")
    call = place(url=ours.base + "/calls/7/start").answer().hears("press").press("1").ended("completed")
    call.hears("made it").has_not_heard("never said")
    assert ours.to("/end")[0].method == "GET"


def test_a_live_call_can_be_given_another_document(sim: Simulator, ours: OurServer, place: Caller) -> None:
    call = place().answer().hears("press 1")
    live = sim.client().calls(call.sid)
    live.update(twiml="<Response><Say>It is taken</Say><Pause length='600'/></Response>")
    call.hears("it is taken")
    live.update(url=ours.says("/other", "<Say>Good night</Say>"))
    call.hears("good night").ended("completed")
    with pytest.raises(TwilioRestException) as caught:
        live.update(url=ours.base + "/other")
    assert caught.value.code == 21220


@pytest.mark.parametrize("trouble", [{"/voice": (500, 500)}, {"/voice": (404, 404)}])
def test_fallback_is_used_when_the_document_cannot_be_fetched(
    ours: OurServer, place: Caller, trouble: dict[str, Any]
) -> None:
    ours.says("/fallback", "<Say>Please call back</Say>")
    ours.breaks("/voice", *trouble["/voice"])
    call = place(fallback_url=ours.base + "/fallback").answer().hears("please call back").ended("completed")
    asked = ours.to("/fallback")[0].params
    assert (asked["ErrorCode"], asked["ErrorUrl"]) == ("11200", ours.base + "/voice")
    assert call.now["problems"]


def test_without_a_fallback_the_conversation_is_over(sim: Simulator, ours: OurServer, place: Caller) -> None:
    ours.breaks("/voice", 500)
    call = place().answer().ended("completed")
    assert call.now["error_code"] == 11200
    assert sim.complaints() == [], "an outage is no mistake"


def test_a_call_ends_at_its_time_limit(sim: Simulator, place: Caller) -> None:
    sim.phone(ANN).will(answer())
    call = place(twiml="<Pause length='600'/>", time_limit=6).ended("completed").now
    assert call["ended_by"] == "time limit"
    assert 6 <= call["duration"] < 60


def test_endless_redirects_are_stopped(sim: Simulator, ours: OurServer, place: Caller) -> None:
    ours.says("/voice", "<Redirect>/voice</Redirect>")
    place().answer().ended("failed")
    assert "documents" in sim.complaints()[0]
    sim.forgive()


@pytest.mark.parametrize(
    ("twiml", "code"),
    [
        (f"<Say>{'a' * 3001}</Say>", 13521),
        (f"<Say>{'&#1078;' * 751}</Say>", 13521),
        ("<Say>a</Say>" * 6000, 11750),
    ],
)
def test_documents_beyond_the_provider_s_limits_fail(
    sim: Simulator, ours: OurServer, place: Caller, twiml: str, code: int
) -> None:
    ours.says("/voice", twiml)
    call = place()
    call.answer().ended("failed")
    assert call.now["error_code"] == code
    sim.forgive()
