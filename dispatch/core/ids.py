"""Ids as they come in: text of an address, a form, a socket or a message that others wrote."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 18  # digits: each such number fits a bigint column
ADDRESSED = f"[0-9]{{1,{LONGEST}}}"  # the same, as a pattern of addresses


def read_id(text: object) -> int | None:
    """The id, or any count from 0 on, that `text` writes in ASCII digits; None when it is none, or too long to be
    one. Of other digits ("²", "١") `int` refuses some and takes others: neither is an id."""
    if isinstance(text, str) and len(text) <= LONGEST and text.isascii() and text.isdigit():
        return int(text)
    return None


def read_ids(texts: Iterable[object]) -> list[int]:
    """Those of `texts` that are ids, in their order."""
    return [found for text in texts if (found := read_id(text)) is not None]
