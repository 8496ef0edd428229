"""A switch that another person sets while a page of the admin is open stays, whatever else that page changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import Model

from accounts import services
from accounts.models import IdentityProvider, Organization, User
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.jobs.models import CustomerTextPolicy, PublicForm
from dispatch.outbox.models import EventType
from notifications.models import EscalationPolicy, Route
from tests.support import factories as make
from tests.support.admin_forms import open_form, send_form
from tests.support.factories import browser

pytestmark = pytest.mark.django_db


def organization_row(organization: Organization) -> Organization:
    return organization


def provider(organization: Organization) -> IdentityProvider:
    return IdentityProvider.objects.create(
        organization=organization, issuer="https://login.acme.example", client_id="dispatch", client_secret="s",
        allowed_domains=["acme.example"], tried_at=clock.now(), break_glass=make.admin(organization),
    )  # fmt: skip


def customer_texts(organization: Organization) -> CustomerTextPolicy:
    return CustomerTextPolicy.objects.create(organization=organization)


def public_form(organization: Organization) -> PublicForm:
    return PublicForm.objects.create(organization=organization)


def event_type(organization: Organization) -> EventType:
    return EventType.objects.create(organization=organization, name="invoice.paid")


def rule(organization: Organization) -> Route:
    return Route.objects.create(organization=organization, kind="job.pending")


def plan(organization: Organization) -> EscalationPolicy:
    return EscalationPolicy.objects.create(organization=organization)


def test_page_from_before_a_reactivation_keeps_the_keys_of_the_user() -> None:
    organization = make.organization("Ours")
    pam = make.admin(organization, "Pam")
    User.objects.filter(pk=pam.pk).update(is_active=False)
    pam.refresh_from_db()
    root = browser(make.user("Root", is_superuser=True))
    form = open_form(root, pam)
    User.objects.filter(pk=pam.pk).update(is_active=True)
    key, _ = services.create_api_key(organization, "Website", ["read"], actor=SYSTEM, created_by=pam)
    send_form(root, pam, {**form, "name": "Pam W."})
    key.refresh_from_db()
    assert (pam.name, pam.is_active, key.revoked_at) == ("Pam W.", True, None)
    form = open_form(root, pam)
    form.pop("is_active")
    send_form(root, pam, form)
    key.refresh_from_db()
    assert key.revoked_at is not None


@pytest.mark.parametrize(
    ("create", "switch", "other", "value"),
    [
        (organization_row, "requires_second_factor", "name", "Renamed"),
        (organization_row, "is_active", "name", "Renamed"),
        (provider, "is_active", "acr_values", "high"),
        (provider, "is_required", "acr_values", "high"),
        (make.service_type, "is_active", "name", "Renamed"),
        (customer_texts, "sends_received", "sender_name", "Acme"),
        (public_form, "is_on", "heading", "Welcome"),
        (make.pool, "is_default", "name", "Renamed"),
        (make.number, "sends_texts", "name", "Renamed"),
        (event_type, "is_enforced", "description", "An invoice was paid."),
        (rule, "is_on", "to", "admins"),
        (plan, "push_shows_details", "repeat_s", 240),
    ],
)
def test_open_page_keeps_a_switch_that_another_person_set(
    create: Callable[[Any], Model], switch: str, other: str, value: Any
) -> None:
    row = create(make.organization("Ours"))
    root = browser(make.user("Root", is_superuser=True))
    form, before = open_form(root, row), getattr(row, switch)
    type(row)._default_manager.filter(pk=row.pk).update(**{switch: not before})
    send_form(root, row, {**form, other: value})
    assert (getattr(row, switch), getattr(row, other)) == (not before, value)
    form = open_form(root, row)
    form.pop(switch, None)
    send_form(root, row, form if not before else {**form, switch: "on"})
    assert getattr(row, switch) is before, "the page itself sets the switch"


def test_open_page_keeps_the_second_factor_that_another_person_chose() -> None:
    row = provider(make.organization("Ours"))
    root = browser(make.user("Root", is_superuser=True))
    form = open_form(root, row)
    (chosen, *_) = (value for value in IdentityProvider.SecondFactor.values if value != row.second_factor)
    IdentityProvider.objects.filter(pk=row.pk).update(second_factor=chosen)
    send_form(root, row, {**form, "acr_values": "high"})
    assert (row.second_factor, row.acr_values) == (chosen, "high")
