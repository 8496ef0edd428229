"""The translations of the browser scripts' texts, which each page carries as JSON.

Scripts mark their texts with `T.get` and `T.plural` of static/dispatch/texts.js. The catalogs are
`dispatch/locale/<language>/LC_MESSAGES/djangojs.po`, compiled beside it.
"""

from __future__ import annotations

import gettext
from functools import cache

from django.conf import settings

from dispatch.core import languages

DOMAIN = "djangojs"
# Between the singular and the plural in the key of a plural.
SEPARATOR = "\0"


@cache
def load_catalog(language: str) -> dict[str, str | list[str]]:
    """Return the translations by English text; a plural has two. Empty for English."""
    if language == languages.DEFAULT:
        return {}
    found = gettext.find(DOMAIN, str(settings.LOCALE_PATHS[0]), [language])
    if found is None:
        return {}
    with open(found, "rb") as file:
        return _parse_catalog(file.read())


def _parse_catalog(content: bytes) -> dict[str, str | list[str]]:
    """Read a .mo in little-endian order, as `tests.translations` writes it."""
    count, keys_at, texts_at = (_number(content, position) for position in (8, 12, 16))
    catalog: dict[str, str | list[str]] = {}
    for row in range(count):
        key, text = (_text(content, table + 8 * row) for table in (keys_at, texts_at))
        if key:
            catalog[key] = text.split(SEPARATOR) if SEPARATOR in key else text
    return catalog


def _number(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "little")


def _text(content: bytes, at: int) -> str:
    length, start = _number(content, at), _number(content, at + 4)
    return content[start : start + length].decode()
