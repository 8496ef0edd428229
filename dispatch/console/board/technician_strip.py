"""The strip of technicians by state: available, being called, on a job, off, or paused for missed calls."""

from __future__ import annotations

from dataclasses import dataclass

from accounts.models import Organization
from dispatch.core.languages import mark
from dispatch.technicians import search
from dispatch.technicians.search import TechnicianActivity

# state → (tone, word), in display order
STATES = {
    "on_offer": ("calling", mark("Being called")),
    "auto_paused": ("late", mark("Auto-paused")),
    "available": ("good", mark("Available")),
    "on_job": ("plain", mark("On a job")),
    "off_shift": ("waiting", mark("Off shift")),
    "off": ("off", mark("Off duty")),
}
MAX_MEMBERS = 60


@dataclass(frozen=True)
class Group:
    """The technicians in one state. `count`: their number, of whom `members` are the first."""

    state: str
    tone: str
    word: str
    count: int
    members: list[TechnicianActivity]

    @property
    def more(self) -> int:
        return self.count - len(self.members)


def load_strip(organization: Organization) -> list[Group]:
    """Return a group for every state that occurs, in display order."""
    counts, members = search.load_activities(organization, MAX_MEMBERS)
    return [
        Group(state, tone, word, counts[state], [member for member in members if member.state == state])
        for state, (tone, word) in STATES.items()
        if counts.get(state)
    ]
