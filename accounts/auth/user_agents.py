"""Name the browser and the system of a User-Agent header, for the list of sessions."""

from __future__ import annotations

import re

from dispatch.core.languages import gettext as _

# The first that matches counts: most browsers also claim to be Chrome or Safari.
_BROWSERS = (
    ("Edge", r"\bEdg(?:e|A|iOS)?/(\d+)"),
    ("Opera", r"\bOPR/(\d+)"),
    ("Samsung Internet", r"\bSamsungBrowser/(\d+)"),
    ("Firefox", r"\b(?:Firefox|FxiOS)/(\d+)"),
    ("Chrome", r"(?:Chrome|CriOS)/(\d+)"),
    ("Safari", r"\bVersion/(\d+)\S* .*\bSafari/"),
)
_SYSTEMS = (
    ("iPhone", r"\biPhone\b"),
    ("iPad", r"\biPad\b"),
    ("Android", r"\bAndroid\b"),
    ("Windows", r"\bWindows\b"),
    ("ChromeOS", r"\bCrOS\b"),
    ("macOS", r"\bMac OS X\b"),
    ("Linux", r"\bLinux\b"),
)


def describe_user_agent(header: str) -> str:
    """Return a name such as "Chrome 140 on Windows". An unknown browser's header is returned as it is."""
    browser = next((f"{name} {found[1]}" for name, known in _BROWSERS if (found := re.search(known, header))), "")
    system = next((name for name, known in _SYSTEMS if re.search(known, header)), "")
    if browser and system:
        return _("{browser} on {system}").format(browser=browser, system=system)
    return browser or header
