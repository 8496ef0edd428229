"""Draw the background of every map without tiles, so that it works offline. Town names come from ZIP code data."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from math import cos, floor, log10, radians

from dispatch.core.zips import iterate_entries

WIDTH, HEIGHT, MARGIN = 960, 420, 28
METERS_PER_DEGREE = 111_195.0
MAX_PLACES, MIN_PLACES = 14, 4
BEYOND = 800  # map units to each side of the sheet, for wide windows
MIN_SPAN_M = 4_000.0
STALE_POSITION_S = 3600


@dataclass(frozen=True)
class Point:
    """A point on the map in map units. `age_s`: age of the position in seconds. `rank`: 0 for none."""

    x: float
    y: float
    tone: str
    words: str
    label: str = ""
    job_id: int = 0
    age_s: int = 0
    rank: int = 0

    @property
    def is_old(self) -> bool:
        return self.age_s > STALE_POSITION_S


class Sheet:
    """Projects degrees to map units: an equirectangular projection around the center of the points."""

    def __init__(self, points: list[tuple[float, float]], reach_m: float) -> None:
        lats, lngs = [lat for lat, _ in points], [lng for _, lng in points]
        self.lat, self.lng = (min(lats) + max(lats)) / 2, (min(lngs) + max(lngs)) / 2
        self.stretch = max(0.05, cos(radians(self.lat)))
        high = max((max(lats) - min(lats)) * METERS_PER_DEGREE, MIN_SPAN_M, 2 * reach_m)
        wide = max((max(lngs) - min(lngs)) * METERS_PER_DEGREE * self.stretch, MIN_SPAN_M, 2 * reach_m)
        self.units_per_m = min((WIDTH - 2 * MARGIN) / wide, (HEIGHT - 2 * MARGIN) / high)

    def at(self, lat: float, lng: float) -> tuple[float, float]:
        x = WIDTH / 2 + (lng - self.lng) * METERS_PER_DEGREE * self.stretch * self.units_per_m
        y = HEIGHT / 2 - (lat - self.lat) * METERS_PER_DEGREE * self.units_per_m
        return round(x, 1), round(y, 1)

    def corners(self) -> tuple[float, float, float, float]:
        """Return south, west, north, east in degrees."""
        high = HEIGHT / 2 / self.units_per_m / METERS_PER_DEGREE
        wide = WIDTH / 2 / self.units_per_m / METERS_PER_DEGREE / self.stretch
        return self.lat - high, self.lng - wide, self.lat + high, self.lng + wide


def _round_down(about: float) -> float:
    """Return the largest of 1, 2, 5 × 10ⁿ that does not exceed `about`."""
    power = 10.0 ** floor(log10(about))
    return next(step * power for step in (5, 2, 1) if step * power <= about * 1.000001)


def scale_of(sheet: Sheet) -> tuple[float, float]:
    """Return the length of the scale bar in map units and in meters."""
    meters = _round_down(160 / sheet.units_per_m)
    return round(meters * sheet.units_per_m, 1), meters


def grid_lines(sheet: Sheet) -> list[tuple[float, float, float, float]]:
    """Return lines of latitude and longitude at round steps."""
    south, west, north, east = sheet.corners()
    step = _round_down((north - south) / 2.5)
    beyond = BEYOND / sheet.units_per_m / METERS_PER_DEGREE / sheet.stretch
    west, east = west - beyond, east + beyond
    lines: list[tuple[float, float, float, float]] = []
    for low, high, is_lat in ((south, north, True), (west, east, False)):
        at = (floor(low / step) + 1) * step
        while at < high:
            x, y = sheet.at(at, west) if is_lat else sheet.at(south, at)
            lines.append((-BEYOND, y, WIDTH + BEYOND, y) if is_lat else (x, 0, x, HEIGHT))
            at += step
    return lines


def towns_on_map(sheet: Sheet) -> list[Point]:
    """Return the largest towns on the map, and ZIP codes if there are few towns. Labels don't overlap."""
    towns, codes = _towns()
    shown = _clear(sheet, towns, [])
    return shown if len(shown) >= MIN_PLACES else _clear(sheet, codes, shown)


def _clear(sheet: Sheet, names: list[tuple[str, float, float]], shown: list[Point]) -> list[Point]:
    south, west, north, east = sheet.corners()
    shown = list(shown)
    for name, lat, lng in names:
        if not (south < lat < north and west < lng < east):
            continue
        x, y = sheet.at(lat, lng)
        clear = all(abs(x - other.x) > 90 or abs(y - other.y) > 22 for other in shown)
        if clear and 40 < x < WIDTH - 40 and 20 < y < HEIGHT - 40:
            shown.append(Point(x, y, "plain", name))
        if len(shown) == MAX_PLACES:
            break
    return shown


@cache
def _towns() -> tuple[list[tuple[str, float, float]], list[tuple[str, float, float]]]:
    """Return (name, latitude, longitude) of every town, those with most ZIP codes first, and of every ZIP code."""
    spots_by_town: dict[tuple[str, str], list[tuple[float, float]]] = {}
    codes = []
    for row in iterate_entries():
        if row.get("lat") and row.get("long") and row["zip_code_type"] == "STANDARD":
            spot = (float(row["lat"]), float(row["long"]))
            spots_by_town.setdefault((row["city"], row["state"]), []).append(spot)
            codes.append((f"{row['city']} {row['zip_code']}", *spot))
    largest = sorted(spots_by_town.items(), key=lambda town: -len(town[1]))
    towns = [
        (name, sum(a for a, _ in spots) / len(spots), sum(b for _, b in spots) / len(spots))
        for (name, _), spots in largest
    ]
    return towns, codes


def load_towns() -> None:
    """Load the towns in the background, so that the first map doesn't wait for them."""
    if _towns.cache_info().currsize == 0:
        threading.Thread(target=_towns, daemon=True, name="towns").start()
