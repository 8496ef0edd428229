"""Files are recognized as WAV or MP3 by their content, whatever their names say."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.leads.rules import audio
from tests.support.audio import MP3_FRAME, mp3, mu_law, wav


@pytest.mark.parametrize(
    ("content", "kind", "seconds"),
    [
        (wav(1.5), audio.WAV, 1.5),
        (wav(0.5, 44_100), audio.WAV, 0.5),
        (mu_law(2.0), audio.WAV, 2.0),
        (mp3(), audio.MP3, 40 * 1152 / 44_100),
        (mp3(tag=False), audio.MP3, 40 * 1152 / 44_100),
        (bytes(300) + mp3(tag=False), audio.MP3, 40 * 1152 / 44_100),
        (mp3(tag=False) + bytes(64), audio.MP3, 40 * 1152 / 44_100),
        (mp3(tag=False) + b"APETAGEX" + bytes(24), audio.MP3, 40 * 1152 / 44_100),
        ((b"\xff\xf3\x40\xc0" + bytes(100)) * 20, audio.MP3, 20 * 576 / 22_050),
    ],
)
def test_audio_is_recognized_and_measured(content: bytes, kind: str, seconds: float) -> None:
    found = audio.read_audio(content)
    assert found.content_type == kind
    assert found.duration_s == pytest.approx(seconds, abs=0.01)


def float_wav() -> bytes:
    content = bytearray(wav())
    struct.pack_into("<H", content, 20, 3)
    return bytes(content)


def lame(declared: int) -> bytes:
    """The first frame declares the size of the file, as LAME writes it."""
    first = bytearray(MP3_FRAME)
    struct.pack_into(">4sIII", first, 36, b"Xing", 3, 40, declared)
    return bytes(first) + MP3_FRAME * 39


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", audio.NOT_AUDIO),
        (b"This is a text, named welcome.mp3.", audio.NOT_AUDIO),
        (b"<html><body>404</body></html>" * 100, audio.NOT_AUDIO),
        (b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10), audio.NOT_AUDIO),
        (b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f", audio.NOT_AUDIO),
        (b"\xff\xfb\x90\x00" * 1000, audio.NOT_AUDIO),
        (bytes(5000), audio.NOT_AUDIO),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), audio.NOT_AUDIO),
        (b"RIFF\x04\0\0\0AVI LIST", audio.NOT_AUDIO),
        (wav()[:-1], audio.CUT_OFF),
        (wav()[:40], audio.CUT_OFF),
        (wav()[:12], audio.CUT_OFF),
        (float_wav(), audio.WRONG_FORMAT),
        (wav(1, 96_000), audio.WRONG_FORMAT),
        (mp3(tag=False)[:-1], audio.CUT_OFF),
        (MP3_FRAME * 20 + b"<script>alert(1)</script>", audio.CUT_OFF),
        (lame(100_000), audio.CUT_OFF),
        (wav(0.01), audio.TOO_SHORT),
        (mp3(2), audio.TOO_SHORT),
        (wav(0), audio.TOO_SHORT),
        (wav() + bytes(audio.MAX_BYTES), audio.TOO_LARGE),
    ],
)
def test_what_is_no_usable_audio_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(audio.UnusableAudio) as refused:
        audio.read_audio(content)
    assert str(refused.value) == problem


def test_a_file_that_declares_its_own_size_is_accepted() -> None:
    assert audio.read_audio(lame(40 * 417)).content_type == audio.MP3


@given(st.binary(max_size=2000), st.sampled_from([b"", wav()[:44], wav()[:20], b"ID3\x04\0\0\0\0\0\1", MP3_FRAME]))
def test_any_bytes_are_audio_or_refused(rest: bytes, start: bytes) -> None:
    with suppress(audio.UnusableAudio):
        audio.read_audio(start + rest)
