"""What another person sets while a page of the admin is open stays, whatever else that page changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.db.models import Model
from django.utils.datastructures import MultiValueDict

from accounts import services
from accounts.models import IdentityProvider, Organization, OrganizationLimits, RetentionRule, User
from accounts.scoping import OwnedModel
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.jobs.models import CustomerTextPolicy, PublicForm
from dispatch.leads.models import CustomerRate
from dispatch.outbox.models import EventType
from dispatch.outbox.services import catalog
from dispatch.schedules.models import ConcurrencyLimit, ExclusionCalendar
from notifications.models import AlertChannel, EscalationPolicy, Route
from tests.support import factories as make
from tests.support.admin_forms import filled_in, open_form, path_of, send_form
from tests.support.factories import browser
from tests.support.tenants import Tenant

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
    return Route.objects.create(organization=organization, kind="job.cannot_make_it")


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


def customer_rate(organization: Organization) -> CustomerRate:
    return CustomerRate.objects.create(organization=organization, customer="acme", most=2, per_s=60)


def team_channel(organization: Organization) -> AlertChannel:
    return AlertChannel.objects.create(
        organization=organization, kind="webhook", name="Board", address="example.org", config={},
    )  # fmt: skip


def retention_rule(organization: Organization) -> RetentionRule:
    return RetentionRule.objects.create(organization=organization, what="events", days=500)


def calendar(organization: Organization) -> ExclusionCalendar:
    return ExclusionCalendar.objects.create(
        organization=organization, name="Days", url="https://example.com/days.ics", refresh_at=clock.now()
    )


def concurrency_limit(organization: Organization) -> ConcurrencyLimit:
    return ConcurrencyLimit.objects.create(organization=organization, key="crm", max_runs=2)


def limits(organization: Organization) -> OrganizationLimits:
    return OrganizationLimits.objects.create(organization=organization)


@pytest.mark.parametrize(
    ("create", "theirs", "mine"),
    [
        (customer_rate, {"most": 50}, {"per_s": 90}),
        (make.skill, {"name": "Renamed"}, {"code": "new"}),
        (make.service_type, {"name": "Renamed"}, {"code": "new"}),
        (make.technician, {"name": "Renamed"}, {"max_open_jobs": 7}),
        (make.pool, {"concurrency": 50}, {"name": "Renamed"}),
        (team_channel, {"name": "Renamed"}, {"audience": "admins"}),
        (plan, {"again_after_s": 900}, {"repeat_s": 240}),
        (retention_rule, {"days": 600}, {}),
        (calendar, {"name": "Renamed"}, {"url": "https://example.com/other.ics"}),
        (concurrency_limit, {"max_runs": 9}, {}),
        (limits, {"leads": 9}, {"api_keys": 7}),
    ],
)
def test_open_page_keeps_what_another_person_entered(
    create: Callable[[Any], Model], theirs: dict[str, Any], mine: dict[str, Any]
) -> None:
    row = create(make.organization("Ours"))
    root = browser(make.user("Root", is_superuser=True))
    form = open_form(root, row)
    type(row)._default_manager.filter(pk=row.pk).update(**theirs)
    send_form(root, row, {**form, **mine})
    assert {name: getattr(row, name) for name in {**theirs, **mine}} == {**theirs, **mine}


def test_open_page_keeps_the_skills_that_another_person_chose() -> None:
    row = make.service_type(organization := make.organization("Ours"), skills=(make.skill(organization, "gas"),))
    root = browser(make.user("Root", is_superuser=True))
    form = open_form(root, row)
    row.required_skills.add(make.skill(organization, "oil"))
    send_form(root, row, {**form, "name": "Renamed"})
    assert {skill.code for skill in row.required_skills.all()} == {"gas", "oil"}


def test_open_page_keeps_the_first_skill_that_another_person_chose() -> None:
    row = make.service_type(organization := make.organization("Ours"))
    root = browser(make.user("Root", is_superuser=True))
    form = open_form(root, row)
    row.preferred_skills.add(make.skill(organization, "oil"))
    send_form(root, row, {**form, "name": "Renamed"})
    assert [skill.code for skill in row.preferred_skills.all()] == ["oil"]


def test_open_page_keeps_the_schema_that_another_person_entered() -> None:
    schema, theirs = {"type": "object", "required": ["id"]}, {"type": "object", "required": ["id", "total"]}
    given = {"name": "invoice.paid", "schema": schema, "example": {"id": 1}}
    row = catalog.create_type(make.organization("Ours"), given, actor=SYSTEM)
    root = browser(make.user("Root", is_superuser=True))
    form = open_form(root, row)
    catalog.change_type(row.pk, {"schema": theirs, "example": {"id": 1, "total": 5}}, actor=SYSTEM)
    send_form(root, row, {**form, "description": "An invoice was paid."})
    assert (row.description, row.version) == ("An invoice was paid.", 2)
    answer = root.post(path_of(row), {**form, "example": '{"id": 2}'})
    assert "total" in str(answer.context["adminform"].form.errors["example"])
    assert json.loads(filled_in(answer)["schema"]) == theirs, "the page shows what the example does not match"
    send_form(root, row, {**filled_in(answer), "example": '{"id": 2, "total": 7}'})
    assert catalog.current_content(row) == (theirs, {"id": 2, "total": 7})
    assert row.version == 3


def test_page_of_an_event_type_without_a_schema_shows_an_empty_field() -> None:
    row = event_type(make.organization("Ours"))
    root = browser(make.user("Root", is_superuser=True))
    form = open_form(root, row)
    assert (form["schema"], form["example"]) == ("", "")
    send_form(root, row, form)
    assert row.version == 0


def test_open_page_is_checked_with_what_another_person_entered() -> None:
    row = make.number(make.organization("Ours"), max_channels=5)
    root = browser(make.user("Root", is_superuser=True))
    form = open_form(root, row)
    OutboundNumber.objects.update(max_channels=2)
    answer = root.post(path_of(row), {**form, "reserved_for_alerts": 4})
    assert "More lines are reserved" in str(answer.context["errors"])
    send_form(root, row, {**form, "reserved_for_alerts": 2})
    assert (row.max_channels, row.reserved_for_alerts) == (2, 2)


def test_no_field_of_an_unchanged_page_counts_as_changed(ours: Tenant) -> None:
    root = browser(make.user("Root", is_superuser=True))
    counted: dict[str, list[str]] = {}
    for model in admin.site._registry:
        if not issubclass(model, OwnedModel):
            continue
        row = ours.row(model)
        page = root.get(path_of(row))
        if not page.context or "adminform" not in page.context:
            continue
        sent = MultiValueDict()
        for name, value in filled_in(page).items():
            sent.setlist(name, value if isinstance(value, list) else [value])
        form = type(page.context["adminform"].form)(sent, instance=type(row)._default_manager.get(pk=row.pk))
        counted[model._meta.label] = form.changed_data
    assert {label: names for label, names in counted.items() if names} == {}
    assert len(counted) > 20
