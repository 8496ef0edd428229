"""Check the content of a campaign's calls: its script or TwiML URL, and the responses to pressed keys."""

from __future__ import annotations

import re
from typing import Any

NO_WORDS = "Write a script or enter a TwiML URL, so that the people called hear something."
MAX_ANSWER = 1000  # maximum length of a response to a key
# Maximum size of a script in bytes. Spoken three times, it stays below the 64 kB that providers take at once.
MAX_SCRIPT_BYTES = 16_000
TOO_LONG = f"The script is too long: at most {MAX_SCRIPT_BYTES} bytes, about 20 minutes of speech."
_KEY = re.compile("[0-9]")


def has_words(script: str, answer_url: str) -> bool:
    """Return whether a campaign with this script and TwiML URL says something in its calls."""
    return bool(script.strip() or answer_url.strip())


def script_problem(script: str, answer_url: str, *, is_paused: bool) -> str:
    """Return what is wrong with a campaign's script, or "". A paused campaign may have none."""
    if len(script.encode(errors="replace")) > MAX_SCRIPT_BYTES:
        return TOO_LONG
    return "" if is_paused or has_words(script, answer_url) else NO_WORDS


def key_problem(keys: Any) -> str:
    """Return the error in a campaign's keys, or "" if they are {digit: text}."""
    if not isinstance(keys, dict):
        return 'Enter an object of digits and text, such as {"1": "Thank you."}.'
    for key, response in keys.items():
        if not _KEY.fullmatch(key):
            return "A key must be one digit from 0 to 9."
        if not isinstance(response, str) or len(response) > MAX_ANSWER:
            return f"The response to key {key} must be text of at most {MAX_ANSWER} characters."
    return ""
