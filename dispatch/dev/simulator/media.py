"""Fetch the file of a Play, and check that it is audio."""

from __future__ import annotations

import io
import wave
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from .calls import Call
from .twiml import TwimlError, Verb
from .webhooks import Reply

if TYPE_CHECKING:
    from .voice import Voice

AUDIO_TYPES = {
    "audio/mpeg", "audio/wav", "audio/wave", "audio/x-wav", "audio/aiff", "audio/x-aifc", "audio/x-aiff",
    "audio/x-gsm", "audio/gsm", "audio/ulaw",
}  # fmt: skip
NOT_RETRIEVED, INVALID_CONTENT = 11200, 12300
# The assumed rate of a file whose header is not read: an MP3 of 64 kbit/s, or mu-law of 8 kHz.
BYTES_PER_SECOND = 8000


async def fetch_audio(voice: Voice, verb: Verb, base: str) -> float:
    """Fetch the file of a Play, and return its length in seconds. `plays` of the call records it.

    Raises TwimlError: 11200 not retrieved, 12300 not audio.
    """
    url = urljoin(base, verb.text)
    call = voice.call
    reply = await _request_file(voice, url)
    played: dict[str, Any] = {
        "at": call.age(), "url": url, "status": reply.status, "content_type": reply.content_type,
        "bytes": len(reply.body), "seconds": 0.0, "complete": False,
    }  # fmt: skip
    call.plays.append(played)
    if not reply.ok:
        raise TwimlError(NOT_RETRIEVED, f"Play {url}: {reply.error or f'answered {reply.status}'}")
    if reply.content_type not in AUDIO_TYPES:
        raise TwimlError(INVALID_CONTENT, f"Play {url}: content type {reply.content_type!r} is not audio")
    played["seconds"] = _measure_seconds(reply, url)
    return float(played["seconds"])


def record_completion(call: Call) -> None:
    """Record that the last file was played to its end."""
    call.plays[-1]["complete"] = True


async def _request_file(voice: Voice, url: str) -> Reply:
    """Request the file. Meanwhile the person may hang up, or press keys, which are ignored."""
    call, world = voice.call, voice.world
    token = world.accounts[call.account_sid].config.auth_token
    task = world.spawn(world.webhooks.fetch_file(token, url, call.record))
    task.add_done_callback(lambda _: call.signal("fetched"))
    while not task.done():
        voice.handle(await call.wait(None))
    return task.result()


def _measure_seconds(reply: Reply, url: str) -> float:
    """Return the length of the file, at least 0.1 s. Raises TwimlError if its content is not of its type."""
    body = reply.body
    is_wav = body[:4] == b"RIFF" and body[8:12] == b"WAVE"
    is_mp3 = body[:3] == b"ID3" or (len(body) > 1 and body[0] == 0xFF and body[1] & 0xE0 == 0xE0)
    if ("wav" in reply.content_type and not is_wav) or (reply.content_type == "audio/mpeg" and not is_mp3):
        raise TwimlError(INVALID_CONTENT, f"Play {url}: the content is not {reply.content_type}")
    if is_wav:
        try:
            with wave.open(io.BytesIO(body)) as file:
                return max(0.1, file.getnframes() / file.getframerate())
        except (wave.Error, EOFError):  # compressed, such as mu-law
            pass
    return max(0.1, len(body) / BYTES_PER_SECOND)
