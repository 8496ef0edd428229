"""Provide the two tenants of the walk, and an organization with its identity provider."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accounts.models import IdentityProvider, Membership, Organization, User
from tests.accounts.single_sign_on import configure
from tests.support import factories as make
from tests.support.openid_provider import OpenIdProvider
from tests.support.tenants import ours, theirs, world

__all__ = ["ours", "theirs", "world"]


@pytest.fixture
def idp() -> Iterator[OpenIdProvider]:
    with OpenIdProvider() as provider:
        yield provider


@pytest.fixture
def acme() -> Organization:
    return make.organization("Acme", slug="acme")


@pytest.fixture
def dana(acme: Organization) -> User:
    person = make.user("Dana", email="dana@acme.example")
    Membership.objects.create(organization=acme, user=person, role="dispatcher")
    return person


@pytest.fixture
def row(acme: Organization, dana: User, idp: OpenIdProvider) -> IdentityProvider:
    return configure(acme, idp)
