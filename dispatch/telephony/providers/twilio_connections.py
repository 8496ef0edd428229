"""Write a connection to people as Twilio's <Dial>."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch.telephony.handlers import Connection
from dispatch.telephony.providers import twilio_speech
from dispatch.telephony.providers.base import LegUrls


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
