"""Admins edit the daily spending cap and the thresholds of number health; dispatchers see them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.test import Client

from accounts.models import Organization
from dispatch.core.models import Event
from dispatch.telephony.models import ExchangeRate, NumberHealthPolicy, SpendCap
from tests.api.client import Api
from tests.support import factories

pytestmark = pytest.mark.django_db

CAPS, POLICIES = "/admin/telephony/spendcap/", "/admin/telephony/numberhealthpolicy/"
RATES = "/admin/telephony/exchangerate/"
CAP = {"amount": "25.00", "currency": "USD", "warn_percent": "80"}
POLICY = {
    "window_hours": "12", "min_calls": "30", "min_answer_percent": "5", "max_error_percent": "40",
    "max_blocked_percent": "10", "rest_hours": "2",
}  # fmt: skip


@pytest.fixture
def organization() -> Organization:
    return factories.organization()


@pytest.fixture
def admin(organization: Organization) -> Client:
    return factories.browser(factories.admin(organization))


def new(fields: dict[str, str]) -> dict[str, str]:
    """The form's fields with the hidden one, preset with the only organization."""
    return {**fields, "organization": str(Organization.objects.order_by("-pk").values_list("pk", flat=True)[0])}


def test_cap_is_added_raised_and_removed(organization: Organization, admin: Client) -> None:
    assert admin.post(f"{CAPS}add/", new(CAP)).status_code == 302
    cap = SpendCap.objects.get(organization=organization)
    assert (cap.amount, cap.stopped_at) == (Decimal(25), None)
    assert admin.post(f"{CAPS}{cap.pk}/change/", {**CAP, "amount": "0"}).status_code == 302
    assert SpendCap.objects.get().stopped_at is not None
    page = admin.get(f"{CAPS}{cap.pk}/change/").content.decode()
    assert "stopped" in page
    assert admin.post(f"{CAPS}{cap.pk}/change/", {**CAP, "amount": ""}).status_code == 302
    assert (SpendCap.objects.get().amount, SpendCap.objects.get().stopped_at) == (None, None)
    kinds = Event.objects.filter(subject_type="spend_cap").order_by("id").values_list("kind", "actor_type")
    assert list(kinds) == [
        ("spend_cap.added", "user"),
        ("spend_cap.changed", "user"),
        ("spend_cap.reached", "system"),
        ("spend_cap.changed", "user"),
        ("spend_cap.resumed", "user"),
    ]


@pytest.mark.parametrize(
    "wrong", [{"amount": "-1"}, {"currency": "dollars"}, {"currency": "usd"}, {"warn_percent": "0"}]
)
def test_impossible_caps_are_refused(admin: Client, wrong: dict[str, str]) -> None:
    assert admin.post(f"{CAPS}add/", new({**CAP, **wrong})).status_code == 200
    assert not SpendCap.objects.exists()


def test_second_cap_of_an_organization_is_refused(admin: Client) -> None:
    admin.post(f"{CAPS}add/", new(CAP))
    assert admin.post(f"{CAPS}add/", new(CAP)).status_code == 200
    assert SpendCap.objects.count() == 1


def test_dispatcher_sees_the_cap_and_changes_nothing(organization: Organization, admin: Client) -> None:
    admin.post(f"{CAPS}add/", new(CAP))
    cap = SpendCap.objects.get()
    dispatcher = factories.browser(factories.dispatcher(organization))
    assert "25.00" in dispatcher.get(f"{CAPS}{cap.pk}/change/").content.decode()
    assert dispatcher.post(f"{CAPS}{cap.pk}/change/", {**CAP, "amount": "999"}).status_code == 403
    assert SpendCap.objects.get().amount == Decimal(25)


def test_thresholds_are_edited_with_an_event(organization: Organization, admin: Client) -> None:
    assert admin.post(f"{POLICIES}add/", new(POLICY)).status_code == 302
    policy = NumberHealthPolicy.objects.get(organization=organization)
    assert (policy.window_hours, policy.min_calls, policy.rest_hours) == (12, 30, 2)
    assert admin.post(f"{POLICIES}{policy.pk}/change/", {**POLICY, "min_calls": "5"}).status_code == 200, "too few"
    assert admin.post(f"{POLICIES}{policy.pk}/change/", {**POLICY, "min_calls": "60"}).status_code == 302
    assert NumberHealthPolicy.objects.get().min_calls == 60
    kinds = Event.objects.filter(subject_type="number_health").order_by("id").values_list("kind", flat=True)
    assert list(kinds) == ["number_health.added", "number_health.changed"]


