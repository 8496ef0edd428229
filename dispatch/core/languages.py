"""The languages of calls and texts, and the functions that mark and translate their sentences.

Django's translation machinery does the work: the catalogs are `dispatch/locale/<language>/LC_MESSAGES/django.po`.
Modules of rules import these functions from here, because they do not import Django.
"""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import get_language, gettext, ngettext, override
from django.utils.translation import gettext_noop as mark

__all__ = [
    "CHOICES",
    "CODES",
    "DEFAULT",
    "OWN_NAMES",
    "SPANISH",
    "active",
    "clock_time",
    "gettext",
    "is_english",
    "mark",
    "ngettext",
    "override",
    "translated",
]

DEFAULT, SPANISH = "en", "es"
CHOICES = ((DEFAULT, "English"), (SPANISH, "Spanish"))
# As people who speak them call them.
OWN_NAMES = ((DEFAULT, "English"), (SPANISH, "Español"))
CODES = frozenset(code for code, _ in CHOICES)


def active() -> str:
    """Return the code of the active language, such as `es`."""
    return (get_language() or DEFAULT)[:2]


def translated(sentences: tuple[str, ...]) -> tuple[str, ...]:
    """Translate sentences that are constants, marked with `mark`, into the active language."""
    return tuple(gettext(sentence) for sentence in sentences)


def is_english() -> bool:
    """Return whether the active language is English."""
    return (get_language() or DEFAULT).startswith(DEFAULT)


def clock_time(local: datetime | None) -> str:
    """Return a local time of day as people say it: "3:20 PM", in Spanish "3:20 p.m."; empty for None."""
    if local is None:
        return ""
    is_spanish = (get_language() or DEFAULT).startswith(SPANISH)
    half = ("a.m.", "p.m.") if is_spanish else ("AM", "PM")
    return f"{local.hour % 12 or 12}:{local.minute:02d} {half[local.hour >= 12]}"
