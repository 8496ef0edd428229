"""Create two organizations with a row of every kind in each, for the tests of tenant isolation.

Every row of Bravotown carries its name where it can, so that a page or response that leaks one contains that word.
A model with an admin or an API that is not in `tenant_rows.ROWS` fails the walk: add it there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Model
from django.test import Client

from accounts.models import Organization, User
from accounts.scoping import OwnedModel
from tests.support import factories as make
from tests.support.tenant_rows import ROWS

OWN, FOREIGN = "Alphaville", "Bravotown"


@dataclass
class Tenant:
    """An organization, its people, a key with all scopes, and one row of each kind."""

    tag: str
    organization: Organization
    admin: User
    dispatcher: User
    key: str
    rows: dict[type[Model], Model] = field(default_factory=dict)
    known: dict[type[Model], Any] = field(default_factory=dict)  # primary keys of rows that are not loaded yet
    cookies: dict[int, str] = field(default_factory=dict)  # of the sessions in which its people are signed in

    def sign_in(self, client: Client, person: User) -> None:
        """Use the existing session of the admin or the dispatcher in this client."""
        client.cookies[settings.SESSION_COOKIE_NAME] = self.cookies[person.pk]

    def row(self, model: type[Model]) -> Any:
        """Return this tenant's row of that kind, created on first use with its dependencies."""
        if model in self.known:
            self.rows[model] = model._default_manager.get(pk=self.known.pop(model))
        if model not in self.rows:
            if model not in ROWS:
                raise AssertionError(
                    f"{model.__name__} has no row in tests/support/tenant_rows.py: add one, and it is walked."
                )
            self.rows[model] = ROWS[model](self)
        return self.rows[model]


def tenant(tag: str) -> Tenant:
    """Create an organization whose every row is marked with `tag`."""
    organization = make.organization(f"{tag} Heating", slug=tag.lower())
    made = Tenant(
        tag,
        organization,
        make.admin(organization, f"{tag} admin"),
        make.dispatcher(organization, f"{tag} dispatcher"),
        make.api_key(organization, name=f"{tag} key"),
    )
    for model in ROWS:
        made.row(model)
    for person in (made.admin, made.dispatcher):
        browser = Client()
        browser.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
        made.cookies[person.pk] = browser.cookies[settings.SESSION_COOKIE_NAME].value
    return made


def _again(made: Tenant) -> Tenant:
    """Return the same tenant as fresh objects; its rows are read on demand."""

    def fresh(row: Any) -> Any:
        return type(row)._default_manager.get(pk=row.pk)

    known = {model: row.pk for model, row in made.rows.items()}
    people = fresh(made.organization), fresh(made.admin), fresh(made.dispatcher)
    return Tenant(made.tag, *people, made.key, known=known, cookies=made.cookies)


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Tenant]]:
    """Create both tenants once per module, in a transaction around its tests."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield {tag: tenant(tag) for tag in (OWN, FOREIGN)}
        transaction.set_rollback(True)


@pytest.fixture
def ours(world: dict[str, Tenant], db: None) -> Tenant:
    return _again(world[OWN])


@pytest.fixture
def theirs(world: dict[str, Tenant], db: None) -> Tenant:
    return _again(world[FOREIGN])


def everything_of(tenant: Tenant) -> dict[str, Any]:
    """Return all columns of all rows of the tenant, by model, to detect changes. One query."""
    users = User.objects.filter(memberships__organization=tenant.organization).order_by("pk")
    state: dict[str, Any] = {"organization": list(Organization.objects.filter(pk=tenant.organization.pk).values())}
    state["users"] = list(users.values("email", "name", "password", "is_active", "is_superuser", "phone"))
    owned = [model._meta for model in apps.get_models() if issubclass(model, OwnedModel)]
    rows = [
        f"SELECT '{of.label}', (SELECT jsonb_agg(to_jsonb(t) - 'last_used_at' ORDER BY t.{of.pk.column})::text"
        f" FROM {of.db_table} t WHERE t.organization_id = %(organization)s)"
        for of in owned
    ]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(rows), {"organization": tenant.organization.pk})
        return state | {name: json.loads(text or "[]") for name, text in cursor.fetchall()}
