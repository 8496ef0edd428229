"""Read and fill in the forms of schedules as a browser without JavaScript does."""

from __future__ import annotations

import re
from html import unescape
from typing import Any


def text(answer: Any) -> str:
    """Return the text of the page's main part, without tags."""
    assert answer.status_code in (200, 409, 422), answer.content[:500]
    page = answer.content.decode()
    page = page[page.find("<main") :] if "<main" in page else page
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", page).split()))


def form(**fields: str) -> dict[str, str]:
    return {
        "kind": "http", "name": "Ping the boiler", "p-url": "https://example.com/hook", "p-method": "POST",
        "how": "cron", "cron": "0 9 * * MON#1", "time_zone": "America/Phoenix", **fields,
    }  # fmt: skip


def filled(page: str, attribute: str = 'id="schedule-form"') -> dict[str, str]:
    """Return what a browser would submit for the form with this attribute as rendered."""
    found: dict[str, str] = {}
    start = page.index(attribute)
    shown = page[start : page.index("</form>", start)]
    for tag in re.findall(r"<input[^>]*>", shown):
        given = {name: unescape(value) for name, value in re.findall(r'([\w-]+)="([^"]*)"', tag)}
        if given.get("type") != "radio" or " checked" in tag:
            found[given["name"]] = given.get("value", "")
    for name, inner in re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>(.*?)</textarea>', shown, re.DOTALL):
        found[name] = unescape(inner)
    for name, inner in re.findall(r'<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>', shown, re.DOTALL):
        options = re.findall(r'<option value="([^"]*)"( selected)?', inner)
        found[name] = next((value for value, chosen in options if chosen), options[0][0])
    return found
