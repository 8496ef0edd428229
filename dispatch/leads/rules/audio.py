"""Recognize WAV and MP3 files by their content, and measure them. File names and declared types prove nothing."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from dispatch.core.languages import mark

MAX_BYTES = 5 * 2**20
MIN_S = 0.2
WAV, MP3 = "audio/wav", "audio/mpeg"
EXTENSIONS = {WAV: "wav", MP3: "mp3"}

NOT_AUDIO = mark("This is not a WAV or MP3 file.")
TOO_LARGE = mark("The file is too large: at most 5 MB.")
CUT_OFF = mark("The file is incomplete: it ends early. Export it again.")
TOO_SHORT = mark("The recording is too short to be heard.")
WRONG_FORMAT = mark("This kind of WAV file can't be played in a call. Export it as 16-bit PCM or mu-law, mono.")

# Formats of a WAV file: PCM, A-law, mu-law, and the one that names its format later.
_PCM, _A_LAW, _MU_LAW, _EXTENSIBLE = 1, 6, 7, 0xFFFE
_SAMPLE_BITS = {_PCM: (8, 16, 24), _A_LAW: (8,), _MU_LAW: (8,)}
_MIN_RATE, _MAX_RATE = 8000, 48_000
# Layer III, by version of MPEG (3: MPEG-1; 2: MPEG-2; 0: MPEG-2.5): kilobits per second, and hertz.
_BITRATES_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_BITRATES_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8000)}
_LAYER_3 = 1
_TAG_V1_BYTES, _MAX_PADDING = 128, 4096


class UnusableAudio(ValueError):
    """The content can't be played in a call. The message says why."""


@dataclass(frozen=True)
class Audio:
    """What a file holds: its media type, and its length in seconds."""

    content_type: str
    duration_s: float


def read_audio(content: bytes) -> Audio:
    """Return what a file holds. Raises UnusableAudio."""
    if len(content) > MAX_BYTES:
        raise UnusableAudio(TOO_LARGE)
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        audio = Audio(WAV, _wav_seconds(content))
    else:
        audio = Audio(MP3, _mp3_seconds(content))
    if audio.duration_s < MIN_S:
        raise UnusableAudio(TOO_SHORT)
    return audio


def _wav_seconds(content: bytes) -> float:
    position, bytes_per_second = 12, 0
    while position + 8 <= len(content):
        name, size = content[position : position + 4], struct.unpack_from("<I", content, position + 4)[0]
        position += 8
        if position + size > len(content):
            raise UnusableAudio(CUT_OFF)
        if name == b"fmt ":
            bytes_per_second = _wav_rate(content[position : position + size])
        elif name == b"data":
            if not bytes_per_second:
                raise UnusableAudio(NOT_AUDIO)
            return float(size / bytes_per_second)
        position += size + size % 2  # chunks begin at even positions
    raise UnusableAudio(CUT_OFF)


def _wav_rate(chunk: bytes) -> int:
    """Return the bytes per second that the format chunk describes."""
    if len(chunk) < 16:
        raise UnusableAudio(NOT_AUDIO)
    kind, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunk)
    if kind == _EXTENSIBLE and len(chunk) >= 26:
        kind = struct.unpack_from("<H", chunk, 24)[0]
    fits = block == channels * bits // 8 and channels in (1, 2) and _MIN_RATE <= rate <= _MAX_RATE
    if bits not in _SAMPLE_BITS.get(kind, ()) or not fits:
        raise UnusableAudio(WRONG_FORMAT)
    return int(rate * block)


def _mp3_seconds(content: bytes) -> float:
    """Follow the frames from the first to the last, each of which says how long it is."""
    position = _after_tags(content)
    end = len(content) - (_TAG_V1_BYTES if content[-_TAG_V1_BYTES:][:3] == b"TAG" else 0)
    start, seconds, frames = position, 0.0, 0
    while position < end:
        frame = _frame_at(content, position)
        if frame is None:
            if not frames or not _is_trailer(content[position:end]):
                raise UnusableAudio(NOT_AUDIO if frames < 3 else CUT_OFF)
            break
        size, duration_s = frame
        if position + size > end:
            raise UnusableAudio(CUT_OFF if frames else NOT_AUDIO)
        if not frames:
            _check_declared_size(content[position : position + size], end - start)
        position += size
        seconds += duration_s
        frames += 1
    if not frames:
        raise UnusableAudio(NOT_AUDIO)
    return seconds


def _after_tags(content: bytes) -> int:
    """Return where the frames begin: after ID3v2 tags and zeros."""
    position = 0
    while content[position : position + 3] == b"ID3" and position + 10 <= len(content):
        sizes = content[position + 6 : position + 10]
        position += 10 + sum((size & 0x7F) << shift for size, shift in zip(sizes, (21, 14, 7, 0), strict=True))
    padding = content[position : position + _MAX_PADDING]
    return position + len(padding) - len(padding.lstrip(b"\0"))


def _frame_at(content: bytes, position: int) -> tuple[int, float] | None:
    """Return (bytes, seconds) of the frame that begins here, or None if none does."""
    if position + 4 > len(content):
        return None
    word = struct.unpack_from(">I", content, position)[0]
    version, layer = word >> 19 & 3, word >> 17 & 3
    bitrate, rate = word >> 12 & 15, word >> 10 & 3
    if word >> 21 != 0x7FF or layer != _LAYER_3 or version == 1 or bitrate in (0, 15) or rate == 3:
        return None
    hertz = _RATES[version][rate]
    kilobits = (_BITRATES_1 if version == 3 else _BITRATES_2)[bitrate]
    samples = 1152 if version == 3 else 576
    return samples // 8 * kilobits * 1000 // hertz + (word >> 9 & 1), samples / hertz


def _check_declared_size(first: bytes, size: int) -> None:
    """Compare the audio's size with the one that an encoder may have written into the first frame.

    Only a file that lacks a part is refused: others count a byte differently.
    """
    for name in (b"Xing", b"Info"):
        at = first.find(name, 4, 44)
        if at >= 0 and at + 16 <= len(first):
            flags = struct.unpack_from(">I", first, at + 4)[0]
            field = at + 8 + (4 if flags & 1 else 0)
            declared = struct.unpack_from(">I", first, field)[0] if flags & 2 and field + 4 <= len(first) else 0
            if declared > size + len(first):
                raise UnusableAudio(CUT_OFF)


def _is_trailer(rest: bytes) -> bool:
    """Return whether only tags or zeros follow the last frame."""
    return not rest.strip(b"\0") or rest.startswith((b"APETAGEX", b"LYRICSBEGIN", b"TAG+", b"ID3"))
