"""Check the content of a campaign's calls: its script or TwiML URL, and the responses to pressed keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from dispatch.core.languages import gettext, mark

NO_WORDS = mark(
    "Write a script or enter a TwiML URL, or add a recording or a voice agent that takes answered calls, so that "
    "the people called hear something."
)
NO_AGENT = mark("Add a voice agent to the campaign, or choose another action.")
MAX_ANSWER = 1000  # maximum length of a response to a key
# Maximum size of a script in bytes. Spoken three times, it stays below the 64 kB that providers take at once.
MAX_SCRIPT_BYTES = 16_000
TOO_LONG = mark("The script is too long: at most {count} bytes, about 20 minutes of speech.")
_KEY = re.compile("[0-9]")
disposition_pattern = r"^[a-z][a-z0-9_]{0,39}$"
# Data that a script may name without declaring it. The others are the campaign's `variables`.
VARIABLES = (
    "name", "first_name", "last_name", "company", "appointment", "date", "time", "address", "city", "amount",
    "reference",
)  # fmt: skip
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"\w{1,40}")
MAX_LEGS = 5  # people who ring at once for one lead


class Action(StrEnum):
    """What a key does after its words."""

    SAY = "say"
    PLAY = "play"
    CONNECT = "connect"
    AGENT = "agent"
    LATER = "later"
    TEXT = "text"
    OPT_OUT = "opt_out"


class Branch(Protocol):
    """The fields of a branch that `branch_problems` checks."""

    action: str
    say: str
    phones: str
    call_back_h: int | None
    text: str

    @property
    def has_recording(self) -> bool: ...

    @property
    def phone_list(self) -> list[str]: ...


def split_names(text: str) -> list[str]:
    """Return the names in a list that is separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def variables_problem(names: Iterable[str]) -> str:
    """Return what is wrong with the names of a campaign's own variables, or ""."""
    wrong = [name for name in names if not _NAME.fullmatch(name)]
    return (
        gettext("“{name}” is not a name. Use letters, digits and underscores only.").format(name=wrong[0])
        if wrong
        else ""
    )


def placeholder_problem(text: str, names: Iterable[str]) -> str:
    """Return what is wrong with the placeholders of a text, or "". `names`: the campaign's own variables."""
    known = {*VARIABLES, *names}
    unknown = [name for name in _PLACEHOLDER.findall(text) if name not in known]
    if unknown:
        own = gettext("Known: {names}. Add other names under Variables.").format(names=", ".join(sorted(known)))
        return gettext("Unknown variable {variable}. {known}").format(variable=f"{{{unknown[0]}}}", known=own)
    if set(_PLACEHOLDER.sub("", text)) & {"{", "}"}:
        return gettext("A placeholder is a name in braces, such as {name}.")
    return ""


def removal_problem(removed: Iterable[str], texts: Iterable[str]) -> str:
    """Return what is wrong with no longer declaring these variables, or "". `texts`: what the campaign says."""
    used = {name for text in texts for name in _PLACEHOLDER.findall(text)}
    missing = sorted(used.intersection(removed).difference(VARIABLES))
    if not missing:
        return ""
    problem = gettext("The campaign's texts use {variable}. Keep it, or change those texts first.")
    return problem.format(variable=f"{{{missing[0]}}}")


def branch_problems(branch: Branch) -> dict[str, str]:
    """Return what is wrong with a branch, by field. Fields of other actions are ignored."""
    problems = {}
    if branch.action == Action.CONNECT and not 1 <= len(branch.phone_list) <= MAX_LEGS:
        problems["phones"] = gettext("Enter 1 to {count} phone numbers.").format(count=MAX_LEGS)
    if branch.action == Action.LATER and not branch.call_back_h:
        problems["call_back_h"] = gettext("Enter the hours until the next call.")
    if branch.action == Action.TEXT and not branch.text.strip():
        problems["text"] = gettext("Enter the text.")
    if branch.action == Action.PLAY and not branch.has_recording:
        problems["recording"] = gettext("Add a recording.")
    if branch.action == Action.SAY and not branch.say.strip():
        problems["say"] = gettext("Enter what is said.")
    return problems


def keys_problem(keys: Iterable[str], opt_out_key: str) -> str:
    """Return what is wrong with the keys of a campaign's branches, or ""."""
    keys = list(keys)
    if twice := next((key for key in keys if keys.count(key) > 1), ""):
        return gettext("Key {key} has more than one branch.").format(key=twice)
    return gettext("Key {key} is the opt-out key.").format(key=opt_out_key) if opt_out_key in keys else ""


def fill_in(text: str, data: Mapping[str, Any]) -> str:
    """Return a text with the lead's data in its placeholders. Missing data leaves nothing."""
    return _PLACEHOLDER.sub(lambda place: value_of(data, place[1]), text)


def value_of(data: Mapping[str, Any], name: str) -> str:
    """Return a value of the lead's data as text, or "" if it has none."""
    value = data.get(name, "")
    return str(value)[:200] if isinstance(value, str | int | float) else ""


def has_words(script: str, answer_url: str, has_other_opening: bool = False) -> bool:
    """Return whether a campaign says something in its calls.

    `has_other_opening`: whether a recording is played, or a voice agent takes the answered calls.
    """
    return has_other_opening or bool(script.strip() or answer_url.strip())


def script_problem(script: str, answer_url: str, *, is_paused: bool, has_other_opening: bool = False) -> str:
    """Return what is wrong with a campaign's script, or "". A paused campaign may have none."""
    if len(script.encode(errors="replace")) > MAX_SCRIPT_BYTES:
        return gettext(TOO_LONG).format(count=MAX_SCRIPT_BYTES)
    return "" if is_paused or has_words(script, answer_url, has_other_opening) else gettext(NO_WORDS)


def key_problem(keys: Any) -> str:
    """Return the error in a campaign's keys, or "" if they are {digit: text}."""
    if not isinstance(keys, dict):
        return gettext('Enter an object of digits and text, such as {"1": "Thank you."}.')
    for key, response in keys.items():
        if not _KEY.fullmatch(key):
            return gettext("A key must be one digit from 0 to 9.")
        if not isinstance(response, str) or len(response) > MAX_ANSWER:
            return gettext("The response to key {key} must be text of at most {count} characters.").format(
                key=key, count=MAX_ANSWER
            )
    return ""
