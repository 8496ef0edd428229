"""Phone numbers in the admin's forms: shown and accepted as in the console, and stored in E.164."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import Membership, Organization, User
from dispatch.leads.models import DoNotCall
from dispatch.technicians.models import Technician
from tests.support import factories as make

pytestmark = pytest.mark.django_db
ENTERED = ("(602) 255-0101", "602-255-0101", "+1 602 255 0101", "+16022550101")


@pytest.fixture
def phoenix() -> Organization:
    return make.organization("Desert Air")


@pytest.fixture
def london() -> Organization:
    return make.organization("Thames Heating", default_region="GB")


def signed_in(person: User) -> Client:
    client = Client()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


def shown(client: Client, page: str, row: Any, name: str = "phone") -> str:
    """Return the value of the input on the row's page."""
    html = client.get(reverse(f"admin:{page}_change", args=[row.pk])).content.decode()
    (tag,) = re.findall(rf'<input[^>]*name="{name}"[^>]*>', html)
    assert 'type="tel"' in tag
    return re.search(r'value="([^"]*)"', tag)[1]


def technician_form(**changes: Any) -> dict[str, Any]:
    counts = {"TOTAL": 0, "INITIAL": 0, "MIN_NUM": 0, "MAX_NUM": 1000}
    shifts = {f"shifts-{name}_FORMS": count for name, count in counts.items()}
    row = {"name": "Ana", "lat": 33.45, "lng": -112.07, "max_open_jobs": 2, "is_active": "on"}
    return {**shifts, **row, **changes}


def test_inputs_show_numbers_as_people_of_the_region_write_them(phoenix, london):
    client = signed_in(make.admin(phoenix))
    page = "technicians_technician"
    assert shown(client, page, make.technician(phoenix, phone="+16022550101")) == "(602) 255-0101"
    assert shown(client, page, make.technician(phoenix, phone="+442079460958")) == "+442079460958"
    british = make.technician(london, phone="+442079460958")
    assert shown(signed_in(make.admin(london)), page, british) == "020 7946 0958"
    assert shown(signed_in(make.user(is_superuser=True)), page, british) == "020 7946 0958"


@pytest.mark.parametrize("entered", ENTERED)
def test_each_way_to_write_a_number_is_stored_as_e164(phoenix, entered):
    client = signed_in(make.admin(phoenix))
    row = technician_form(organization=phoenix.pk, phone=entered)
    answer = client.post(reverse("admin:technicians_technician_add"), row)
    assert answer.status_code == 302, answer.context["errors"]
    assert Technician.objects.values_list("phone", flat=True).get().as_e164 == "+16022550101"
    invited = {"organization": phoenix.pk, "email": "kim@example.com", "name": "Kim", "role": "admin"}
    answer = client.post(reverse("admin:accounts_membership_add"), {**invited, "phone": entered})
    assert answer.status_code == 200, "the page with the invitation's link"
    assert Membership.objects.get(user__email="kim@example.com").invited_phone.as_e164 == "+16022550101"


def test_unchanged_number_is_no_change(phoenix):
    technician = make.technician(phoenix, "Ana", phone="+16022550101")
    client = signed_in(make.admin(phoenix))
    address = reverse("admin:technicians_technician_change", args=[technician.pk])
    form = client.get(address).context["adminform"].form
    bound = type(form)({"phone": "(602) 255-0101"}, instance=technician)
    assert "phone" not in bound.changed_data


def test_admin_of_two_organizations_writes_numbers_of_the_one_they_choose(phoenix, london):
    person = make.admin(phoenix)
    Membership.objects.create(organization=london, user=person, role="admin")
    client = signed_in(person)
    add = reverse("admin:technicians_technician_add")
    answer = client.post(add, technician_form(organization=london.pk, phone="020 7946 0958"))
    assert answer.status_code == 302, answer.context["errors"]
    assert Technician.objects.get().phone.as_e164 == "+442079460958"
    refused = client.post(add, technician_form(organization=phoenix.pk, phone="020 7946 0958"))
    assert "Enter a valid phone number, such as (201) 555-0123, or with + and its country code." in str(
        refused.context["errors"]
    )


def test_error_says_what_to_enter_and_keeps_the_text(phoenix):
    client = signed_in(make.admin(phoenix))
    for entered in ("555-01", "call me", "(602) 555-012"):
        answer = client.post(
            reverse("admin:leads_donotcall_add"), {"organization": phoenix.pk, "phone": entered, "note": ""}
        )
        page = answer.content.decode()
        assert "Enter a valid phone number, such as (201) 555-0123, or with + and its country code." in page
        assert f'value="{entered}"' in page
    assert not DoNotCall.objects.exists()


def test_phone_of_a_user_is_read_in_the_region_of_the_admins_organization(london):
    admin, member = make.admin(london), make.dispatcher(london, "Kim")
    client = signed_in(admin)
    address = reverse("admin:accounts_user_change", args=[member.pk])
    answer = client.post(
        address, {"name": "Kim", "phone": "020 7946 0958", "_continue": "1", **_no_rows(client, address)}
    )
    assert answer.status_code == 302, answer.context["errors"]
    member.refresh_from_db()
    assert member.phone.as_e164 == "+442079460958"
    assert shown(client, "accounts_user", member) == "020 7946 0958"


def test_number_as_a_list_shows_it_is_found(phoenix):
    make.technician(phoenix, "Ana", phone="+16022550101")
    make.technician(phoenix, "Bob", phone="+16022550102")
    client = signed_in(make.admin(phoenix))
    for text in ENTERED:
        rows = (
            client.get(reverse("admin:technicians_technician_changelist"), {"q": text}).context["cl"].result_list
        )
        assert [row.name for row in rows] == ["Ana"]


def _no_rows(client: Client, address: str) -> dict[str, str]:
    """Return the management fields of the page's inlines."""
    html = client.get(address).content.decode()
    found: dict[str, str] = {}
    for tag in re.findall(r'<input[^>]*_FORMS"[^>]*>', html):
        found[re.search(r'name="([^"]*)"', tag)[1]] = re.search(r'value="([^"]*)"', tag)[1]
    for tag in re.findall(r'<input[^>]*name="[^"]*-0-(?:id|user)"[^>]*>', html):
        found[re.search(r'name="([^"]*)"', tag)[1]] = re.search(r'value="([^"]*)"', tag)[1]
    return found
