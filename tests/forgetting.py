"""What a process remembers for seconds, and a test must not inherit from the last: outages, and what was read a
moment ago."""

from __future__ import annotations

from accounts import guessing, throttling
from dispatch.capacity import fast
from dispatch.console import health
from dispatch.console.board import sharing
from dispatch.core import sparing
from dispatch.leads import gating, progress
from dispatch.leads import loops as leads_loops
from dispatch.leads.services import claiming
from notifications import hints


def as_if_just_started() -> None:
    """This process has met no outage and read nothing yet."""
    sparing.believe_all_again()
    fast.believe_again()
    throttling.local.forget()
    guessing.refused.forget()
    gating.forget()
    health.forget()
    sharing.forget()
    progress.forget()
    leads_loops.forget()
    claiming.forget()
    hints.forget()
