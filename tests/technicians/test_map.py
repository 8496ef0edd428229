"""The ground of the map beside a technician's position."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db
MAP = "admin:technicians_technician_map"


def centre(answer) -> tuple[float, float]:
    found = re.search(r'data-lat="(\S+)" data-lng="(\S+)"', answer.content.decode())
    return round(float(found[1]), 2), round(float(found[2]), 2)


def test_map_is_centered_on_the_request_with_names_and_a_scale():
    client = browser(make.admin(make.organization(distance_unit="km")))
    answer = client.get(reverse(MAP), {"lat": 33.45, "lng": -112.07, "reach": 40_000})
    assert centre(answer) == (33.45, -112.07)
    assert "Phoenix" in answer.content.decode()
    assert " km</text>" in answer.content.decode()


@pytest.mark.parametrize("asked", [{}, {"lat": "nan", "lng": "1"}, {"lat": "91", "lng": "0"}])
def test_without_a_position_it_is_drawn_about_ones_own_technicians(asked):
    organization = make.organization()
    make.technician(organization, at=make.PHOENIX)
    make.technician(make.organization(), at=make.TUCSON)
    assert centre(browser(make.admin(organization)).get(reverse(MAP), asked)) == (33.45, -112.07)


def test_without_technicians_it_shows_the_country():
    assert centre(browser(make.admin(make.organization())).get(reverse(MAP))) == (39.8, -98.6)


def test_map_requires_sign_in():
    assert Client().get(reverse(MAP)).status_code == 302
    assert browser(make.user()).get(reverse(MAP)).status_code in (302, 403)
