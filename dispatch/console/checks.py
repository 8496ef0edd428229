"""System checks of the console's settings."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def check_map_tiles(**_: Any) -> list[CheckMessage]:
    """Report an address of map tiles that no browser could load."""
    address = settings.MAP_TILES_URL
    if not address:
        return []
    parts = urlsplit(address)
    missing = [name for name in ("{z}", "{x}", "{y}") if name not in address]
    if parts.scheme not in ("https", "http") or not parts.netloc or set(parts.netloc) & set(" ;,'\""):
        fault = "MAP_TILES_URL must be an http(s) address."
    elif missing:
        fault = f"MAP_TILES_URL lacks {', '.join(missing)}."
    else:
        return []
    hint = "Example: https://tiles.example.com/{z}/{x}/{y}.png"
    return [Error(fault, hint=hint, id="dispatch.E110")]
