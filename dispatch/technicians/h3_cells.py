"""Map positions to H3 cells, stored as integers in the b-tree on (organization, cell).

All descendants of an H3 cell lie in one span of integers. Therefore a few cells of a suitable resolution cover a
circle, and each of them is one range of the index.
"""

from functools import lru_cache
from math import asin, ceil, cos, radians, sin, sqrt

import h3.api.basic_int as h3

# Resolution 6: cells about 6.5 km across.
RESOLUTION = 6
EARTH_RADIUS_M = 6_371_008.8
# Bounds of a cell's edge relative to the mean edge (cells near the grid's twelve pentagons are smaller). _SPILL: a
# descendant's center may lie slightly outside its ancestor.
_MIN_EDGE, _MAX_EDGE = 0.6, 1.45
_SPILL = 1.2
_MAX_RINGS = 7


def cell_of(lat: float, lng: float) -> int:
    """Return the cell of a position in WGS 84 degrees."""
    return int(h3.latlng_to_cell(lat, lng, RESOLUTION))


def distance_m(lat: float, lng: float, to_lat: float, to_lng: float) -> float:
    """Return the distance in meters on a sphere (haversine), as the search computes it in SQL."""
    north = sin(radians(to_lat - lat) / 2) ** 2
    east = sin(radians(to_lng - lng) / 2) ** 2
    chord = north + cos(radians(lat)) * cos(radians(to_lat)) * east
    return 2 * EARTH_RADIUS_M * asin(min(1.0, sqrt(chord)))


def spans_around(lat: float, lng: float, radius_m: float) -> tuple[tuple[int, int], ...]:
    """Return spans (low, high), inclusive, of cell numbers that cover every position within `radius_m`.

    They also cover positions beyond it, so the caller must check the exact distance.
    """
    resolution, rings = _grain(radius_m)
    return _spans(int(h3.latlng_to_cell(lat, lng, resolution)), rings, float(radius_m))


def _grain(radius_m: float) -> tuple[int, int]:
    """Return the finest resolution at which `_MAX_RINGS` rings of cells cover the circle, and the rings needed."""
    for resolution in range(RESOLUTION, -1, -1):
        edge = h3.average_hexagon_edge_length(resolution, unit="m")
        # A disk of k rings reaches 1.5 k edges from the center of its middle cell; the point may be one edge off.
        rings = ceil((radius_m + _MAX_EDGE * _SPILL * edge) / (1.5 * _MIN_EDGE * edge))
        if rings <= _MAX_RINGS:
            return resolution, rings
    return 0, 60  # the whole world


@lru_cache(maxsize=2048)
def _spans(middle: int, rings: int, radius_m: float) -> tuple[tuple[int, int], ...]:
    resolution = h3.get_resolution(middle)
    edge = h3.average_hexagon_edge_length(resolution, unit="m")
    reach = radius_m + 2 * _MAX_EDGE * _SPILL * edge
    lat, lng = h3.cell_to_latlng(middle)
    near = sorted(
        cell for cell in h3.grid_disk(middle, rings) if distance_m(lat, lng, *h3.cell_to_latlng(cell)) <= reach
    )
    spans: list[tuple[int, int]] = []
    for low, high in (_descendants(cell, resolution) for cell in near):
        if spans and _follows(spans[-1][1], low):
            spans[-1] = (spans[-1][0], high)
        else:
            spans.append((low, high))
    return tuple(spans)


def _descendants(cell: int, resolution: int) -> tuple[int, int]:
    """Return the lowest and highest number of a descendant of `cell` at RESOLUTION.

    A number contains the resolution (bits 52–55) and three bits per level; 7 marks an unused level.
    """
    unused = (1 << 3 * (15 - RESOLUTION)) - 1
    free = ((1 << 3 * (15 - resolution)) - 1) & ~unused
    base = (cell & ~(0xF << 52) & ~free) | (RESOLUTION << 52) | unused
    return base, base | free


def _follows(high: int, low: int) -> bool:
    """Return whether no cell number lies between them (level digits end at 6, so 7 is a gap)."""
    step = 1 << 3 * (15 - RESOLUTION)
    return low - high in (step, 2 * step)
