"""Remove accents, to compare what people write."""

from __future__ import annotations

import unicodedata


def without_accents(text: str) -> str:
    """Return the text without accents and other marks on letters: "SÍ" becomes "SI"."""
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
