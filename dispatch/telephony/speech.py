"""Choose the language and voice of what a person hears and reads.

    with speaking(speech_for(organization, technician)):
        return VoicePrompt(…)   # sentences are translated, and the prompt carries the voice

The most specific choice counts: a technician's or campaign's, else the organization's. A voice that doesn't speak
the language is passed over, because an organization may change its language later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from accounts.models import Organization
from dispatch.core import languages
from dispatch.core.voices import Voice, choose_voice


class Speaker(Protocol):
    """A row that may have a language and a voice."""

    language: str
    voice: str


@dataclass(frozen=True)
class Speech:
    """The language of the texts and prompts for a person, and the voice of the prompts."""

    language: str
    voice: Voice


_current: ContextVar[Speech | None] = ContextVar("speech", default=None)


def language_for(organization: Organization, own: Speaker | None = None) -> str:
    """Return the language of a technician or campaign; of the organization's customers without `own`."""
    return (own.language if own is not None else "") or organization.language


def speech_for(organization: Organization, own: Speaker | None = None, *, language: str = "") -> Speech:
    """Return how to speak to a technician, or in a campaign. `language`: in this one, whatever was chosen."""
    language = language or language_for(organization, own)
    return Speech(language, choose_voice(language, own.voice if own is not None else "", organization.voice))


def current_speech() -> Speech | None:
    """Return the speech of the surrounding `speaking`, or None outside."""
    return _current.get()


@contextmanager
def speaking(speech: Speech) -> Iterator[Speech]:
    """Translate into the speech's language, and give its voice to the prompts that are built meanwhile.

    Both hold for this thread or task only. Do not await inside.
    """
    token = _current.set(speech)
    try:
        with languages.override(speech.language):
            yield speech
    finally:
        _current.reset(token)
