r"""An example of a voice agent for Dispatch. It speaks both of Twilio's protocols: text at /text, audio at /audio.

    pip install websockets twilio
    PORT=8080 PUBLIC_URL=wss://bots.example.com TWILIO_AUTH_TOKEN=… \
    DISPATCH_URL=https://dispatch.example.com DISPATCH_KEY=… python voice_agent.py

It asks each lead to press 1 for a quote, reports the outcome to Dispatch, and says goodbye. The API key needs the
scope leads:write. Replace `answer` with your own logic.
"""

import asyncio
import base64
import contextlib
import json
import math
import os
import urllib.request
from http import HTTPStatus

from twilio.request_validator import RequestValidator
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

PUBLIC_URL = os.environ["PUBLIC_URL"]
DISPATCH_URL, API_KEY = os.environ["DISPATCH_URL"], os.environ["DISPATCH_KEY"]
validator = RequestValidator(os.environ["TWILIO_AUTH_TOKEN"])


def refuse_strangers(connection, request):
    """Refuse a handshake that Twilio did not sign."""
    if not validator.validate(PUBLIC_URL + request.path, {}, request.headers.get("X-Twilio-Signature", "")):
        return connection.respond(HTTPStatus.FORBIDDEN, "Forbidden\n")
    return None


def answer(key):
    """Return (words, outcome) for a pressed key. An outcome ends the conversation."""
    if key == "1":
        return "Thank you. We will send you a quote.", {"disposition": "wants_quote"}
    if key == "2":
        return "Thank you. Goodbye.", {"disposition": "no_interest"}
    return "Please press 1 for a quote, or 2 if you don't want one.", None


async def report(lead_id, outcome):
    """Report the outcome of a conversation to Dispatch. A preview has no lead."""
    if lead_id:
        url = f"{DISPATCH_URL}/api/v1/leads/{lead_id}/outcome/"
        headers = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(outcome).encode(), headers)
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=10).close())


async def talk_by_text(socket: ServerConnection):
    """Speak ConversationRelay: Twilio transcribes what the person says, and speaks our words."""
    lead_id = ""

    async def say(words):
        await socket.send(json.dumps({"type": "text", "token": words, "last": True}))

    async for frame in socket:
        message = json.loads(frame)
        if message["type"] == "setup":
            given = message["customParameters"]
            lead_id = given.get("lead_id", "")
            await say(f"Hello {given.get('name', '')}. {answer('')[0]}")
        elif message["type"] in ("dtmf", "prompt"):
            said = message.get("digit") or ("1" if "quote" in message["voicePrompt"].lower() else "")
            words, outcome = answer(said)
            await say(words)
            if outcome:
                await report(lead_id, outcome)
                handoff = json.dumps({"notes": "Talked to the example agent."})
                await socket.send(json.dumps({"type": "end", "handoffData": handoff}))


async def talk_by_audio(socket: ServerConnection):
    """Speak media streams: mu-law audio of 8000 samples a second. This example beeps instead of speaking."""
    lead_id = stream = ""

    async def play(seconds, mark):
        """Send audio, and a mark that comes back when the person has heard it."""
        audio = base64.b64encode(beep(seconds)).decode()
        await socket.send(json.dumps({"event": "media", "streamSid": stream, "media": {"payload": audio}}))
        await socket.send(json.dumps({"event": "mark", "streamSid": stream, "mark": {"name": mark}}))

    async for frame in socket:
        message = json.loads(frame)
        if message["event"] == "start":
            stream, lead_id = message["streamSid"], message["start"]["customParameters"].get("lead_id", "")
            await play(1.0, "question")
        elif message["event"] == "dtmf":
            await socket.send(json.dumps({"event": "clear", "streamSid": stream}))
            _, outcome = answer(message["dtmf"]["digit"])
            if outcome:
                await report(lead_id, outcome)
            await play(0.5, "goodbye" if outcome else "question")
        elif message["event"] == "mark" and message["mark"]["name"] == "goodbye":
            return  # closing the WebSocket gives the call back to Dispatch


def beep(seconds):
    """Return a tone of 440 Hz as mu-law bytes."""

    def encode(sample):
        size = min(abs(sample), 32_635) + 0x84
        exponent = size.bit_length() - 8
        return ~((0x80 if sample < 0 else 0) | (exponent << 4) | ((size >> (exponent + 3)) & 0x0F)) & 0xFF

    return bytes(encode(round(8000 * math.sin(math.tau * 440 * n / 8000))) for n in range(round(8000 * seconds)))


async def talk(socket: ServerConnection):
    """Talk to one person until either hangs up."""
    with contextlib.suppress(ConnectionClosed):
        await (talk_by_audio if socket.request.path == "/audio" else talk_by_text)(socket)


async def main():
    """Serve until the process is stopped."""
    async with serve(talk, "", int(os.environ.get("PORT", "8080")), process_request=refuse_strangers) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
