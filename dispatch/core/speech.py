"""Sentences that are spoken: plain text with marked fragments, so that a voice can read them properly."""

from __future__ import annotations

from string import Formatter
from typing import NamedTuple, Self

# Kinds of fragments: a number to write down, and the street of an address in its own language.
NUMBER, STREET = "number", "street"


class Fragment(NamedTuple):
    """A part of a sentence. `kind`: empty for plain text. `language` is that of a street's name."""

    text: str
    kind: str = ""
    language: str = ""


class Sentence(str):
    """A sentence as plain text, with its fragments.

    Text operations return plain strings, which every voice can read as well. A voice that takes markup
    reads the fragments.
    """

    fragments: tuple[Fragment, ...]

    @classmethod
    def of(cls, fragments: tuple[Fragment, ...]) -> Self:
        """Return the sentence that consists of these fragments."""
        sentence = cls("".join(fragment.text for fragment in fragments))
        sentence.fragments = fragments
        return sentence


def fragments_of(text: str) -> tuple[Fragment, ...]:
    """Return the fragments of a sentence. Other texts are one plain fragment."""
    return text.fragments if isinstance(text, Sentence) else (Fragment(text),)


def fill(template: str, **values: str) -> Sentence:
    """Fill the places `{name}` of a translated template; values that are sentences keep their fragments."""
    fragments: list[Fragment] = []
    for literal, name, _, _ in Formatter().parse(template):
        if literal:
            fragments.append(Fragment(literal))
        if name:
            fragments += fragments_of(values[name])
    return Sentence.of(tuple(fragments))
