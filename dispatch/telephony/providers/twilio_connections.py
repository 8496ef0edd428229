"""Write a connection to people as Twilio's <Dial>, and one to a voice agent as its <Connect>."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dispatch.telephony.handlers import AgentConnection, Connection
from dispatch.telephony.providers import twilio_speech
from dispatch.telephony.providers.base import AgentUrls, LegUrls
from dispatch.telephony.providers.twilio_codes import speakable_text


def render_dial(
    connection: Connection, from_phone: str, legs: Sequence[LegUrls], result_url: str, status_events: Sequence[str]
) -> tuple[bytes, str]:
    """Return the document and its content type. The caller keeps hearing the ringing until a person accepts."""
    from twilio.twiml.voice_response import VoiceResponse

    document = VoiceResponse()
    for sentence in twilio_speech.fit(connection.say, 1)[0]:
        twilio_speech.say(document, sentence, connection.speech)
    dial = document.dial(
        caller_id=from_phone,
        timeout=connection.ring_s,
        action=result_url,
        method="POST",
        answer_on_bridge=True,
        time_limit=connection.limit_s,
    )
    for call, urls in zip(connection.legs, legs, strict=True):
        dial.number(
            str(call.to_phone),
            url=urls.voice_url,
            method="POST",
            status_callback=urls.status_url,
            status_callback_method="POST",
            status_callback_event=" ".join(status_events),
        )
    return document.to_xml().encode(), "text/xml; charset=utf-8"


def render_agent(agent: AgentConnection, name: str, urls: AgentUrls) -> tuple[bytes, str]:
    """Return the document and its content type. Without its end, nothing follows the agent."""
    from twilio.twiml.voice_response import Connect, VoiceResponse

    document = VoiceResponse()
    for sentence in twilio_speech.fit(agent.say, 1)[0]:
        twilio_speech.say(document, sentence, agent.speech)
    connect = Connect(action=urls.end_url, method="POST")
    if agent.is_relay:
        noun = connect.conversation_relay(
            url=agent.url,
            welcome_greeting=agent.greeting or None,
            language=agent.speech.voice.locale if agent.speech else None,
            dtmf_detection=True,
        )
    else:
        noun = connect.stream(
            url=agent.url, name=name, status_callback=urls.stream_url, status_callback_method="POST"
        )
    for parameter, value in agent.parameters:
        noun.parameter(name=parameter, value=speakable_text(value))
    document.append(connect)
    return document.to_xml().encode(), "text/xml; charset=utf-8"


def is_connected(kind: str, payload: Mapping[str, str]) -> bool:
    """Return whether a Dial had a person who accepted, a session did not fail, or a stream has started."""
    if kind == "connected":
        return payload.get("DialCallStatus", "") in ("completed", "answered")
    if kind == "agent":
        return payload.get("SessionStatus", "") in ("ended", "completed")
    return kind == "stream" and payload.get("StreamEvent", "") == "stream-started"
