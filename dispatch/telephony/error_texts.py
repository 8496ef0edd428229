"""The errors of calls and texts in the language of the reader.

The provider's messages are English, and its codes are many. In other languages, people read our sentence about the
code; the provider's message remains for a code without one.
"""

from __future__ import annotations

import re

from dispatch.core import languages
from dispatch.core.languages import gettext as _
from dispatch.core.stored_texts import mark_stored, register_reader, translate_stored
from dispatch.telephony.providers import twilio_codes

# What we store ourselves about calls and texts.
STORED = (
    mark_stored("a webhook was refused: its signature is wrong"),
    mark_stored("The voice agent could not be reached, or failed."),
    mark_stored("opted out of texts"),
    mark_stored("its deadline had passed"),
    mark_stored("no longer needed"),
    mark_stored("the request was interrupted"),
    mark_stored("the provider has no such text"),
    mark_stored("the provider never listed its texts, so it may have been sent"),
    mark_stored("the provider has no such call"),
    mark_stored("no report about a call arrived"),
    mark_stored("a response without an id"),
    mark_stored("the provider could not be reached"),
    mark_stored("The phone provider refused our account"),
    mark_stored("The phone provider refused our account: {reason}"),
    mark_stored("The phone provider does not respond"),
    mark_stored("The phone provider does not respond: {reason}"),
)
# A message with its code, as reasons are stored.
_WITH_CODE = re.compile(r"(?P<message>.+) \(error (?P<code>\d{5,6}|SIP \d{3})\)", re.DOTALL)


def describe_error(code: str, message: str) -> str:
    """Return what people read about a failed call or text with this code and the provider's message."""
    code = code.strip()
    if languages.is_english():
        return message or meaning_of(code)
    translated = translate_stored(message)
    if message and translated != message:
        return translated
    return translate_stored(meaning_of(code)) or message


def meaning_of(code: str) -> str:
    """Return our English sentence about a code; empty for an unknown one."""
    return twilio_codes.meaning_of(twilio_codes.parse_int(code) or 0)


def read_error(text: str) -> str | None:
    """Return a stored "message (error code)" in the active language; None for another text."""
    match = _WITH_CODE.fullmatch(text)
    if match is None or not meaning_of(match["code"]):
        return None
    problem = describe_error(match["code"], match["message"])
    return _("{problem} (error {code})").format(problem=problem, code=match["code"])


register_reader(read_error)
