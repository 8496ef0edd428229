"""Keep spoken prompts within Twilio's limits: long sentences are split, and a document is repeated less often."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

# A <Say> takes 4096 bytes (3000 with Polly voices), and 4500 characters URL-encoded. A document takes 64 kB.
MAX_SAY_BYTES, MAX_SAY_ENCODED, MAX_DOCUMENT_BYTES = 3000, 4500, 60_000
# Bytes of a Say's tags, and of a Gather's tags with its URL.
_SAY_TAGS, _GATHER_TAGS = 16, 1000
_SENTENCE_ENDS = ".!?;:\u3002\uff01\uff1f"


def split_sentence(text: str) -> list[str]:
    """Split a text into parts that a <Say> takes: after a sentence, else between words, else anywhere."""
    parts = []
    while text:
        size = _fitting(text)
        if size < len(text):
            size = _last_break(text[:size]) or size
        parts.append(text[:size].strip())
        text = text[size:].strip()
    return [part for part in parts if part]


def _fitting(text: str) -> int:
    """Return the number of leading characters within both limits."""
    if len(text) * 12 <= MAX_SAY_ENCODED:  # at most four bytes per character, and three characters per byte
        return len(text)
    size = encoded = 0
    for position, char in enumerate(text):
        size += len(char.encode())
        encoded += len(quote_plus(char))
        if size > MAX_SAY_BYTES or encoded > MAX_SAY_ENCODED:
            return position
    return len(text)


def _last_break(text: str) -> int:
    """Return the length of the text up to its last sentence end, else its last space, in its second half."""
    ends = [position + 1 for position, char in enumerate(text) if char in _SENTENCE_ENDS]
    spaces = [position for position, char in enumerate(text) if char.isspace()]
    for positions in (ends, spaces):
        if positions and positions[-1] > len(text) // 2:
            return positions[-1]
    return 0


def fit(sentences: Sequence[str], times: int) -> tuple[list[str], int]:
    """Return the split sentences and how often the document can repeat them.

    Sentences that exceed the limit even if spoken once are dropped from the end.
    """
    parts = [part for sentence in sentences for part in split_sentence(sentence)]
    sizes = [len(escape(part).encode()) + _SAY_TAGS for part in parts]
    while len(parts) > 1 and sum(sizes) + _GATHER_TAGS > MAX_DOCUMENT_BYTES:
        parts.pop()
        sizes.pop()
    return parts, max(1, min(times, MAX_DOCUMENT_BYTES // (sum(sizes) + _GATHER_TAGS)))
