"""What can keep a call from being made."""

from __future__ import annotations

from dispatch.capacity.lines import NoLine

__all__ = ["CallNotAllowed", "NoLine", "NotTheirs", "PhoneBusy"]


class PhoneBusy(Exception):
    """The organization has an open call to that phone already."""


class CallNotAllowed(Exception):
    """The organization may not call that phone; `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class NotTheirs(Exception):
    """A webhook speaks of another call or account than its address does."""
