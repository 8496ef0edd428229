"""Translate sentences that are stored in English with events, notifications and results.

A row is read by people of several languages, so it has no language. It stores the English sentence, and
pages translate it: `mark_stored` registers the sentence's form, and `translate_stored` recognizes it.

    GONE = mark_stored("{name} declined this job.")
    reason = GONE.format(name=technician.name)          # stored
    translate_stored("Ann declined this job.")          # "Ann rechazó este trabajo." on a Spanish page
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, cached_property

from dispatch.core import languages

# Longer texts were not made by us; recognizing them would take long.
MAX_LENGTH = 1000
# Places whose values are stored sentences as well, and places for numbers. Values of others stay as they are.
NESTED = frozenset(
    {
        "reason", "why", "news", "error", "reason_text", "news_text", "now", "also", "did", "effect", "then",
        "description", "message", "fault",
    }
)  # fmt: skip
# Places for names, which may hold a registered word instead, such as "the technician".
NAMES = frozenset({"actor", "technician", "customer", "who", "what"})
NUMBERS = frozenset({"id", "number", "count", "minutes", "seconds", "code", "status", "most"})
_PLACE = re.compile(r"\{(\w+)\}")
_forms: dict[str, Form] = {}
_readers: list[Callable[[str], str | None]] = []
_ordered: list[Form] = []  # the forms with places; empty: to be sorted


class Form:
    """The form of a stored sentence, with places such as {name}."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    @cached_property
    def head(self) -> str:
        """Return what stands before the first place."""
        return _PLACE.split(self.sentence, maxsplit=1)[0]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        parts = _PLACE.split(self.sentence)
        pattern = ""
        for at, part in enumerate(parts):
            value = r"[\d,.]+" if part in NUMBERS else r".+?"
            pattern += f"(?P<{part}>{value})" if at % 2 else re.escape(part)
        return re.compile(pattern, re.DOTALL)

    @cached_property
    def weight(self) -> int:
        """Return how many letters are fixed: the form with most of them is tried first."""
        return len(_PLACE.sub("", self.sentence))


def mark_stored(sentence: str) -> str:
    """Register the form of a sentence that is stored in English; return it."""
    if sentence not in _forms:
        _forms[sentence] = Form(sentence)
        _ordered.clear()
    return sentence


def register_reader(reader: Callable[[str], str | None]) -> None:
    """Register a function that translates texts of no form; it returns None for one that it does not know."""
    if reader not in _readers:
        _readers.append(reader)


def translate_stored(text: str) -> str:
    """Return a stored sentence in the active language. One of an unknown form stays in English."""
    if languages.is_english() or not text or len(text) > MAX_LENGTH:
        return text
    return _translate(text, depth=2)


def stored_name(row: object) -> str:
    """Return the name of a row in English, as events store it."""
    with languages.override(languages.DEFAULT):
        return str(row)


def read_values(sentence: str, text: str) -> dict[str, str] | None:
    """Return the values of a text that was made from this form, those that are sentences translated.

    Return None if it was made from another form.
    """
    match = _form_of(sentence).pattern.fullmatch(text) if len(text) <= MAX_LENGTH else None
    return _translate_values(match, depth=2) if match else None


@cache
def _form_of(sentence: str) -> Form:
    return Form(sentence)


def _translate(text: str, depth: int) -> str:
    if text in _forms:
        return languages.gettext(text)
    if not _ordered:
        with_places = (form for form in list(_forms.values()) if "{" in form.sentence)
        _ordered.extend(sorted(with_places, key=lambda form: -form.weight))
    for form in list(_ordered):
        if text.startswith(form.head) and (match := form.pattern.fullmatch(text)):
            return languages.gettext(form.sentence).format(**_translate_values(match, depth))
    return next((read for reader in _readers if (read := reader(text)) is not None), text)


def _translate_values(match: re.Match[str], depth: int) -> dict[str, str]:
    values = match.groupdict()
    for name in NESTED & values.keys() if depth else ():
        values[name] = _translate(values[name], depth - 1)
    for name in NAMES & values.keys():
        if values[name] in _forms:
            values[name] = languages.gettext(values[name])
    return values
