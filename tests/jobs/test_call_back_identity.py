"""What a caller with a technician's number hears: customer data only with attestation A, or with the PIN."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from dispatch.core import clock
from dispatch.jobs.models import Offer
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import MAX_PIN_FAILURES, PIN_LOCK
from dispatch.telephony.models import InboundCall
from tests.api.client import Api
from tests.harness.call_back import CallBack
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_answer_channels import page_of, post, texting  # noqa: F401
from tests.phones import answer, ignore
from tests.support import factories


def assigned(floor: Floor) -> Technician:
    ann = floor.technician("Ann")
    floor.phone(ann).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    return ann


def test_attested_caller_hears_the_customer(texting: Floor) -> None:  # noqa: F811
    ann = assigned(texting)
    call = texting.phone(ann).calls_us(str(texting.number.phone))
    call.hears("Dana Whitfield").hears("Washington")
    row = InboundCall.objects.get()
    assert row.attestation == "TN-Validation-Passed-A"


@pytest.mark.parametrize("attestation", ["B", "C", "failed", "none"])
def test_forged_caller_hears_no_customer_data(texting: Floor, attestation: str) -> None:  # noqa: F811
    ann = assigned(texting)
    call = texting.phone(ann).calls_us(str(texting.number.phone), attestation=attestation)
    call.hears("You have 1 open job").hears("We can't verify your number").ended()
    for secret in ("Dana", "Whitfield", "Washington", "6 0 2", "5 5 5"):
        call.has_not_heard(secret)
    assert InboundCall.objects.get().attestation != "TN-Validation-Passed-A"


def test_forged_caller_can_accept_but_hears_no_customer_data(texting: Floor) -> None:  # noqa: F811
    ann = texting.technician("Ann")
    texting.phone(ann).will(ignore())
    job = texting.started()
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    call = texting.phone(ann).calls_us(str(texting.number.phone), press="1", attestation="none")
    call.hears("Water heater repair").hears("the job is yours").hears("We'll text you the address").ended()
    call.has_not_heard("Washington").has_not_heard("Dana")
    assert texting.job(job).technician == ann


def test_pin_opens_the_customer_data(texting: Floor) -> None:  # noqa: F811
    ann = assigned(texting)
    technicians.set_pin(ann.pk, "4826", actor=MARIA)
    call = texting.phone(ann).calls_us(str(texting.number.phone), attestation="none")
    call.hears("You have 1 open job").hears("Enter your PIN").has_not_heard("Dana")
    for key in "4826#":
        call.press(key)
    call.hears("Dana Whitfield").hears("Washington").hang_up()
    row = InboundCall.objects.get()
    assert "4826" not in row.keys_pressed
    assert row.verified_at


def test_pin_of_a_technician_deactivated_during_the_call_opens_nothing(texting: Floor) -> None:  # noqa: F811
    ann = texting.technician("Ann")
    texting.phone(ann).will(ignore())
    job = texting.started()
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    technicians.set_pin(ann.pk, "4826", actor=MARIA)
    call = CallBack(texting, str(ann.phone), attestation="")
    call.hears("Water heater repair").press("1").hears("the job is yours").press("3").hears("Enter your PIN")
    technicians.change_technician(ann.pk, {"is_active": False}, open_jobs=technicians.KEEP, actor=MARIA)
    call.press("4826").hears("Goodbye").has_not_heard("Dana").has_not_heard("Washington")
    assert texting.job(job).technician == ann, "a dispatcher decides who takes it over"
    assert InboundCall.objects.get().verified_at is None


def test_wrong_pins_are_counted_and_lock(texting: Floor) -> None:  # noqa: F811
    ann = assigned(texting)
    technicians.set_pin(ann.pk, "4826", actor=MARIA)
    for _ in range(MAX_PIN_FAILURES):
        assert not technicians.check_pin(ann.pk, "0000")
    call = texting.phone(ann).calls_us(str(texting.number.phone), attestation="none")
    call.hears("too many wrong PINs").ended()
    call.has_not_heard("Dana")
    clock.travel(PIN_LOCK.total_seconds() + 1)
    assert technicians.check_pin(ann.pk, "4826")


def test_technician_sets_a_pin_on_their_page(texting: Floor) -> None:  # noqa: F811
    ann = texting.technician("Ann")
    url = page_of(ann)
    assert "Your PIN is set" in post(url, do="pin", pin="4826").text
    ann.refresh_from_db()
    assert ann.pin_hash
    assert "4826" not in ann.pin_hash
    assert technicians.check_pin(ann.pk, "4826")
    for wrong in ("12", "abcd", "123456789", "1111", "1234", ""):
        assert post(url, do="pin", pin=wrong).status_code == 409
    assert technicians.check_pin(ann.pk, "4826")


@pytest.mark.django_db
def test_admin_and_api_set_a_pin_and_never_show_it() -> None:
    organization = factories.organization()
    ann = factories.technician(organization, "Ann")
    boss = factories.admin(organization)
    api = Api(user=boss)
    assert api.get(f"technicians/{ann.pk}/").json()["has_pin"] is False
    answer = api.patch(f"technicians/{ann.pk}/", {"pin": "4826"})
    assert answer.status_code == 200, answer.content
    assert answer.json()["has_pin"] is True
    assert "pin" not in answer.json()
    assert api.patch(f"technicians/{ann.pk}/", {"pin": "1234"}).status_code == 400
    assert technicians.check_pin(ann.pk, "4826")
    client = Client()
    client.force_login(boss, backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("admin:technicians_technician_change", args=[ann.pk])
    page = client.get(address).content.decode()
    assert "A PIN is set" in page
    assert "4826" not in page
    assert ann.pin_hash not in page or not ann.pin_hash
    assert api.patch(f"technicians/{ann.pk}/", {"pin": ""}).json()["has_pin"] is False
