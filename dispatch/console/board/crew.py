"""The strip of technicians: who is available, on an offer, on a job, off, or paused for missing calls."""

from __future__ import annotations

from dataclasses import dataclass

from accounts.models import Organization
from dispatch.technicians import search
from dispatch.technicians.search import OnStrip

# state → (tone, word); in the order in which they are of interest
STATES = {
    "on_offer": ("calling", "On offer"),
    "auto_paused": ("late", "Auto-paused"),
    "available": ("good", "Available"),
    "on_job": ("plain", "On a job"),
    "off_shift": ("waiting", "Off shift"),
    "off": ("off", "Off duty"),
}
MOST = 60


@dataclass(frozen=True)
class Group:
    state: str
    tone: str
    word: str
    count: int
    members: list[OnStrip]

    @property
    def more(self) -> int:
        return self.count - len(self.members)


def strip(organization: Organization) -> list[Group]:
    """Every state that somebody is in, with the first of its people."""
    counts, members = search.on_strip(organization, MOST)
    return [
        Group(state, tone, word, counts[state], [one for one in members if one.state == state])
        for state, (tone, word) in STATES.items()
        if counts.get(state)
    ]
