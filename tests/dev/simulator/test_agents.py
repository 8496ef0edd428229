"""Connect: media streams and ConversationRelay, spoken with a real WebSocket server."""

from __future__ import annotations

import base64

import pytest

from dispatch.dev.simulator.media_stream import SILENCE, encode_mu_law, tone
from dispatch.dev.simulator.twiml import TwimlError, parse
from tests.harness.voice_agent import ScriptedAgent, Talk
from tests.phones import PhoneCall, Simulator, answer, manual

from .conftest import ANN, Caller
from .server import OurServer

AUDIO = base64.b64encode(bytes([0x55]) * 800).decode()  # 0.1 s


def connect(place: Caller, document: str) -> PhoneCall:
    """Place a call whose document connects to an agent."""
    place.ours.says("/voice", document)
    return place()


def stream(url: str, inside: str = "", **attributes: str) -> str:
    given = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<Connect action="/ended"><Stream url="{url}"{given}>{inside}</Stream></Connect>'


def relay(url: str, **attributes: str) -> str:
    given = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<Connect action="/ended"><ConversationRelay url="{url}" dtmfDetection="true"{given}/></Connect>'


def test_a_stream_carries_audio_marks_and_keys(sim: Simulator, place: Caller, ours: OurServer) -> None:
    def talk(with_: Talk) -> None:
        start = with_.hear("start")
        sid = start["streamSid"]
        media = [with_.hear("media")["media"] for _ in range(3)]
        assert [base64.b64decode(each["payload"]) for each in media] == [SILENCE] * 3
        assert [each["timestamp"] for each in media] == ["20", "40", "60"]
        with_.send(event="media", streamSid=sid, media={"payload": AUDIO})
        with_.send(event="mark", streamSid=sid, mark={"name": "asked"})
        assert with_.hear("mark")["mark"] == {"name": "asked"}
        assert with_.hear("dtmf")["dtmf"] == {"track": "inbound_track", "digit": "5"}
        with_.send(event="media", streamSid=sid, media={"payload": AUDIO * 1})
        with_.send(event="mark", streamSid=sid, mark={"name": "cut"})
        with_.send(event="clear", streamSid=sid)
        with_.hear("mark")

    ours.says("/ended", "<Say>Bye</Say>")
    sim.phone(ANN).will(answer(0.2, "5"))
    with ScriptedAgent(talk) as agent:
        inside = '<Parameter name="lead_id" value="7"/>'
        attributes = {"statusCallback": f"{ours.base}/stream", "name": "first"}
        call = connect(place, stream(f"{agent.url}/x", inside, **attributes)).ended()
        assert call.said.split()[-1] == "Bye"
        assert "[audio of 0.10 s]" in call.said
        start = next(each["start"] for each in agent.talks[0].heard if each["event"] == "start")
        assert start["customParameters"] == {"lead_id": "7"}
        assert start["mediaFormat"] == {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        assert start["callSid"] == call.sid
        assert agent.talks[0].kinds()[:2] == ["connected", "start"]
        assert agent.signed == [True]
    events = [each.params["StreamEvent"] for each in ours.waits_for("/stream", 2)]
    assert events == ["stream-started", "stream-stopped"]
    assert ours.to("/ended")[0].signed


def test_a_person_who_speaks_is_heard_as_sound_and_hangs_up(sim: Simulator, place: Caller) -> None:
    def talk(with_: Talk) -> None:
        sid = with_.hear("start")["streamSid"]
        with_.send(event="mark", streamSid=sid, mark={"name": "listening"})
        while base64.b64decode(with_.hear("media")["media"]["payload"]) == SILENCE:
            pass
        with_.send(event="mark", streamSid=sid, mark={"name": "understood"})
        with_.hear_until_closed()

    sim.phone(ANN).will({"do": "answer", "after": 0.2, "says": [{"text": "Hello?", "heard": "mark listening"}],
                         "hang_up": {"heard": "mark understood"}})  # fmt: skip
    with ScriptedAgent(talk) as agent:
        call = connect(place, stream(agent.url)).ended()
        assert "the person says: Hello?" in call.story()
        sim.until(lambda: "stop" in agent.talks[0].kinds(), 120, "no stop")


def test_conversation_relay_speaks_and_hears(sim: Simulator, place: Caller, ours: OurServer) -> None:
    def talk(with_: Talk) -> None:
        setup = with_.hear("setup")
        assert setup["customParameters"] == {}
        with_.send(type="text", token="What is ", last=False)
        with_.send(type="text", token="your name?", last=True)
        assert with_.hear("prompt")["voicePrompt"] == "Ann"
        with_.send(type="text", token="A long goodbye that nobody hears to its end, because of a key.", last=True)
        assert with_.hear("interrupt")["utteranceUntilInterrupt"] in "A long goodbye that nobody hears to its end"
        assert with_.hear("dtmf") == {"type": "dtmf", "digit": "1"}
        with_.send(type="end", handoffData='{"notes": "x"}')
        with_.hear_until_closed()

    ours.says("/ended", "<Hangup/>")
    sim.phone(ANN).will({"do": "answer", "after": 0.2, "says": [{"text": "Ann", "heard": "your name"}],
                         "keys": [{"key": "1", "during": "long goodbye"}]})  # fmt: skip
    with ScriptedAgent(talk) as agent:
        call = connect(place, relay(agent.url, welcomeGreeting="Welcome.")).ended()
    assert call.said.startswith("Welcome. What is your name?")
    (end,) = ours.to("/ended")
    assert (end.params["SessionStatus"], end.params["HandoffData"]) == ("ended", '{"notes": "x"}')


@pytest.mark.parametrize("make", [stream, relay], ids=["stream", "relay"])
def test_a_refused_handshake_continues_with_the_document(
    place: Caller, ours: OurServer, sim: Simulator, make
) -> None:
    ours.says("/ended", "<Say>Sorry</Say>")
    sim.phone(ANN).will(answer(0.2))
    with ScriptedAgent(lambda _: None, refuses=503) as agent:
        document = make(agent.url, **({"statusCallback": f"{ours.base}/stream"} if make is stream else {}))
        call = connect(place, document).ended()
    assert call.said == "Sorry"
    (end,) = ours.to("/ended")
    if make is relay:
        assert (end.params["SessionStatus"], end.params["ErrorCode"]) == ("failed", "64102")
    else:
        (report,) = ours.to("/stream")
        assert (report.params["StreamEvent"], report.params["StreamError"]) == ("stream-error", "answered 503")


def test_the_action_of_a_relay_is_called_if_the_person_hangs_up(
    place: Caller, ours: OurServer, sim: Simulator
) -> None:
    sim.phone(ANN).will(manual())
    with ScriptedAgent(lambda with_: with_.hear_until_closed()) as agent:
        call = connect(place, relay(agent.url, welcomeGreeting="Welcome.")).answer().hears("Welcome.")
        call.hang_up().ended()
        (end,) = ours.waits_for("/ended")
        assert (end.params["SessionStatus"], end.params["CallStatus"]) == ("completed", "completed")


def test_a_mistake_of_the_agent_is_a_complaint(sim: Simulator, place: Caller) -> None:
    def talk(with_: Talk) -> None:
        with_.hear("start")
        with_.send(event="media", streamSid="wrong", media={"payload": AUDIO})

    sim.phone(ANN).will(answer(0.2))
    with ScriptedAgent(talk) as agent:
        connect(place, f'<Connect><Stream url="{agent.url}"/></Connect>').ended()
    with pytest.raises(AssertionError, match="wrong"):
        sim.assert_no_complaints()
    sim.forgive()


@pytest.mark.parametrize(
    "document",
    [
        "<Connect/>",
        '<Connect><Stream url="https://127.0.0.1/"/></Connect>',
        '<Connect><Stream url="ws://bots.example.com/"/></Connect>',
        '<Connect><Stream url="wss://bots.example.com/?a=1"/></Connect>',
        '<Connect><Stream url="wss://a.example.com/"/><Stream url="wss://a.example.com/"/></Connect>',
        '<Connect><Stream url="wss://a.example.com/"><Parameter name="a" value="%s"/></Stream></Connect>'
        % (500 * "x"),
    ],
)
def test_documents_that_the_provider_refuses(document: str) -> None:
    with pytest.raises(TwimlError):
        parse(f"<Response>{document}</Response>")


def test_mu_law() -> None:
    assert [encode_mu_law(sample) for sample in (0, 100, -100, 1000, 32_767, -32_768)] == [
        0xFF, 0xF2, 0x72, 0xCE, 0x80, 0x00
    ]  # fmt: skip
    assert len(tone(0)) == len(tone(1)) == 160
