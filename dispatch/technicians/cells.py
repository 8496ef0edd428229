"""The grid under positions: H3 cells as integers, as the b-tree on (organization, cell) holds them.

All descendants of an H3 cell lie in one span of integers. So a circle is covered by few cells of a resolution
that suits its size, and each of them is one range of the index."""

from functools import lru_cache
from math import asin, ceil, cos, radians, sin, sqrt

import h3.api.basic_int as h3

# Resolution 6: cells about 6.5 km across.
RESOLUTION = 6
EARTH_RADIUS_M = 6_371_008.8
# A cell's edge is nowhere shorter or longer than this share of the mean edge (near the grid's twelve pentagons
# cells are smaller), and a descendant's centre may lie a little outside its ancestor.
_SHORTEST, _LONGEST = 0.6, 1.45
_SPILL = 1.2
_MOST_RINGS = 7


def cell_of(lat: float, lng: float) -> int:
    """The cell of a position in WGS 84 degrees."""
    return int(h3.latlng_to_cell(lat, lng, RESOLUTION))


def distance_m(lat: float, lng: float, to_lat: float, to_lng: float) -> float:
    """Metres between two positions on a sphere (haversine), as the search computes it in SQL."""
    north = sin(radians(to_lat - lat) / 2) ** 2
    east = sin(radians(to_lng - lng) / 2) ** 2
    chord = north + cos(radians(lat)) * cos(radians(to_lat)) * east
    return 2 * EARTH_RADIUS_M * asin(min(1.0, sqrt(chord)))


def spans_around(lat: float, lng: float, radius_m: float) -> tuple[tuple[int, int], ...]:
    """Spans (low, high), both included, of cell numbers that hold every position within `radius_m`.

    They may hold others too: the exact distance is checked on what they find."""
    resolution, rings = _grain(radius_m)
    return _spans(int(h3.latlng_to_cell(lat, lng, resolution)), rings, float(radius_m))


def _grain(radius_m: float) -> tuple[int, int]:
    """The finest resolution whose disk around the circle has at most `_MOST_RINGS` rings, and those rings."""
    for resolution in range(RESOLUTION, -1, -1):
        edge = h3.average_hexagon_edge_length(resolution, unit="m")
        # A disk of k rings reaches 1.5 k edges from its middle cell's centre; the point may be an edge off.
        rings = ceil((radius_m + _LONGEST * _SPILL * edge) / (1.5 * _SHORTEST * edge))
        if rings <= _MOST_RINGS:
            return resolution, rings
    return 0, 60  # the whole world


@lru_cache(maxsize=2048)
def _spans(middle: int, rings: int, radius_m: float) -> tuple[tuple[int, int], ...]:
    resolution = h3.get_resolution(middle)
    edge = h3.average_hexagon_edge_length(resolution, unit="m")
    reach = radius_m + 2 * _LONGEST * _SPILL * edge
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
    """The lowest and the highest number of a descendant of `cell` at RESOLUTION.

    The number holds the resolution (bits 52–55) and three bits per level, 7 where a level is unused."""
    unused = (1 << 3 * (15 - RESOLUTION)) - 1
    free = ((1 << 3 * (15 - resolution)) - 1) & ~unused
    base = (cell & ~(0xF << 52) & ~free) | (RESOLUTION << 52) | unused
    return base, base | free


def _follows(high: int, low: int) -> bool:
    """Whether no cell's number lies between them (level digits stop at 6, so 7 is a gap)."""
    step = 1 << 3 * (15 - RESOLUTION)
    return low - high in (step, 2 * step)
