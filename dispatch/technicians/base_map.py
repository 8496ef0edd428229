"""The ground of every map: drawn here, without tiles, so it works without internet. Places of the country's ZIP
codes give it names."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from math import cos, floor, log10, radians

import zipcodes

WIDTH, HEIGHT, MARGIN = 960, 420, 28
METRES_PER_DEGREE = 111_195.0
MOST_PLACES, FEW_PLACES = 14, 4
BEYOND = 800
LEAST_SPAN_M = 4_000.0
STALE_POSITION_S = 3600


@dataclass(frozen=True)
class Point:
    """Something on the map, in its units. `age_s` of a position; `href` opens it."""

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
    """Degrees to units: an equirectangular projection about the middle of what is shown."""

    def __init__(self, points: list[tuple[float, float]], reach_m: float) -> None:
        lats, lngs = [lat for lat, _ in points], [lng for _, lng in points]
        self.lat, self.lng = (min(lats) + max(lats)) / 2, (min(lngs) + max(lngs)) / 2
        self.stretch = max(0.05, cos(radians(self.lat)))
        high = max((max(lats) - min(lats)) * METRES_PER_DEGREE, LEAST_SPAN_M, 2 * reach_m)
        wide = max((max(lngs) - min(lngs)) * METRES_PER_DEGREE * self.stretch, LEAST_SPAN_M, 2 * reach_m)
        self.units_per_m = min((WIDTH - 2 * MARGIN) / wide, (HEIGHT - 2 * MARGIN) / high)

    def at(self, lat: float, lng: float) -> tuple[float, float]:
        x = WIDTH / 2 + (lng - self.lng) * METRES_PER_DEGREE * self.stretch * self.units_per_m
        y = HEIGHT / 2 - (lat - self.lat) * METRES_PER_DEGREE * self.units_per_m
        return round(x, 1), round(y, 1)

    def corners(self) -> tuple[float, float, float, float]:
        """South, west, north, east, in degrees."""
        high = HEIGHT / 2 / self.units_per_m / METRES_PER_DEGREE
        wide = WIDTH / 2 / self.units_per_m / METRES_PER_DEGREE / self.stretch
        return self.lat - high, self.lng - wide, self.lat + high, self.lng + wide


def _nice(about: float) -> float:
    """The largest of 1, 2, 5 × 10ⁿ that is not above."""
    power = 10.0 ** floor(log10(about))
    return next(step * power for step in (5, 2, 1) if step * power <= about * 1.000001)


def scale_of(sheet: Sheet) -> tuple[float, float]:
    metres = _nice(160 / sheet.units_per_m)
    return round(metres * sheet.units_per_m, 1), metres


def grid(sheet: Sheet) -> list[tuple[float, float, float, float]]:
    """Lines of latitude and longitude at round steps."""
    south, west, north, east = sheet.corners()
    step = _nice((north - south) / 2.5)
    beyond = BEYOND / sheet.units_per_m / METRES_PER_DEGREE / sheet.stretch
    west, east = west - beyond, east + beyond  # a wide window shows more than the sheet
    lines: list[tuple[float, float, float, float]] = []
    for low, high, is_lat in ((south, north, True), (west, east, False)):
        at = (floor(low / step) + 1) * step
        while at < high:
            x, y = sheet.at(at, west) if is_lat else sheet.at(south, at)
            lines.append((-BEYOND, y, WIDTH + BEYOND, y) if is_lat else (x, 0, x, HEIGHT))
            at += step
    return lines


def places(sheet: Sheet) -> list[Point]:
    """The largest towns that are in the picture, or of a small picture the ZIP codes; no two on one spot."""
    towns, codes = _towns()
    shown = _clear(sheet, towns, [])
    return shown if len(shown) >= FEW_PLACES else _clear(sheet, codes, shown)


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
        if len(shown) == MOST_PLACES:
            break
    return shown


@cache
def _towns() -> tuple[list[tuple[str, float, float]], list[tuple[str, float, float]]]:
    """(name, latitude, longitude) of every town that has ZIP codes, the one with most first; and of every code."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    codes = []
    for row in zipcodes.list_all():
        if row.get("lat") and row.get("long") and row["zip_code_type"] == "STANDARD":
            spot = (float(row["lat"]), float(row["long"]))
            found.setdefault((row["city"], row["state"]), []).append(spot)
            codes.append((f"{row['city']} {row['zip_code']}", *spot))
    largest = sorted(found.items(), key=lambda town: -len(town[1]))
    towns = [
        (name, sum(a for a, _ in spots) / len(spots), sum(b for _, b in spots) / len(spots))
        for (name, _), spots in largest
    ]
    return towns, codes


def warm() -> None:
    """Reads the towns in the background, so that the first map need not wait for them."""
    if _towns.cache_info().currsize == 0:
        threading.Thread(target=_towns, daemon=True, name="towns").start()
