"""The menu in the header of every page."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from dispatch.core.languages import mark


@dataclass(frozen=True)
class Entry:
    """A menu entry. `name` is the page's `current`."""

    name: str
    words: str
    url_name: str
    icon: str


ENTRIES = (
    Entry("board", mark("Board"), "console:board", "board"),
    Entry("leads", mark("Leads"), "console:leads", "phone"),
    Entry("outbox", mark("Outbox"), "console:outbox", "outbox"),
    Entry("schedules", mark("Schedules"), "console:schedules", "clock"),
    Entry("reports", mark("Reports"), "console:reports", "chart"),
)


def menu(request: HttpRequest, current: str) -> list[dict[str, object]]:
    """Return the entries whose pages exist, with the current one marked."""
    entries: list[dict[str, object]] = []
    for entry in ENTRIES:
        try:
            address = reverse(entry.url_name)
        except NoReverseMatch:
            continue
        entries.append({"entry": entry, "address": address, "here": entry.name == current})
    return entries
