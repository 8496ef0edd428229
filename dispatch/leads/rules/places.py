"""Where a lead is: its country, its states and its time zones, from its position or else its number."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from math import cos, radians

import phonenumbers

from dispatch.leads.rules.zones import plausible_zones

_AREA = 5  # characters of an E.164 number of +1 that name its area: +1602
_SEARCHED_DEGREES = 1  # how far the nearest ZIP code of a position is looked for, in cells of one degree


@lru_cache(maxsize=20_000)
def _country(beginning: str, whole: str) -> str:
    try:
        return phonenumbers.region_code_for_number(phonenumbers.parse(whole, None)) or ""
    except phonenumbers.NumberParseException:
        return ""


def country_of(e164: str) -> str:
    """The country (two letters) of a number, "" when none is known. In North America the area code tells it."""
    if e164.startswith("+1"):
        return _country(e164[:_AREA], e164[:_AREA] + "5550100"[: 12 - _AREA])
    return _country(e164[:7], e164)


@lru_cache(maxsize=50_000)
def zones_at(lat: float, lng: float) -> tuple[str, ...]:
    """The zones of a position: more than one where a border is disputed."""
    import tzfpy  # its map is loaded at the first question

    return tuple(sorted(tzfpy.get_tzs(lng, lat)))


def zones_of(e164: str, lat: float | None, lng: float | None) -> tuple[str, ...]:
    """Every zone in which the lead may be answered; () when nothing is known."""
    if lat is not None and lng is not None:
        return zones_at(lat, lng)
    return plausible_zones(e164)


def states_of(e164: str, lat: float | None, lng: float | None) -> frozenset[str]:
    """The states of the US in which the lead may be: that of its position, or all that its area code reaches. One
    that names no area (toll-free) may be in any."""
    if lat is not None and lng is not None:
        return _state_at(lat, lng)
    if country_of(e164) != "US":
        return frozenset()
    return _states_by_area().get(e164[2:_AREA]) or frozenset().union(*_states_by_area().values())


@lru_cache(maxsize=1)
def _zip_codes() -> list[dict[str, object]]:
    import zipcodes

    return [entry for entry in zipcodes.list_all() if entry["country"] == "US"]


@lru_cache(maxsize=1)
def _states_by_area() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for entry in _zip_codes():
        for area in entry["area_codes"]:  # type: ignore[attr-defined]
            found[area].add(str(entry["state"]))
    return {area: frozenset(states) for area, states in found.items()}


@lru_cache(maxsize=1)
def _zip_cells() -> dict[tuple[int, int], list[tuple[float, float, str]]]:
    cells: dict[tuple[int, int], list[tuple[float, float, str]]] = defaultdict(list)
    for entry in _zip_codes():
        lat, lng = float(str(entry["lat"])), float(str(entry["long"]))
        cells[int(lat // 1), int(lng // 1)].append((lat, lng, str(entry["state"])))
    return cells


@lru_cache(maxsize=50_000)
def _state_at(lat: float, lng: float) -> frozenset[str]:
    """The state of the nearest ZIP code within about a degree; none for the sea and other countries."""
    row, column = int(lat // 1), int(lng // 1)
    reach = range(-_SEARCHED_DEGREES, _SEARCHED_DEGREES + 1)
    near = [place for dr in reach for dc in reach for place in _zip_cells().get((row + dr, column + dc), ())]
    if not near:
        return frozenset()
    narrow = cos(radians(lat))
    nearest = min(near, key=lambda place: (place[0] - lat) ** 2 + ((place[1] - lng) * narrow) ** 2)
    return frozenset({nearest[2]})
