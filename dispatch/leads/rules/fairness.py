"""Divide the leads in progress of a dialer among organizations."""

from __future__ import annotations

# An organization may have this many times as many leads in progress as places remain free.
FACTOR = 7


def fair_share(held: int, free: int) -> int:
    """Return how many more places an organization may take that holds `held` while `free` are free.

    One organization alone gets seven eighths of all places. One without any gets a place while there is one.
    """
    share = (FACTOR * free - held) // (FACTOR + 1)
    return max(share, 0) if held else max(share, min(free, 1))
