"""Where a number may be: the time zones in which its owner can be, from its digits alone.

A number's area code does not tell its zone (850 is both Eastern and Central, toll-free is everywhere, and people
keep their numbers when they move): without a position, every plausible zone has to be inside the window."""

from __future__ import annotations

from functools import lru_cache

from phonenumbers import tzdata

# As many digits as name an area in the numbering plan of North America: the country code and the area code.
_NANP_AREA = 4


@lru_cache(maxsize=1)
def _by_area() -> dict[str, frozenset[str]]:
    """The zones of every number of each area of +1."""
    found: dict[str, set[str]] = {}
    for prefix, zones in tzdata.TIMEZONE_DATA.items():
        if prefix.startswith("1") and len(prefix) >= _NANP_AREA:
            found.setdefault(prefix[:_NANP_AREA], set()).update(zones)
    return {area: frozenset(zones) for area, zones in found.items()}


@lru_cache(maxsize=20_000)
def _of_prefix(prefix: str) -> tuple[str, ...]:
    """The zones of the longest known beginning of these digits."""
    for length in range(len(prefix), 0, -1):
        if prefix[:length] in tzdata.TIMEZONE_DATA:
            return tuple(sorted(tzdata.TIMEZONE_DATA[prefix[:length]]))
    return ()


def plausible_zones(e164: str) -> tuple[str, ...]:
    """Every zone (IANA names, sorted) in which that number may be answered; () when nothing is known of it.

    In North America, those of its whole area code: a number's exchange says no more about where it is carried."""
    digits = e164.lstrip("+")
    area = _by_area().get(digits[:_NANP_AREA]) if digits.startswith("1") else None
    return tuple(sorted(area)) if area else _of_prefix(digits[: tzdata.TIMEZONE_LONGEST_PREFIX])
