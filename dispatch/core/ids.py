"""Parse ids from untrusted text: URLs, forms, sockets and messages."""

from __future__ import annotations

from collections.abc import Iterable

MAX_DIGITS = 18  # digits: every such number fits a bigint column
ID_PATTERN = f"[0-9]{{1,{MAX_DIGITS}}}"  # the same, as a URL pattern


def read_id(text: object) -> int | None:
    """Parse `text` as an id: a nonnegative integer in ASCII digits. Return None if it is invalid or too long.

    `int` is not enough: it accepts some other digits ("١") and rejects others ("²").
    """
    if isinstance(text, str) and len(text) <= MAX_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    return None


def read_ids(texts: Iterable[object]) -> list[int]:
    """Return the valid ids among `texts`, in their order."""
    return [number for text in texts if (number := read_id(text)) is not None]
