"""Locate a lead by its position, or else by its number: its country, states and time zones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from math import cos, radians
from typing import Any

import phonenumbers
from phonenumbers import tzdata

from dispatch.core.zips import iterate_entries

_AREA = 5  # length of the beginning of a +1 number in E.164 that identifies its area: +1602
_SEARCHED_DEGREES = 1  # distance within which the nearest ZIP code is searched for, in cells of one degree


@lru_cache(maxsize=20_000)
def _country(beginning: str, whole: str) -> str:
    try:
        return phonenumbers.region_code_for_number(phonenumbers.parse(whole, None)) or ""
    except phonenumbers.NumberParseException:
        return ""


def area_of(e164: str) -> str:
    """Return the part of a number that locates it: all numbers with it are in the same country, states and zones.

    In North America, it is the area code; elsewhere, the whole number.
    """
    return e164[:_AREA] if e164.startswith("+1") else e164


def country_of(e164: str) -> str:
    """Return the country (two letters) of a number, or "" if unknown.

    In North America, the area code determines it.
    """
    if e164.startswith("+1"):
        return _country(e164[:_AREA], e164[:_AREA] + "5550100"[: 12 - _AREA])
    return _country(e164[:7], e164)


def load_places() -> None:
    """Load all that locates leads: about a second, once per process."""
    zones_at(0.0, 0.0)
    _by_area()
    _states_by_area()
    _zip_cells()


@lru_cache(maxsize=50_000)
def zones_at(lat: float, lng: float) -> tuple[str, ...]:
    """Return the time zones of a position. Where a border is disputed, there is more than one."""
    import tzfpy  # its map is loaded on first use

    return tuple(sorted(tzfpy.get_tzs(lng, lat)))


def zones_of(e164: str, lat: float | None, lng: float | None) -> tuple[str, ...]:
    """Return every time zone in which the lead may be; () if unknown."""
    if lat is not None and lng is not None:
        return zones_at(lat, lng)
    return plausible_zones(e164)


def states_of(e164: str, lat: float | None, lng: float | None) -> frozenset[str]:
    """Return the US states in which the lead may be: that of its position, or those of its area code.

    A number without an area (toll-free) may be in any state.
    """
    if lat is not None and lng is not None:
        return _state_at(lat, lng)
    if country_of(e164) != "US":
        return frozenset()
    return _states_by_area().get(e164[2:_AREA]) or frozenset().union(*_states_by_area().values())


def _zip_codes() -> Iterator[dict[str, Any]]:
    return (entry for entry in iterate_entries() if entry["country"] == "US")


@lru_cache(maxsize=1)
def _states_by_area() -> dict[str, frozenset[str]]:
    states_by_area: dict[str, set[str]] = defaultdict(set)
    for entry in _zip_codes():
        for area in entry["area_codes"]:
            states_by_area[area].add(str(entry["state"]))
    return {area: frozenset(states) for area, states in states_by_area.items()}


@lru_cache(maxsize=1)
def _zip_cells() -> dict[tuple[int, int], list[tuple[float, float, str]]]:
    cells: dict[tuple[int, int], list[tuple[float, float, str]]] = defaultdict(list)
    for entry in _zip_codes():
        lat, lng = float(str(entry["lat"])), float(str(entry["long"]))
        cells[int(lat // 1), int(lng // 1)].append((lat, lng, str(entry["state"])))
    return cells


@lru_cache(maxsize=50_000)
def _state_at(lat: float, lng: float) -> frozenset[str]:
    """Return the state of the nearest ZIP code within about a degree; none at sea and in other countries."""
    row, column = int(lat // 1), int(lng // 1)
    reach = range(-_SEARCHED_DEGREES, _SEARCHED_DEGREES + 1)
    near = [place for dr in reach for dc in reach for place in _zip_cells().get((row + dr, column + dc), ())]
    if not near:
        return frozenset()
    narrow = cos(radians(lat))
    nearest = min(near, key=lambda place: (place[0] - lat) ** 2 + ((place[1] - lng) * narrow) ** 2)
    return frozenset({nearest[2]})


# Number of digits that identify an area in the North American numbering plan: the country code and the area code.
_NANP_AREA = 4


@lru_cache(maxsize=1)
def _by_area() -> dict[str, frozenset[str]]:
    """Return the time zones of all numbers in each area of +1."""
    zones_by_area: dict[str, set[str]] = {}
    for prefix, zones in tzdata.TIMEZONE_DATA.items():
        if prefix.startswith("1") and len(prefix) >= _NANP_AREA:
            zones_by_area.setdefault(prefix[:_NANP_AREA], set()).update(zones)
    return {area: frozenset(zones) for area, zones in zones_by_area.items()}


@lru_cache(maxsize=20_000)
def _of_prefix(prefix: str) -> tuple[str, ...]:
    """Return the time zones of the longest known prefix of these digits."""
    for length in range(len(prefix), 0, -1):
        if prefix[:length] in tzdata.TIMEZONE_DATA:
            return tuple(sorted(tzdata.TIMEZONE_DATA[prefix[:length]]))
    return ()


def plausible_zones(e164: str) -> tuple[str, ...]:
    """Return every time zone (IANA names, sorted) in which the owner of the number may be; () if unknown.

    In North America, these are the zones of the whole area code, because a number's exchange does not locate its
    owner any better.
    """
    digits = e164.lstrip("+")
    area = _by_area().get(digits[:_NANP_AREA]) if digits.startswith("1") else None
    return tuple(sorted(area)) if area else _of_prefix(digits[: tzdata.TIMEZONE_LONGEST_PREFIX])
