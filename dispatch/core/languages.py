"""The languages of calls and texts, and the functions that mark and translate their sentences.

Django's translation machinery does the work: the catalogs are `dispatch/locale/<language>/LC_MESSAGES/django.po`.
Modules of rules import these functions from here, because they do not import Django.
"""

from __future__ import annotations

from datetime import date, datetime

from django.utils.translation import get_language, gettext, ngettext, override
from django.utils.translation import gettext_noop as mark
from django.utils.translation.trans_real import parse_accept_lang_header

__all__ = [
    "CHOICES",
    "CODES",
    "DEFAULT",
    "OWN_NAMES",
    "SPANISH",
    "accepted_language",
    "active",
    "clock_time",
    "date_words",
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


def accepted_language(header: str) -> str:
    """Return the first language of an Accept-Language header that Dispatch has, or "". A region does not count."""
    for code, _ in parse_accept_lang_header(header.lower()[:500]):
        if code[:2] in CODES and code[2:3] in ("", "-"):
            return code[:2]
    return ""


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


# The short names of days and months, as dates on pages use them.
DAYS = (mark("Mon"), mark("Tue"), mark("Wed"), mark("Thu"), mark("Fri"), mark("Sat"), mark("Sun"))
MONTHS = (
    mark("Jan"), mark("Feb"), mark("Mar"), mark("Apr"), mark("May"), mark("Jun"),
    mark("Jul"), mark("Aug"), mark("Sep"), mark("Oct"), mark("Nov"), mark("Dec"),
)  # fmt: skip


def date_words(day: date, *, year: bool = False, weekday: bool = True) -> str:
    """Return a date as pages show it: "Mon, Dec 7, 2026"; in Spanish "lun 7 dic 2026"."""
    names = gettext(DAYS[day.weekday()]) if weekday else "", gettext(MONTHS[day.month - 1])
    if is_english():
        parts = [names[0], f"{names[1]} {day.day}", str(day.year) if year else ""]
        return ", ".join(part for part in parts if part)
    return " ".join(
        part for part in (names[0].lower(), str(day.day), names[1], str(day.year) if year else "") if part
    )
