"""Register the phone providers that an account can choose. Telephony, a higher slice, implements them."""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings

_known: dict[str, str] = {}


def register(names: Mapping[str, str]) -> None:
    """Register providers by name, with their labels. Called from AppConfig.ready()."""
    _known.update(names)


def choices() -> list[tuple[str, str]]:
    """Return the current choices; in development also those of settings.PROVIDER_MODULES."""
    added = settings.PROVIDER_MODULES if settings.DEVELOPMENT else {}
    return [*_known.items(), *((name, name) for name in added if name not in _known)]
