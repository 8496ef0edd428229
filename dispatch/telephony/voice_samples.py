"""Register what a preview of a voice says (`voice_previews`). A slice registers the samples of its rows."""

from __future__ import annotations

from collections.abc import Callable

from dispatch.telephony.handlers import AgentConnection, VoicePrompt

Sample = VoicePrompt | AgentConnection

_samples: dict[str, Callable[..., Sample]] = {}


def register(kind: str, sample: Callable[..., Sample]) -> None:
    """Register the sample of a kind of row, by the row's id. Called from AppConfig.ready().

    If its prompt asks for keys, the sample takes the pressed key as its second argument.
    """
    _samples[kind] = sample


def build(kind: str, subject_id: int, key: str = "") -> Sample:
    """Return the sample of a row as it is now, or what follows a key. Raises KeyError for an unknown kind."""
    return _samples[kind](subject_id, key) if key else _samples[kind](subject_id)
