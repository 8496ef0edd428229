"""Exceptions that prevent a call or a text."""

from __future__ import annotations

from dispatch.capacity.line_leases import NoLine

__all__ = ["CallNotAllowed", "NoLine", "NoTextNumber", "OptedOut", "PhoneBusy", "TextNotAllowed", "WrongCall"]


class PhoneBusy(Exception):
    """The organization already has an open call to that phone."""


class CallNotAllowed(Exception):
    """The organization may not call that phone. `reason` is a short phrase."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class TextNotAllowed(Exception):
    """The organization may not text that phone. `reason` is a short phrase."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class OptedOut(TextNotAllowed):
    """The phone has opted out of the organization's texts."""

    def __init__(self) -> None:
        super().__init__("opted out of texts")


class NoTextNumber(Exception):
    """No number of the organization may send texts now."""


class WrongCall(Exception):
    """A webhook's call or account is not the one that its URL identifies."""
