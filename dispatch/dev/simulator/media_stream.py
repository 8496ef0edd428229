"""Speak the provider's media streams: mu-law audio in both directions, marks and keys, as JSON messages.

To the agent: `connected`, `start`, a `media` frame of 20 ms for as long as the stream is open, `mark`, `dtmf`,
`stop`. From the agent: `media`, `mark`, `clear`. A person who says something is heard as a tone of that duration;
otherwise the frames are silence.
"""

from __future__ import annotations

import base64
import math
import uuid
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from .agents import AgentSession
from .formats import rfc2822
from .twiml import Verb

if TYPE_CHECKING:
    from .voice import Voice

RATE = 8000  # samples per second, one byte each
FRAME_S = 0.02
FRAMES_AT_ONCE = 5  # per timer, so that fast clocks need few timers
FRAME_BYTES = int(RATE * FRAME_S)
SILENCE = bytes([0xFF]) * FRAME_BYTES
MAX_PAYLOAD = 512 * 1024


class StreamSession(AgentSession):
    """One bidirectional stream."""

    def __init__(self, voice: Voice, noun: Verb, base: str) -> None:
        super().__init__(voice, noun)
        self.sid = f"MZ{uuid.uuid4().hex}"
        self._base = base
        self._sequence = self._chunk = 0
        self._until = 0.0  # when the audio of the agent will have been played
        self._tone_until = 0.0
        self._marks: list[str] = []
        self._generation = 0
        self._heard: dict[str, Any] | None = None

    def begin(self) -> None:
        self.send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        self._send("start", start={
            "accountSid": self.call.account_sid,
            "streamSid": self.sid,
            "callSid": self.call.sid,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": RATE, "channels": 1},
            "customParameters": self.parameters,
        })  # fmt: skip
        self._frames()

    def receive(self, message: dict[str, Any]) -> None:
        event = message.get("event")
        if message.get("streamSid") != self.sid:
            self.complain(f"{event} of stream {message.get('streamSid')!r} instead of {self.sid}")
        elif event == "media":
            self._play(message)
        elif event == "mark":
            name = str((message.get("mark") or {}).get("name", ""))
            self._marks.append(name)
            generation = self._generation
            self.call.later(self._left(), lambda: self._reached(name, generation))
        elif event == "clear":
            self._clear()
        else:
            self.complain(f"unknown event {event!r}")

    def pressed(self, key: str) -> None:
        self._send("dtmf", dtmf={"track": "inbound_track", "digit": key})

    def spoken(self, text: str) -> None:
        seconds = max(0.3, len(text) / self.world.timing.characters_per_second)
        self._tone_until = self.call.clock.now() + seconds

    def end(self) -> None:
        self._send("stop", stop={"accountSid": self.call.account_sid, "callSid": self.call.sid})

    async def report(self, event: str) -> None:
        """Send the status callback of a Stream."""
        given = self.noun.attributes
        if not given.get("statusCallback"):
            return
        params = {
            "AccountSid": self.call.account_sid,
            "CallSid": self.call.sid,
            "StreamSid": self.sid,
            "StreamName": given.get("name", ""),
            "StreamEvent": f"stream-{event}",
            "Timestamp": rfc2822(self.world.clock.wall()) or "",
        }
        if event == "error":
            params |= {"StreamError": self.error}
        url = urljoin(self._base, given["statusCallback"])
        await self.world.post(self.call, url, given.get("statusCallbackMethod", "POST"), params, "stream")

    def _send(self, event: str, **parts: Any) -> None:
        self._sequence += 1
        self.send({"event": event, "sequenceNumber": str(self._sequence), "streamSid": self.sid, **parts})

    def _frames(self) -> None:
        """Send the next frames, and plan those after them."""
        if not self.is_open:
            return
        speaks = self.call.clock.now() < self._tone_until
        for _ in range(FRAMES_AT_ONCE):
            self._chunk += 1
            payload = tone(self._chunk % 2) if speaks else SILENCE
            self._send("media", media={
                "track": "inbound",
                "chunk": str(self._chunk),
                "timestamp": str(round(self._chunk * FRAME_S * 1000)),
                "payload": base64.b64encode(payload).decode(),
            })  # fmt: skip
        self.call.later(FRAME_S * FRAMES_AT_ONCE, self._frames)

    def _play(self, message: dict[str, Any]) -> None:
        payload = (message.get("media") or {}).get("payload")
        try:
            audio = base64.b64decode(payload or "", validate=True)
        except (TypeError, ValueError):
            self.complain("media whose payload is not base64")
            return
        if len(audio) > MAX_PAYLOAD:
            self.complain(f"media of {len(audio)} bytes")
            return
        now = self.call.clock.now()
        if self._heard is None or self._until < now:
            self._heard = {"at": self.call.age(), "text": "", "voice": "", "language": "", "ssml": "",
                           "complete": False, "seconds": 0.0}  # fmt: skip
            self.call.said.append(self._heard)
            self.call.note("the agent's audio is played")
        self._until = max(self._until, now) + len(audio) / RATE
        self._heard["seconds"] = round(self._heard["seconds"] + len(audio) / RATE, 3)
        self._heard["text"] = f"[audio of {self._heard['seconds']:.2f} s]"

    def _left(self) -> float:
        return max(0.0, self._until - self.call.clock.now())

    def _reached(self, name: str, generation: int) -> None:
        """Return a mark to the agent, because the audio before it has been played."""
        if generation != self._generation or not self.is_open:
            return
        self._marks.remove(name)
        if self._heard is not None:
            self._heard["complete"] = True
        self.call.note(f"mark {name}")
        self._send("mark", mark={"name": name})
        if self.call.script is not None:
            self.call.script.heard(f"[mark {name}]")
            self.call.script.asked()

    def _clear(self) -> None:
        """Drop the audio that waits. Its marks return at once."""
        self._generation += 1
        self._until, self._heard = self.call.clock.now(), None
        self.call.note("the agent clears its audio")
        for name in self._marks:
            self._send("mark", mark={"name": name})
        self._marks.clear()


def encode_mu_law(sample: int) -> int:
    """Return a 16-bit sample as one byte of G.711 mu-law."""
    sign = 0x80 if sample < 0 else 0
    size = min(abs(sample), 32_635) + 0x84
    exponent = size.bit_length() - 8
    return ~(sign | (exponent << 4) | ((size >> (exponent + 3)) & 0x0F)) & 0xFF


@cache
def tone(half: int) -> bytes:
    """Return one of the two frames of a steady tone of 425 Hz."""
    start = half * FRAME_BYTES
    samples = (round(9000 * math.sin(2 * math.pi * 425 * n / RATE)) for n in range(start, start + FRAME_BYTES))
    return bytes(encode_mu_law(sample) for sample in samples)
