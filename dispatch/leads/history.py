"""What the event log must say about leads: one attempt at a time, and tokens that only increase."""

from __future__ import annotations

from typing import ClassVar

from dispatch.core.events import history
from dispatch.core.events.history import Entry, Machine
from dispatch.leads.models import Lead
from dispatch.leads.rules.states import LEGAL, Status


class LeadHistory(Machine):
    """Follow one lead by `rules.states.LEGAL`. Its token is the attempt.

    Leads that were added together have no event of their creation.
    """

    type: ClassVar[str] = "lead"
    table: ClassVar[str] = Lead._meta.db_table
    begins_with: ClassVar[frozenset[str]] = frozenset(
        {"created", *(verb for verb, (before, _) in LEGAL.items() if Status.BACKLOG in before)}
    )

    def follow(self, entry: Entry) -> None:
        if entry.verb == "created":
            return self.move((), Status.BACKLOG)
        if entry.verb not in LEGAL:
            return None
        before, after = LEGAL[entry.verb]
        was = self.status
        self.move(before, after)
        if entry.verb == "processing":
            self.raise_token(entry.data.get("attempt"))
        elif was == Status.PROCESSING:
            self.match_token(entry.data.get("attempt"))
        return None


def register() -> None:
    """Register the checks. Called when the applications are ready."""
    history.register(LeadHistory)
