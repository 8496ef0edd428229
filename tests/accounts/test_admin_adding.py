"""Fill in and save every form of the admin that adds a row.

The pages come from the admin's registry, so a new page is included automatically.
"""

from __future__ import annotations

from typing import Any

import pytest
from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.urls import reverse
from phonenumber_field.formfields import PhoneNumberField

from accounts.scoping import OwnedModel
from dispatch.jobs.models import PublicForm
from dispatch.leads.models import LeadDispatch
from dispatch.outbox.models import Endpoint, PortalLink
from notifications.models import EscalationPolicy, Route
from tests.support import factories as make
from tests.support.admin_forms import filled_in
from tests.support.factories import browser
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db

# The add page of these first asks for a kind; this is the page after it.
AFTER_THE_CHOICE = {"notifications.alertchannel": "?kind=webhook"}
OWNED = sorted(
    (model for model in admin.site._registry if issubclass(model, OwnedModel)), key=lambda model: model._meta.label
)
# The tenant's row of each is in the way of another.
ONE_EACH = {
    "accounts.identityprovider", "accounts.retentionrule", "jobs.customertextpolicy", "jobs.publicform",
    "leads.leaddispatch", "notifications.escalationpolicy", "telephony.numberhealthpolicy", "telephony.spendcap",
}  # fmt: skip
# What these forms demand beyond a value in each required field.
VALUES: dict[str, dict[str, Any]] = {
    "accounts.identityprovider": {
        "issuer": "https://login.example.com", "allowed_domains": "example.com", "secret": "s",
    },
    "accounts.retentionrule": {"days": 500},
    "capacity.provideraccount": {"account_sid": f"AC{7:032x}", "token": "t"},
    "leads.campaign": {"script": "Hello."},
    "leads.consent": {"given_at_0": "2026-01-05", "given_at_1": "10:00"},
    "notifications.alertchannel": {"entry_url": "https://example.com/hook"},
    "outbox.eventtype": {"name": "invoice.paid"},
    "schedules.exclusioncalendar": {"url": "https://example.com/days.ics"},
    "telephony.exchangerate": {"from_currency": "CHF"},
}  # fmt: skip

owned = pytest.mark.parametrize("model", OWNED, ids=lambda model: model._meta.label_lower)


def add_page(model: type[Model]) -> str:
    address = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")
    return address + AFTER_THE_CHOICE.get(model._meta.label_lower, "")


def may_be_added(model: type[Model]) -> bool:
    return "add" in admin.site._registry[model].admin_may


def value_for(name: str, field: forms.Field) -> Any:
    """Return a value that a person might enter in this required field."""
    if isinstance(field, forms.ModelChoiceField):
        row = field.queryset.first() if field.queryset is not None else None
        return row.pk if row else ""
    if isinstance(field, forms.ChoiceField):
        return next((value for value, _ in field.choices if value), "")
    if isinstance(field, PhoneNumberField):
        return make.phone()
    if isinstance(field, forms.DateField):
        return "2027-01-04"
    if isinstance(field, forms.IntegerField):
        return field.min_value or 1
    return {"email": "new@example.com", "url": "https://example.com/new"}.get(name, "new")


def fill_in(page: Any, model: type[Model], tenant: Tenant) -> dict[str, Any]:
    """Return what a person of the tenant sends who fills in the required fields of the page, and the phones."""
    sent = filled_in(page)
    for name, field in page.context["adminform"].form.fields.items():
        is_wanted = field.required or isinstance(field, PhoneNumberField)
        if is_wanted and sent.get(name) in (None, "", []):
            sent[name] = value_for(name, field)
    if model is PortalLink:
        sent["endpoint"] = tenant.row(Endpoint).pk
    return sent | VALUES.get(model._meta.label_lower, {})


@owned
def test_a_row_that_is_added_gets_its_organization(model: type[Model], ours: Tenant) -> None:
    person = browser(ours.admin)
    if not may_be_added(model):
        assert person.get(add_page(model)).status_code == 403
        return
    if model._meta.label_lower in ONE_EACH:
        ours.row(model).delete()
    before = {*model._default_manager.values_list("pk", flat=True)}
    page = person.get(add_page(model))
    assert page.status_code == 200
    assert "organization" in page.context["adminform"].form.fields
    answer = person.post(add_page(model), fill_in(page, model, ours))
    assert answer.status_code == 302 or "adminform" not in answer.context, answer.context["errors"]
    added = model._default_manager.exclude(pk__in=before).get()
    assert added.organization == ours.organization


@owned
def test_moments_of_every_form_have_a_year_that_can_be_shown(model: type[Model], ours: Tenant) -> None:
    page = browser(ours.admin).get(add_page(model))
    fields = page.context["adminform"].form.fields.values() if page.status_code == 200 else ()
    for field in fields:
        if isinstance(field, forms.SplitDateTimeField):
            with pytest.raises(ValidationError, match="Choose a year"):
                field.clean(["9999-12-31", "23:59"])


@pytest.mark.parametrize("model", [Route, EscalationPolicy])
def test_a_second_row_of_a_kind_is_refused_in_words(model: type[Model], ours: Tenant) -> None:
    person = browser(ours.admin)
    sent = fill_in(person.get(add_page(model)), model, ours)
    sent["kind"] = getattr(ours.row(model), "kind", "")
    answer = person.post(add_page(model), sent)
    assert "already exists" in str(answer.context["errors"])


@pytest.mark.parametrize("model", [EscalationPolicy, LeadDispatch, PublicForm])
def test_second_row_of_an_organization_is_refused_above_the_form(model: type[Model], ours: Tenant) -> None:
    person = browser(ours.admin)
    assert ours.row(model).organization == ours.organization
    answer = person.post(add_page(model), fill_in(person.get(add_page(model)), model, ours))
    name = model._meta.verbose_name.capitalize()
    problem = f"{name}: this already exists for the organization. Change it instead of adding another."
    assert problem in answer.context["adminform"].form.non_field_errors()


def test_portal_link_without_a_scope_is_refused_in_words(ours: Tenant) -> None:
    person = browser(ours.admin)
    sent = {"organization": ours.organization.pk, "endpoint": "", "receiver": "", "link_h": "", "session_h": "1"}
    page = person.post(add_page(PortalLink), sent).content.decode()
    assert "Choose an endpoint, or enter a receiver." in page
    assert "Constraint" not in page
