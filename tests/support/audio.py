"""Make small WAV and MP3 files."""

from __future__ import annotations

import io
import struct
import wave

# A frame of MPEG-1 layer III at 128 kbit/s and 44.1 kHz: 417 bytes, 26 ms.
MP3_FRAME = b"\xff\xfb\x90\x00" + bytes(413)


def wav(seconds: float = 1.0, rate: int = 8000) -> bytes:
    """Return 16-bit PCM."""
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(int(seconds * rate) * 2))
    return target.getvalue()


def mu_law(seconds: float = 1.0) -> bytes:
    """Return mu-law of 8 kHz, as telephones use it, with a chunk of odd length before the data."""
    samples = bytes(int(seconds * 8000))
    chunks = [
        (b"fmt ", struct.pack("<HHIIHHH", 7, 1, 8000, 8000, 1, 8, 0)),
        (b"LIST", b"abc"),
        (b"data", samples),
    ]
    body = b"".join(
        name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2) for name, content in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


def mp3(frames: int = 40, *, tag: bool = True) -> bytes:
    """Return silent frames, with an ID3 tag before and after them."""
    before = b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10) if tag else b""
    after = b"TAG" + bytes(125) if tag else b""
    return before + MP3_FRAME * frames + after
