"""A form that would violate a constraint says in words what to do, and never names the constraint."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import BaseConstraint, Model, UniqueConstraint

from accounts.models import User
from dispatch.capacity.models import OutboundNumber
from dispatch.jobs.models import DispatchPolicy
from dispatch.leads.models import CallingRule
from dispatch.technicians.models import Technician
from notifications.models import EscalationStep
from tests.support import factories as make
from tests.support.tenants import Tenant

# Never reached in a form: the fields or the form check the same before, in words.
CHECKED_BEFORE = {
    "a_rate_is_positive", "campaign_calls_once_at_least", "concurrency_limit_is_in_range",
    "one_default_pool_per_kind", "one_engine_switch", "one_valid_consent", "pool_has_room",
}  # fmt: skip


def edited_models() -> Iterator[type[Model]]:
    for model, page in admin.site._registry.items():
        owners: list[Any] = [page, *page.inlines]
        for edited, owner in zip([model, *(inline.model for inline in page.inlines)], owners, strict=True):
            if {"add", "change"} & (owner.admin_may | (owner.superuser_may or frozenset())):
                yield edited


def names_itself(constraint: BaseConstraint) -> bool:
    """Return whether the message contains the name of the constraint. Django describes unique fields itself."""
    is_described = isinstance(constraint, UniqueConstraint) and constraint.fields and constraint.condition is None
    return not is_described and constraint.name in constraint.get_violation_error_message()


def test_every_constraint_of_a_form_is_explained() -> None:
    constraints = [constraint for model in {*edited_models()} for constraint in model._meta.constraints]
    assert {constraint.name for constraint in constraints if names_itself(constraint)} == CHECKED_BEFORE


@pytest.mark.django_db
def test_violations_are_explained_in_words(ours: Tenant) -> None:
    organization = ours.organization
    person, technician = ours.admin, ours.row(Technician)
    DispatchPolicy.objects.create(organization=organization)
    begins, ends = date(2026, 5, 2), date(2026, 5, 1)
    violations: list[tuple[Model, str]] = [
        (User(name="Twin", email=person.email.upper()), "Another user has this email address."),
        (Technician(organization=organization, name="Twin", phone=technician.phone), "Another active technician"),
        (OutboundNumber(organization=organization, phone=make.phone(), max_channels=1, reserved_for_alerts=2),
         "More lines are reserved"),
        (DispatchPolicy(organization=organization), "already has a policy"),
        (CallingRule(name="May", since=begins, until=ends), "The last day is before the first day."),
        (EscalationStep(organization=organization, sms=False, voice=False), "Choose text or call."),
    ]  # fmt: skip
    for row, words in violations:
        with pytest.raises(ValidationError, match=words):
            row.validate_constraints()
