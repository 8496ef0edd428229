"""The grid covers every circle wholly, everywhere on Earth, with few ranges of the index."""

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatch.technicians.h3_cells import EARTH_RADIUS_M, cell_of, distance_m, spans_around


def there(lat, lng, metres, bearing):
    """The position `metres` away in this direction (degrees), on a sphere."""
    a, b, arc = math.radians(lat), math.radians(bearing), metres / EARTH_RADIUS_M
    north = math.asin(max(-1, min(1, math.sin(a) * math.cos(arc) + math.cos(a) * math.sin(arc) * math.cos(b))))
    east = math.atan2(math.sin(b) * math.sin(arc) * math.cos(a), math.cos(arc) - math.sin(a) * math.sin(north))
    return math.degrees(north), (lng + math.degrees(east) + 540) % 360 - 180


@given(
    st.floats(-90, 90),
    st.floats(-180, 180),
    st.sampled_from([100, 3_000, 10_000, 25_000, 50_000, 80_000, 160_000, 500_000]),
    st.floats(0, 360),
)
@settings(max_examples=400, deadline=None)
@example(58.157705844, 11.545294975, 50_000, 90)  # beside one of the grid's pentagons
@example(89.99, 10, 50_000, 180)
@example(-16.5, 179.999, 50_000, 90)
def test_nobody_within_the_radius_is_missed(lat, lng, radius_m, bearing):
    spans = spans_around(lat, lng, radius_m)
    for share in (0, 0.5, 0.999999):
        cell = cell_of(*there(lat, lng, radius_m * share, bearing))
        assert any(low <= cell <= high for low, high in spans)


@pytest.mark.parametrize("radius_m", [100, 10_000, 50_000, 100_000, 500_000])
def test_a_circle_takes_few_ranges_in_order_and_apart(radius_m):
    spans = spans_around(33.4484, -112.0740, radius_m)
    assert 1 <= len(spans) <= 60
    assert all(low <= high for low, high in spans)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


def test_the_cover_leaves_the_rest_of_the_world_out():
    spans = spans_around(33.4484, -112.0740, 50_000)
    for far in ((32.2226, -110.9747), (36.17, -115.14), (-33.4, 68.0)):
        assert not any(low <= cell_of(*far) <= high for low, high in spans)


def test_distances_are_those_of_the_sphere():
    assert distance_m(0, 0, 0, 90) == pytest.approx(EARTH_RADIUS_M * math.pi / 2)
    assert distance_m(0, 179.5, 0, -179.5) == pytest.approx(111_195, rel=1e-4)
    assert distance_m(10, 20, -10, -160) == pytest.approx(EARTH_RADIUS_M * math.pi)
