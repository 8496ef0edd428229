"""Register what a preview of a voice says (`voice_previews`). A slice registers the samples of its rows."""

from __future__ import annotations

from collections.abc import Callable

from dispatch.telephony.handlers import VoicePrompt

_samples: dict[str, Callable[[int], VoicePrompt]] = {}


def register(kind: str, sample: Callable[[int], VoicePrompt]) -> None:
    """Register the sample of a kind of row, by the row's id. Called from AppConfig.ready()."""
    _samples[kind] = sample


def build(kind: str, subject_id: int) -> VoicePrompt:
    """Return the sample of a row as it is now. Raises KeyError for an unknown kind."""
    return _samples[kind](subject_id)
