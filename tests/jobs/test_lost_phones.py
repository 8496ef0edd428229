"""After links are revoked or a phone changes, nothing in the former phone reaches the technician's jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from django.test import Client

from dispatch.core import clock
from dispatch.jobs import signed_links
from dispatch.jobs.models import Offer
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_technician_notices import assigned_to
from tests.support import factories

Loss = Callable[[Technician], None]


def revoke(technician: Technician) -> None:
    technicians.void_links(technician.pk, actor=MARIA)


def change_phone(technician: Technician) -> None:
    technicians.change_technician(technician.pk, {"phone": factories.phone()}, actor=MARIA)


@pytest.fixture(params=[revoke, change_phone], ids=["links revoked", "phone changed"])
def lose_phone(request: pytest.FixtureRequest) -> Loss:
    chosen: Loss = request.param
    return chosen


def path_of_offer(offer: Offer) -> str:
    """Return the path of the offer's page as the technician's phone has it now."""
    return urlsplit(signed_links.offer_url(Offer.objects.get(pk=offer.pk))).path


def earlier_path_of(offer: Offer) -> str:
    """Return the path of the offer's page in a text of a release whose links name no version."""
    token = signed_links.sign_token("offer", [offer.pk, offer.technician_id], signed_links.OFFER_LINK)
    return f"/o/{token}/"


# --- Links of offers ---------------------------------------------------------------------------------------------
def test_link_of_an_accepted_offer_opens_nothing_in_a_lost_phone(floor: Floor, lose_phone: Loss) -> None:
    (ann,) = floor.crew("Ann")
    assigned_to(floor, ann)
    path = path_of_offer(Offer.objects.get())
    page = Client().get(path).content.decode()
    assert "Dana Whitfield" in page
    (own_page,) = re.findall(r"/t/[^\"]+", page)
    assert Client().get(own_page).status_code == 200
    lose_phone(ann)
    gone = Client().get(path)
    assert gone.status_code == 404
    assert "Dana" not in gone.content.decode()
    assert Client().get(path_of_offer(Offer.objects.get())).status_code == 200, "a link of now is valid"


def test_lost_phone_answers_no_offer(floor: Floor, lose_phone: Loss) -> None:
    (ann,) = floor.crew("Ann")
    job = floor.started()
    path = path_of_offer(floor.live_offer(job))
    lose_phone(ann)
    assert Client().post(path, {"answer": "accept"}).status_code == 404
    assert floor.status(job) == "dispatching"


def test_link_of_an_earlier_release_is_valid_until_the_first_revocation(floor: Floor, lose_phone: Loss) -> None:
    (ann,) = floor.crew("Ann")
    job = floor.started()
    path = earlier_path_of(floor.live_offer(job))
    assert Client().get(path).status_code == 200
    lose_phone(ann)
    assert Client().get(path).status_code == 404


def test_links_of_offers_still_expire_after_a_day(floor: Floor) -> None:
    floor.crew("Ann")
    offer = floor.live_offer(floor.started())
    paths = [path_of_offer(offer), earlier_path_of(offer)]
    clock.travel(25 * 3600)
    assert [Client().get(path).status_code for path in paths] == [410, 410]
