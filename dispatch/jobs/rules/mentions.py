"""Find the members that a note mentions: "@" and a name, in upper or lower case. Pure functions."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mention:
    """A mention in a text, from `start` to before `end`, and the members of this name."""

    start: int
    end: int
    users: tuple[int, ...]


def find_mentions(text: str, members: Iterable[tuple[int, str]]) -> list[Mention]:
    """Return the mentions of these members (id, name) in their order. The longest name wins.

    Two members of the same name are both mentioned. An "@" within a word, as in an email address, mentions nobody.
    """
    users: dict[str, list[int]] = defaultdict(list)
    lengths: set[int] = set()
    for user, name in members:
        if name := unicodedata.normalize("NFC", name.strip()):
            users[name.casefold()].append(user)
            lengths |= {len(name), len(name.upper()), len(name.lower())}  # "ß" is "SS" in upper case
    mentions: list[Mention] = []
    longest_first = sorted(lengths, reverse=True)
    start = text.find("@")
    while start >= 0:
        end = start + 1
        if start == 0 or not _is_in_word(text[start - 1]):
            for length in longest_first:
                after = start + 1 + length
                if after > len(text) or (after < len(text) and _is_in_word(text[after])):
                    continue
                if named := users.get(text[start + 1 : after].casefold()):
                    mentions.append(Mention(start, after, tuple(named)))
                    end = after
                    break
        start = text.find("@", end)
    return mentions


def _is_in_word(letter: str) -> bool:
    """Return whether the letter continues a word: a letter, a mark on one, a digit or an underscore."""
    return letter == "_" or unicodedata.category(letter)[0] in "LMN"
