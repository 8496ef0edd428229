"""What a reference without a constraint names cannot be deleted."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.contrib.admin import site
from django.db import IntegrityError, connection, models, transaction
from django.db.models.deletion import ProtectedError
from django.test import RequestFactory

from accounts.models import Organization
from tests.support import factories

UNCHECKED = [
    field
    for model in apps.get_models()
    for field in model._meta.concrete_fields
    if isinstance(field, models.ForeignKey)
    and not field.db_constraint
    and field.remote_field.on_delete is models.PROTECT
]
TARGETS = sorted({field.related_model for field in UNCHECKED} - {Organization}, key=str)


def test_candidates_and_calls_have_such_references() -> None:
    assert {field.model._meta.label for field in UNCHECKED} >= {"jobs.Candidate", "telephony.Call"}


@pytest.mark.parametrize("target", TARGETS, ids=lambda model: model._meta.label)
@pytest.mark.django_db
def test_nobody_may_delete_what_they_name(target: type[models.Model]) -> None:
    request = RequestFactory().get("/")
    request.user = factories.user(is_superuser=True)
    assert not site._registry[target].has_delete_permission(request)


@pytest.mark.django_db
def test_organization_with_an_account_number_or_pool_cannot_be_deleted() -> None:
    for add in (factories.account, factories.pool, factories.number):
        organization = factories.organization()
        add(organization)
        with pytest.raises(ProtectedError):
            organization.delete()
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("DELETE FROM accounts_organization WHERE id = %s", [organization.pk])
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
