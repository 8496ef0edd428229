"""Write counts in English, for what management commands print. Pages are translated and use `ngettext`."""

from __future__ import annotations


def count_noun(count: int, noun: str, plural: str = "") -> str:
    """Return "1 event" or "2 events". A plural that does not end with an added "s" must be given."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
