"""How what waited through an outage is spread, so that it does not all come at once."""

from __future__ import annotations


def window_s(overdue: int, base_s: float, per: int, most_s: float) -> float:
    """Over how many seconds `overdue` leads are spread: `base_s`, once more for every `per` of them, at most
    `most_s`."""
    return min(base_s * (1 + overdue / per), most_s)


def place_in(window: float, position: int, count: int, chance: float) -> float:
    """Seconds from now for the one at `position` (from 0) of `count`: in their order, each somewhere (`chance`, 0
    to 1) within its own part of the window."""
    return window * (position + chance) / max(count, 1)
