"""Draw a sketch of a job's location relative to a technician: two points, a scale, a bearing. No map service."""

import math
from dataclasses import dataclass

from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark

WIDTH, HEIGHT, MARGIN = 320, 200, 44
EARTH_M = 6_371_000.0
_UNIT_M = {"mi": 1609.344, "km": 1000.0}
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
_BEARINGS = (
    mark("north"), mark("northeast"), mark("east"), mark("southeast"), mark("south"), mark("southwest"),
    mark("west"), mark("northwest"),
)  # fmt: skip
_TOWARD = (
    mark("to the north"), mark("to the northeast"), mark("to the east"), mark("to the southeast"),
    mark("to the south"), mark("to the southwest"), mark("to the west"), mark("to the northwest"),
)  # fmt: skip


@dataclass(frozen=True)
class Sketch:
    """A sketch in coordinates of a box of WIDTH x HEIGHT.

    `scale_px` is the length of the scale bar, `scale` its label. `bearing` is the direction from the technician to
    the job, and `toward` the same as "to the north"; both are empty if they are at the same place.
    """

    me: tuple[float, float]
    job: tuple[float, float]
    rings: tuple[float, ...]
    scale_px: float
    scale: str
    bearing: str
    toward: str


def draw_sketch(me: tuple[float, float], job: tuple[float, float], unit: str) -> Sketch:
    """Draw the sketch. `me` and `job` are (latitude, longitude) in degrees; `unit` is `mi` or `km`."""
    middle = math.radians((me[0] + job[0]) / 2)
    across = math.radians((job[1] - me[1] + 540) % 360 - 180) * math.cos(middle) * EARTH_M
    up = math.radians(job[0] - me[0]) * EARTH_M
    far = max(math.hypot(across, up), 1.0)
    room_x, room_y = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    px = min(room_x / max(abs(across), 1.0), room_y / max(abs(up), 1.0), 140 / (0.1 * _UNIT_M[unit]))
    x, y = across * px, -up * px
    left, top = (WIDTH - x) / 2, (HEIGHT - y) / 2
    step = max((size for size in _STEPS if size * _UNIT_M[unit] * px <= 120), default=_STEPS[0])
    bar = step * _UNIT_M[unit] * px
    rings = tuple(round(bar * n, 1) for n in range(1, 1 + min(6, math.ceil(far * px / max(bar, 1.0)))))
    bearing = toward = ""
    if far > 30:
        point = round(math.degrees(math.atan2(across, up)) % 360 / 45) % 8
        bearing, toward = _(_BEARINGS[point]), _(_TOWARD[point])
    return Sketch(
        me=(round(left, 1), round(top, 1)),
        job=(round(left + x, 1), round(top + y, 1)),
        rings=rings,
        scale_px=round(bar, 1),
        scale=f"{step:g} {unit}",
        bearing=bearing,
        toward=toward,
    )
