"""Text messages in both directions."""

from __future__ import annotations

from typing import Any

import pytest
from twilio.base.exceptions import TwilioRestException

from tests.phones import Simulator
from tests.support.waiting import wait_until

from .conftest import ANN, BOB, US
from .server import OurServer


def text(sim: Simulator, ours: OurServer, to: str = ANN, body: str = "Job 7 is waiting", **more: Any) -> Any:
    given = {"to": to, "from_": US, "body": body, "status_callback": ours.base + "/sms-status", **more}
    return sim.client().messages.create(**given)


def states(ours: OurServer) -> list[str]:
    return [request.params["MessageStatus"] for request in ours.to("/sms-status")]


def test_a_text_arrives_and_says_so(sim: Simulator, ours: OurServer) -> None:
    sent = text(sim, ours)
    assert (sent.status, sent.direction, sent.num_segments, sent.error_code) == (
        "queued",
        "outbound-api",
        "1",
        None,
    )
    assert sim.phone(ANN).gets_text("job 7")["from"] == US
    ours.waits_for("/sms-status", 3)
    assert sorted(states(ours)) == ["delivered", "queued", "sent"]
    assert all(request.signed for request in ours.to("/sms-status"))
    fetched = sim.client().messages(sent.sid).fetch()
    assert (fetched.status, fetched.body, fetched.to) == ("delivered", "Job 7 is waiting", ANN)
    assert [m.sid for m in sim.client().messages.list(to=ANN)] == [sent.sid]


@pytest.mark.parametrize(("fate", "error"), [("undelivered", 30003), ("failed", 30008)])
def test_a_text_that_does_not_arrive(sim: Simulator, ours: OurServer, fate: str, error: int) -> None:
    sim.phone(ANN).texts_will(fate, error)
    sent = text(sim, ours)
    wait_until(lambda: fate in states(ours), message=lambda: str(states(ours)))
    last = next(r for r in ours.to("/sms-status") if r.params["MessageStatus"] == fate)
    assert last.params["ErrorCode"] == str(error)
    assert sim.client().messages(sent.sid).fetch().error_code == error


def test_lost_and_doubled_reports_of_a_text(sim: Simulator, ours: OurServer) -> None:
    sim.lose_callbacks(event="sent")
    sim.duplicate_callbacks(event="delivered")
    text(sim, ours)
    ours.waits_for("/sms-status", 3)
    assert sorted(states(ours)) == ["delivered", "delivered", "queued"]


@pytest.mark.parametrize(
    ("change", "code", "mistake"),
    [
        ({"to": "602"}, 21211, False),
        ({"from_": "us"}, 21212, False),
        ({"body": ""}, 21602, True),
        ({"body": "x" * 1601}, 21617, True),
        ({"status_callback": "there"}, 21609, True),
        ({"media_url": ["http://127.0.0.1/x.png"]}, 20001, True),
    ],
)
def test_texts_that_are_refused(
    sim: Simulator, ours: OurServer, change: dict[str, Any], code: int, mistake: bool
) -> None:
    with pytest.raises(TwilioRestException) as caught:
        text(sim, ours, **change)
    assert caught.value.code == code
    assert bool(sim.complaints()) == mistake
    assert sim.messages() == []
    sim.forgive()


def test_faults_of_message_requests(sim: Simulator, ours: OurServer) -> None:
    sim.answer_503(on="message")
    with pytest.raises(TwilioRestException) as caught:
        text(sim, ours)
    assert caught.value.status == 503
    text(sim, ours)


def test_stop_applies_until_start(sim: Simulator, ours: OurServer) -> None:
    sim.add_number(US, sms_url=ours.says("/sms", ""))
    ann = sim.phone(ANN)
    ann.texts_us(US, "  stop ")
    ann.gets_text("unsubscribed")
    with pytest.raises(TwilioRestException) as caught:
        text(sim, ours)
    assert caught.value.code == 21610
    assert sim.complaints() == []
    text(sim, ours, BOB)
    ann.texts_us(US, "START")
    ann.gets_text("subscribed again")
    text(sim, ours)
    ann.gets_text("job 7")
    arrived = ours.waits_for("/sms", 2)
    assert sorted(request.params["Body"].strip() for request in arrived) == ["START", "stop"]


def test_help_is_answered(sim: Simulator, ours: OurServer) -> None:
    sim.add_number(US)
    sim.phone(ANN).texts_us(US, "help")
    sim.phone(ANN).gets_text("unsubscribe")


def test_our_answer_to_a_text_is_sent(sim: Simulator, ours: OurServer) -> None:
    sim.add_number(
        US, sms_url=ours.says("/sms", "<Message>Thank you</Message><Message><Body>Bye</Body></Message>")
    )
    sim.phone(ANN).texts_us(US, "on my way")
    assert sim.phone(ANN).gets_text("thank you")["direction"] == "outbound-reply"
    sim.phone(ANN).gets_text("bye")
    asked = ours.to("/sms")[0]
    assert asked.signed
    assert (asked.params["From"], asked.params["To"], asked.params["Body"]) == (ANN, US, "on my way")


def test_invalid_reply_document_is_a_complaint(sim: Simulator, ours: OurServer) -> None:
    sim.add_number(US, sms_url=ours.says("/sms", "<Say>Hello</Say>"))
    sim.phone(ANN).texts_us(US, "hello")
    wait_until(lambda: "Say" in "".join(sim.complaints()))
    sim.forgive()
