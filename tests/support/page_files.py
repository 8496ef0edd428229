"""The files that a page loads."""

from __future__ import annotations

import html
import re

_LINK = re.compile(r"<link\b[^>]*\brel=\"(?:stylesheet|icon|manifest)\"[^>]*>")
_ADDRESS = re.compile(r"\bhref=\"([^\"]+)\"")
_SCRIPT = re.compile(r"<script\b[^>]*\bsrc=\"([^\"]+)\"")
_IMAGE = re.compile(r"<img\b[^>]*\bsrc=\"([^\"]+)\"")


def linked_files(page: str) -> list[str]:
    """Return the addresses of the styles, scripts, images, icon and manifest that a page loads at once."""
    links = [found[1] for link in _LINK.findall(page) if (found := _ADDRESS.search(link))]
    found = [*links, *_SCRIPT.findall(page), *_IMAGE.findall(page)]
    return list(dict.fromkeys(html.unescape(address) for address in found))
