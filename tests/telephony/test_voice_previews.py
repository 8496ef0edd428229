"""Admins see and hear the voice that they chose: the page of the preview, and the call to their own phone."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import Organization, User
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.leads.models import Campaign
from dispatch.telephony import number_check_calls, voice_previews
from dispatch.telephony.models import Call
from tests.api.client import Api
from tests.harness.calls import place_call
from tests.support import factories
from tests.support.factories import browser
from tests.telephony.conftest import Caller, now_is

PHONE = "+16025550199"


@pytest.fixture
def boss(caller: Caller) -> Client:
    number_check_calls.register()
    person = factories.admin(caller.organization, "Boss")
    User.objects.filter(pk=person.pk).update(phone=PHONE)
    return browser(User.objects.get(pk=person.pk))


def address(row: Any, action: str = "preview_voice") -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{action}", args=[row.pk])


def campaign(caller: Caller, **fields: Any) -> Campaign:
    return Campaign.objects.create(
        organization=caller.organization, pool=caller.pool, code="fall", name="Fall", **fields
    )


def hears(caller: Caller) -> Any:
    """The phone of the admin answers the call that was just made."""
    place_call(Call.objects.latest("pk").pk)
    return caller.sim.phone(PHONE).rings().answer()


def test_admin_sees_and_hears_the_technicians_voice(caller: Caller, boss: Client) -> None:
    ana = factories.technician(caller.organization, "Ana", language="es", voice="Polly.Mia-Neural")
    assert address(ana) in boss.get(address(ana, "change")).content.decode()
    page = boss.get(address(ana)).content.decode()
    assert "Mia, Mexican Spanish (Amazon)" in page
    assert "A unas 3 millas de usted." in page
    assert "&lt;lang xml:lang=&quot;en-US&quot;&gt;W Washington St&lt;/lang&gt;" in page
    assert not Call.objects.exists()

    answer = boss.post(address(ana), follow=True)

    assert "Calling (602) 555-0199." in answer.content.decode()
    call = (
        hears(caller).hears("Esta es una muestra.").hears("Su número es 6 0 2, 5 5 5, 0 1 2 3.").ended("completed")
    )
    assert {(words["voice"], words["language"]) for words in call.now["said"]} == {("Polly.Mia-Neural", "es-MX")}
    row = now_is(Call.objects.get(), "completed")
    assert (row.purpose, str(row.to_phone), row.number) == ("test", PHONE, caller.number)


def test_admin_hears_the_organizations_voice_as_it_is_when_the_call_is_answered(
    caller: Caller, boss: Client
) -> None:
    boss.post(address(caller.organization))
    Organization.objects.update(language="es", voice="Polly.Pedro-Neural")
    call = hears(caller).hears("Esta es una muestra.").ended()
    assert {words["voice"] for words in call.now["said"]} == {"Polly.Pedro-Neural"}


def test_admin_hears_the_script_of_a_campaign(caller: Caller, boss: Client) -> None:
    fall = campaign(caller, script="Hola, {name}.\nOprima 1.", language="es")
    assert "Lupe, US Spanish (Amazon)" in boss.get(address(fall)).content.decode()
    boss.post(address(fall))
    call = hears(caller).hears("Esta es una muestra de una campaña.").hears("Hola, name.").hears("Oprima 1.")
    call.press("9").hears("No le volveremos a llamar.").ended()


def test_preview_is_for_admins_of_the_organization_only(caller: Caller) -> None:
    ana = factories.technician(caller.organization, "Ana")
    stranger = factories.admin(factories.organization())
    for row in (ana, caller.organization, campaign(caller)):
        for person in (factories.dispatcher(caller.organization), stranger):
            User.objects.filter(pk=person.pk).update(phone=PHONE)
            client = browser(User.objects.get(pk=person.pk))
            assert client.post(address(row)).status_code in (403, 404)
            assert client.get(address(row)).status_code in (403, 404)
    assert not Call.objects.exists()


def test_preview_without_a_token_of_the_form_places_no_call(caller: Caller) -> None:
    person = factories.admin(caller.organization)
    User.objects.filter(pk=person.pk).update(phone=PHONE)
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(pk=person.pk), backend="django.contrib.auth.backends.ModelBackend")
    assert client.post(address(caller.organization)).status_code == 403
    assert not Call.objects.exists()


def test_preview_calls_go_to_one_phone_at_most_so_often_an_hour(
    caller: Caller, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voice_previews, "MOST_PER_HOUR", 2)
    for _ in range(2):
        boss.post(address(caller.organization))
        hears(caller).hears("preview").ended()
        now_is(Call.objects.latest("pk"), "completed")
    answer = boss.post(address(caller.organization), follow=True)
    assert "Your phone had 2 test calls within an hour." in answer.content.decode()
    clock.travel(3601)
    assert "Calling" in boss.post(address(caller.organization), follow=True).content.decode()
    assert Call.objects.count() == 3


def test_preview_says_what_is_missing(caller: Caller, boss: Client) -> None:
    without = browser(factories.admin(caller.organization))
    assert "Your account has no phone number." in without.get(address(caller.organization)).content.decode()
    assert without.post(address(caller.organization)).status_code == 200
    OutboundNumber.objects.update(is_paused=True)
    page = boss.get(address(caller.organization)).content.decode()
    assert "No number of this organization can place calls." in page
    assert "About 3 miles from you." in page
    assert not Call.objects.exists()


# --- the choice


def organization_form(caller: Caller, **fields: Any) -> dict[str, Any]:
    row = Organization.objects.get(pk=caller.organization.pk)
    names = ("name", "time_zone", "default_region", "distance_unit", "language", "voice")
    return {**{name: getattr(row, name) for name in names}, "allowed_countries": "US,CA", **fields}


def test_admin_chooses_language_and_voice_of_the_organization(caller: Caller, boss: Client) -> None:
    change = address(caller.organization, "change")
    refused = boss.post(change, organization_form(caller, language="es"))
    assert "This voice doesn&#x27;t speak Spanish. Choose Lupe" in refused.content.decode()
    assert (
        boss.post(change, organization_form(caller, language="es", voice="Polly.Lupe-Neural")).status_code == 302
    )
    row = Organization.objects.get(pk=caller.organization.pk)
    assert (row.language, row.voice) == ("es", "Polly.Lupe-Neural")


@pytest.mark.parametrize(
    ("choice", "status"),
    [
        ({"language": "es", "voice": "Polly.Lupe-Neural"}, 200),
        ({"language": "es", "voice": ""}, 200),
        ({"language": "", "voice": "Polly.Amy-Neural"}, 200),
        ({"language": "es", "voice": "Polly.Amy-Neural"}, 400),
        ({"voice": "Polly.Lupe-Neural"}, 400),
        ({"voice": "alice"}, 400),
        ({"language": "fr"}, 400),
    ],
)
def test_api_accepts_a_voice_that_speaks_the_language(caller: Caller, choice: dict[str, str], status: int) -> None:
    api = Api(key=factories.api_key(caller.organization, "read", "manage"))
    ana, fall = factories.technician(caller.organization, "Ana"), campaign(caller, script="Hello.")
    for path in (f"technicians/{ana.pk}/", f"campaigns/{fall.pk}/"):
        answer = api.patch(path, choice)
        assert answer.status_code == status, answer.content
        if status == 200:
            assert {name: answer.json()[name] for name in choice} == choice
