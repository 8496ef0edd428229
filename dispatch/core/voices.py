"""The voices in which calls can be spoken: a short list of Twilio's neural voices.

Names and languages are those of Twilio's list of text-to-speech voices
(twilio.com/docs/voice/twiml/say/text-speech) and of Amazon's
(docs.aws.amazon.com/polly/latest/dg/available-voices.html). A voice speaks one language; Twilio may refuse a voice
with the language of another.
"""

from __future__ import annotations

from typing import NamedTuple

from dispatch.core.languages import CHOICES, DEFAULT, SPANISH, gettext


class Voice(NamedTuple):
    """A voice by Twilio's name. `locale`: its `language` attribute, such as `es-US`."""

    name: str
    locale: str
    label: str

    @property
    def language(self) -> str:
        """The language as an organization chooses it, such as `es`."""
        return self.locale[:2]

    @property
    def takes_markup(self) -> bool:
        """Whether it follows the SSML that we write. Amazon documents it for neural voices; Google differs."""
        return self.name.startswith("Polly.")


VOICES = (
    Voice("Polly.Joanna-Neural", "en-US", "Joanna, US English (Amazon)"),
    Voice("Polly.Matthew-Neural", "en-US", "Matthew, US English (Amazon)"),
    Voice("Polly.Danielle-Neural", "en-US", "Danielle, US English (Amazon)"),
    Voice("Polly.Amy-Neural", "en-GB", "Amy, British English (Amazon)"),
    Voice("Google.en-US-Neural2-F", "en-US", "Neural2 F, US English (Google)"),
    Voice("Google.en-US-Neural2-D", "en-US", "Neural2 D, US English (Google)"),
    Voice("Polly.Lupe-Neural", "es-US", "Lupe, US Spanish (Amazon)"),
    Voice("Polly.Pedro-Neural", "es-US", "Pedro, US Spanish (Amazon)"),
    Voice("Polly.Mia-Neural", "es-MX", "Mia, Mexican Spanish (Amazon)"),
    Voice("Polly.Lucia-Neural", "es-ES", "Lucia, Castilian Spanish (Amazon)"),
    Voice("Google.es-US-Neural2-A", "es-US", "Neural2 A, US Spanish (Google)"),
    Voice("Google.es-US-Neural2-B", "es-US", "Neural2 B, US Spanish (Google)"),
)
_BY_NAME = {voice.name: voice for voice in VOICES}
_DEFAULTS = {DEFAULT: _BY_NAME["Polly.Joanna-Neural"], SPANISH: _BY_NAME["Polly.Lupe-Neural"]}
DEFAULT_VOICE = _DEFAULTS[DEFAULT].name


def voice_choices() -> list[tuple[str, str]]:
    """Return the choices of a field that holds a voice."""
    return [(voice.name, voice.label) for voice in VOICES]


def choose_voice(language: str, *names: str) -> Voice:
    """Return the first of these voices that speaks the language, else the language's default voice."""
    named = (_BY_NAME.get(name) for name in names if name)
    return next((voice for voice in named if voice and voice.language == language), default_voice(language))


def default_voice(language: str) -> Voice:
    """Return the voice that speaks a language unless another one is chosen."""
    return _DEFAULTS.get(language) or _DEFAULTS[DEFAULT]


def voice_problem(name: str, language: str) -> str:
    """Return why the voice can't speak the language, or "". An empty name is fine."""
    voice = _BY_NAME.get(name)
    if voice is None or voice.language == language:
        return ""
    label = dict(CHOICES).get(language, language)
    return gettext("This voice doesn't speak {language}. Choose {voice}, or another {language} voice.").format(
        language=gettext(label), voice=default_voice(language).label
    )
