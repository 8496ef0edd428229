"""Single sign-on: what sessions reach after changes, and beside other organizations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts import invitations, services
from accounts.models import IdentityProvider, Membership, Organization, User
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from tests.accounts import second_factor as password
from tests.accounts.second_factor import Steps, is_signed_in
from tests.accounts.single_sign_on import configure, sign_in, text_of
from tests.support import factories as make
from tests.support.openid_provider import OpenIdProvider

pytestmark = pytest.mark.django_db


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


def slugs(client: Client) -> list[str]:
    return [each["slug"] for each in client.get("/api/v1/me/").json()["organizations"]]


# --- an invitation elsewhere ----------------------------------------------------------------------------------


@pytest.fixture
def invitation(dana: User, settings: Any) -> str:
    """The path of an invitation by an organization without single sign-on. The account is in use already."""
    User.objects.filter(pk=dana.pk).update(email_confirmed_at=clock.now())
    settings.EMAIL_URL = ""
    theirs = make.organization("Theirs", slug="theirs")
    membership, _ = services.add_member(theirs, email=dana.email, name="D", role="dispatcher", actor=SYSTEM)
    link = invitations.send_invitation(membership, str).link
    assert link
    return link.removeprefix("http://testserver")


def test_member_of_an_organization_that_requires_sso_joins_another_one(
    row: Any, dana: User, idp: OpenIdProvider, invitation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    password.set_up_app(dana, steps)
    IdentityProvider.objects.update(is_required=True)
    client = password.sign_in(dana, path=invitation)
    assert client.answer.url == reverse("mfa_authenticate"), "the second factor is asked for as well"  # type: ignore[attr-defined]
    assert password.enter(client, steps.code(password.secret_of(dana))).url == invitation
    assert client.get("/api/v1/me/").status_code == 403, "the session reaches no organization yet"
    assert client.get("/board/").status_code != 200
    assert client.post(invitation, {"name": "Dana", "phone": ""}).status_code == 302
    assert slugs(client) == ["theirs"], "Acme is still behind its provider"
    idp.token_claims = {"amr": ["mfa"]}
    assert slugs(sign_in(row, idp)) == ["acme"]


@pytest.mark.parametrize("path", ["", "/board/", "/join/forged/", "https://evil.example/join/forged/"])
def test_password_opens_no_other_page_where_sso_is_required(
    row: Any, dana: User, invitation: str, path: str
) -> None:
    IdentityProvider.objects.update(is_required=True)
    client = password.sign_in(dana, path=path)
    assert not is_signed_in(client)
    assert "can only sign in by single sign-on" in text_of(client)


def test_invitation_of_somebody_else_does_not_open_a_session(
    row: Any, acme: Organization, dana: User, invitation: str
) -> None:
    IdentityProvider.objects.update(is_required=True)
    other = make.dispatcher(acme, "Lee")
    assert not is_signed_in(password.sign_in(other, path=invitation))


def test_session_of_a_provider_says_how_to_accept_an_invitation(
    row: Any, idp: OpenIdProvider, invitation: str
) -> None:
    client = sign_in(row, idp)
    client.answer = client.get(invitation)  # type: ignore[attr-defined]
    assert client.answer.status_code == 403  # type: ignore[attr-defined]
    assert "can't join Theirs for you. Sign out, open the link of the invitation again" in text_of(client)
    assert "second factor" not in text_of(client)
