"""Parse phone numbers as people, files and API clients write them."""

from __future__ import annotations

import functools

import phonenumbers
from phonenumber_field.phonenumber import PhoneNumber, to_python

from dispatch.core.languages import gettext as _

MAX_LENGTH = 32  # characters, with spaces and punctuation
# Parsing a number takes longer than reading the row that has it. Each needs about 1 kB.
_REMEMBERED = 4096


class InvalidPhone(ValueError):
    """The text is not a phone number. The message says how to fix it."""


class KnownPhone(PhoneNumber):
    """A number that remembers what was computed from it. Rows may share it: do not change it."""

    def is_valid(self) -> bool:
        """Return whether the number is valid."""
        known: bool | None = self.__dict__.get("_known_valid")
        if known is None:
            known = self.__dict__["_known_valid"] = bool(super().is_valid())
        return known

    def format_as(self, form: int) -> str:
        """Format the number."""
        known: dict[int, str] = self.__dict__.setdefault("_known_formats", {})
        if form not in known:
            known[form] = str(super().format_as(form))
        return known[form]


def read_phone(text: str, region: str | None = None) -> PhoneNumber:
    """Return the number, valid or not, as the field of a row does. Without a +, it is a number of `region`."""
    try:
        return KnownPhone.from_string(text, region)
    except phonenumbers.NumberParseException:
        return KnownPhone(raw_input=text)


@functools.lru_cache(maxsize=_REMEMBERED)
def read_stored_phone(text: str) -> PhoneNumber:
    """Return the number of a row."""
    return read_phone(text)


def parse_possible_phone(text: str, region: str) -> PhoneNumber:
    """Parse a number of plausible length. Without a +, it is a number of `region`.

    Raises InvalidPhone. This is enough for looking up a number, which need not be assigned.
    """
    cleaned = text.strip()
    try:
        if len(cleaned) > MAX_LENGTH:
            raise InvalidPhone(_explain(cleaned))
        number = PhoneNumber.from_string(cleaned, region=region or None)
    except phonenumbers.NumberParseException:
        raise InvalidPhone(_explain(cleaned)) from None
    if not phonenumbers.is_possible_number(number):
        raise InvalidPhone(_explain(cleaned))
    return number


def parse_phone(text: str, region: str) -> PhoneNumber:
    """Parse a number, as `parse_possible_phone`, and require that it is valid. Raises InvalidPhone."""
    number = parse_possible_phone(text, region)
    if not number.is_valid():
        raise InvalidPhone(_explain(text.strip()))
    return number


def format_national(phone: object) -> str:
    """Format a valid number as people of its country write it; return a short code or a name as it is."""
    number = to_python(str(phone))
    return str(number.as_national) if isinstance(number, PhoneNumber) and number.is_valid() else str(phone)


def _explain(text: str) -> str:
    shown = text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}…"
    return _("“{text}” is not a valid phone number. Write it as +16025550123.").format(text=shown)
