"""The sketch on an offer's page: both points inside the box, to scale, pointing the right way."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.jobs.public.sketch_map import HEIGHT, MARGIN, WIDTH, draw_sketch
from dispatch.jobs.rules import phrases

PHOENIX = (33.4484, -112.0740)


@given(
    st.floats(-80, 80), st.floats(-180, 180), st.floats(-1.5, 1.5), st.floats(-1.5, 1.5),
    st.sampled_from(["mi", "km"]),
)  # fmt: skip
def test_both_points_are_inside_whatever_the_distance(lat, lng, up, across, unit):
    made = draw_sketch((lat, lng), (lat + up, (lng + across + 540) % 360 - 180), unit)
    for x, y in (made.me, made.job):
        assert MARGIN - 0.2 <= x <= WIDTH - MARGIN + 0.2
        assert MARGIN - 0.2 <= y <= HEIGHT - MARGIN + 0.2
    assert made.scale_px > 0
    assert len(made.rings) <= 6


@pytest.mark.parametrize(
    ("up", "across", "bearing"),
    [(0.1, 0, "north"), (0.1, 0.12, "northeast"), (0, -0.1, "west"), (-0.1, 0, "south"), (0, 0, "")],
)
def test_the_bearing_is_seen_from_the_technician(up, across, bearing):
    assert draw_sketch(PHOENIX, (PHOENIX[0] + up, PHOENIX[1] + across), "mi").bearing == bearing


def test_the_scale_is_true():
    made = draw_sketch(PHOENIX, (PHOENIX[0] + 0.1, PHOENIX[1]), "km")  # 11.1 km
    length = math.dist(made.me, made.job)
    assert made.scale.endswith(" km")
    km = float(made.scale.removesuffix(" km"))
    assert length / made.scale_px * km == pytest.approx(11.1, abs=0.2)


@pytest.mark.parametrize(
    ("body", "key"),
    [("1", "1"), (" 1. ", "1"), ("Yes!", "1"), ("2", "2"), ("no", "2"), ("12", ""), ("1 or 2?", ""), ("", "")],
)
def test_text_replies_are_parsed(body, key):
    assert phrases.key_in(body) == key


def test_an_offer_in_one_text_stays_short():
    told = phrases.PromptContext(
        "Water heater repair", 1, "1 " + "Very Long Street Name " * 20, 5000, "mi", "", ""
    )
    text = phrases.offer_text("Desert Air & Plumbing", told, "https://d.example/o/" + "x" * 70 + "/")
    assert len(text) < 320
    assert "Emergency. Water heater repair" in text
