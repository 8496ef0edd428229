"""What can keep a call or a text from being made."""

from __future__ import annotations

from dispatch.capacity.lines import NoLine

__all__ = ["CallNotAllowed", "NoLine", "NoTextNumber", "NotTheirs", "OptedOut", "PhoneBusy", "TextNotAllowed"]


class PhoneBusy(Exception):
    """The organization has an open call to that phone already."""


class CallNotAllowed(Exception):
    """The organization may not call that phone; `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class TextNotAllowed(Exception):
    """The organization may not text that phone; `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class OptedOut(TextNotAllowed):
    """Whoever has that phone wants no texts of the organization."""

    def __init__(self) -> None:
        super().__init__("opted out of texts")


class NoTextNumber(Exception):
    """The organization has no number that may send texts now."""


class NotTheirs(Exception):
    """A webhook speaks of another call or account than its address does."""