def test_admin_page_names_what_the_cap_does_not_count(organization: Organization, admin: Client) -> None:
    cap = SpendCap.objects.create(organization=organization, amount=Decimal(25), other_currencies="0.70 EUR")
    page = admin.get(f"{CAPS}{cap.pk}/change/").content.decode()
    assert "Not counted, because there is no exchange rate into USD: 0.70 EUR." in page


def test_exchange_rate_is_entered_by_an_admin_and_named_on_the_cap(
    organization: Organization, admin: Client
) -> None:
    dispatcher = factories.browser(factories.dispatcher(organization, "Dora"))
    cap = SpendCap.objects.create(organization=organization, amount=Decimal(25))
    rate = {"from_currency": "EUR", "to_currency": "USD", "rate": "1.08", "as_of": "2026-01-02"}
    assert admin.post(f"{RATES}add/", new({**rate, "from_currency": "USD"})).status_code == 200, (
        "the same currency"
    )
    assert admin.post(f"{RATES}add/", new({**rate, "rate": "0"})).status_code == 200
    assert admin.post(f"{RATES}add/", new(rate)).status_code == 302
    row = ExchangeRate.objects.get(organization=organization)
    assert "Counted with: 1 EUR = 1.08 USD (2026-01-02, old)." in page_of(admin, cap)
    assert dispatcher.get(RATES).status_code == 200
    assert dispatcher.post(f"{RATES}{row.pk}/change/", {**rate, "rate": "2"}).status_code == 403
    assert admin.post(f"{RATES}{row.pk}/change/", {**rate, "rate": "1.10"}).status_code == 302
    assert admin.post(f"{RATES}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not ExchangeRate.objects.exists()
    assert "Counted with" not in page_of(admin, cap)


def page_of(browser: Client, cap: SpendCap) -> str:
    return browser.get(f"{CAPS}{cap.pk}/change/").content.decode()


# --- the API ----------------------------------------------------------------------------------------------------


def test_api_reads_adds_changes_and_removes_the_cap(organization: Organization) -> None:
    api = Api(user=factories.admin(organization))
    assert api.get("spend-cap/").json() == {
        "amount": None, "currency": "USD", "warn_percent": 80, "day": None, "spent": "0.000000",
        "not_counted": [], "is_stopped": False,
    }  # fmt: skip
    added = api.patch("spend-cap/", {"amount": "25.00"})
    assert (added.status_code, added.json()["amount"]) == (200, "25.00")
    stopped = api.patch("spend-cap/", {"amount": "0", "warn_percent": 50}).json()
    assert (stopped["is_stopped"], stopped["warn_percent"]) == (True, 50)
    assert api.patch("spend-cap/", {"amount": None}).json()["is_stopped"] is False
    kinds = Event.objects.filter(subject_type="spend_cap").order_by("id").values_list("kind", "actor_type")
    assert list(kinds)[:3] == [
        ("spend_cap.added", "user"), ("spend_cap.changed", "user"), ("spend_cap.reached", "system")
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [{"amount": "-1"}, {"currency": "usd"}, {"warn_percent": 0}, {"limit": "1"}])
def test_api_refuses_impossible_caps(organization: Organization, wrong: dict[str, str]) -> None:
    api = Api(user=factories.admin(organization))
    assert api.patch("spend-cap/", wrong).status_code == 400
    assert not SpendCap.objects.exists()


def test_only_those_who_manage_change_the_cap(organization: Organization) -> None:
    other = SpendCap.objects.create(organization=factories.organization(), amount=Decimal(7))
    api = Api(user=factories.dispatcher(organization))
    assert api.get("spend-cap/").json()["amount"] is None
    assert api.patch("spend-cap/", {"amount": "999"}).status_code == 403
    assert SpendCap.objects.get() == other
