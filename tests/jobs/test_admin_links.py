"""How a technician gets the link to their page from a person in the admin."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dispatch.capacity.models import OutboundNumber
from dispatch.core.models import Event
from dispatch.jobs import signed_links
from dispatch.technicians.models import Technician
from dispatch.telephony.models import OptOut, Text
from tests.support import factories

pytestmark = pytest.mark.django_db
LIST = "admin:technicians_technician_changelist"


@pytest.fixture
def crew() -> list[Technician]:
    organization = factories.organization("Desert Air")
    factories.number(organization, sends_texts=True)
    return [factories.technician(organization, name) for name in ("Ann", "Bob")]


def signed_in(person: Any) -> Client:
    client = Client()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


def send(client: Client, crew: list[Technician]) -> str:
    data = {"action": "send_links", "_selected_action": [one.pk for one in crew], "confirmed": 1}
    return client.post(reverse(LIST), data, follow=True).content.decode()


def test_a_dispatcher_texts_the_link_and_who_opted_out_is_named(crew: list[Technician]) -> None:
    ann, bob = crew
    OptOut.objects.create(organization=bob.organization, phone=bob.phone)
    told = send(signed_in(factories.dispatcher(ann.organization, "Dana")), crew)
    assert "Texting the link to 1 technician" in told
    assert "Bob was not texted: opted out of texts" in told
    text = Text.objects.get()
    assert (text.to_phone, text.purpose) == (ann.phone, "link")
    token = re.search(r"/t/([^/]+)/", text.body)
    assert token
    assert signed_links.technician_of(token[1]) == ann
    assert Event.objects.get(kind="text.created").actor_label == "Dana"
    send(signed_in(factories.dispatcher(ann.organization)), [ann])
    assert Text.objects.count() == 2


def test_missing_texting_number_is_explained(crew: list[Technician]) -> None:
    OutboundNumber.objects.update(sends_texts=False)
    told = send(signed_in(factories.dispatcher(crew[0].organization)), crew)
    assert "No number may send texts. Turn on texts for a number first." in told
    assert not Text.objects.exists()


def test_another_organization_gets_none_of_them(crew: list[Technician]) -> None:
    stranger = factories.organization("Elsewhere")
    factories.number(stranger, sends_texts=True)
    send(signed_in(factories.admin(stranger)), crew)
    assert not Text.objects.exists()


def test_a_link_is_shown_and_voided(crew: list[Technician]) -> None:
    ann = crew[0]
    client = signed_in(factories.dispatcher(ann.organization, "Dana"))

    def act(name: str) -> Any:
        return client.post(
            reverse(f"admin:technicians_technician_{name}", args=[ann.pk]), {"_form_submitted": "1"}
        )

    found = re.search(r"/t/([^/]+)/", act("show_link").content.decode())
    assert found
    assert signed_links.technician_of(found[1]) == ann
    act("void_links")
    with pytest.raises(signed_links.InvalidLink):
        signed_links.technician_of(found[1])
    assert Event.objects.get(kind="technician.links_voided").actor_label == "Dana"
