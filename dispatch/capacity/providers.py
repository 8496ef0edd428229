"""What an account's provider may be. Telephony, which speaks to them, lies above and says which it knows."""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings

_known: dict[str, str] = {}


def register(names: Mapping[str, str]) -> None:
    """Providers by name, with what people read. Called from AppConfig.ready()."""
    _known.update(names)


def choices() -> list[tuple[str, str]]:
    """Those that can be chosen now; in development also those that settings.PROVIDER_MODULES adds."""
    added = settings.PROVIDER_MODULES if settings.DEVELOPMENT else {}
    return [*_known.items(), *((name, name) for name in added if name not in _known)]
