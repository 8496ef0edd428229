"""Single sign-on: what sessions reach after changes, and beside other organizations."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.test import Client
from django.urls import reverse

from accounts import invitations, services
from accounts.models import IdentityProvider, Organization, User
from accounts.sso import services as sso
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from tests.accounts import second_factor as password
from tests.accounts.second_factor import Steps, is_signed_in
from tests.accounts.single_sign_on import sign_in, submit_start, text_of
from tests.support import factories as make
from tests.support.openid_provider import OpenIdProvider

pytestmark = pytest.mark.django_db


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
    link = invitations.send_invitation(membership).link
    assert link
    return link.removeprefix(settings.PUBLIC_BASE_URL)


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


# --- a trial --------------------------------------------------------------------------------------------------


def test_trial_allows_its_provider_no_sign_in(row: Any, acme: Organization, idp: OpenIdProvider) -> None:
    """The provider may lead the browser to a sign-in, and answer it with one of its people."""
    boss = make.admin(acme)
    client = make.browser(boss)
    submit_start(row, client, "?try=1")
    assert client.get(f"/account/sso/{row.pk}/").url == "/account/sso/?organization=acme", "the form, which asks"
    assert client.get("/api/v1/me/").json()["user"]["email"] == boss.email
    assert "would be signed in as Dispatcher" in text_of(sign_in(row, idp, client, "?try=1"))
    assert client.get(f"/account/sso/{row.pk}/").url == "/account/sso/?organization=acme"
    submit_start(row, client)
    settings_page = reverse("admin:accounts_identityprovider_change", args=[row.pk])
    assert client.get(f"/account/sso/{row.pk}/?try=1").url == settings_page, "the form allows no trial"


# --- changes of the provider's settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "claims", "after"),
    [
        ({"second_factor": "always"}, {}, {"second_factor": "never"}),
        ({"second_factor": "always"}, {"amr": ["pwd"]}, {"second_factor": "reported"}),
        ({"acr_values": "loa1 loa2"}, {"acr": "loa1"}, {"acr_values": "loa2"}),
    ],
    ids=["always-never", "always-reported", "acr"],
)
def test_stricter_second_factor_of_the_provider_holds_open_sessions_back(
    row: Any, idp: OpenIdProvider, before: dict[str, str], claims: dict[str, Any], after: dict[str, str]
) -> None:
    Organization.objects.update(requires_second_factor=True)
    sso.save_provider(changed(row, before), list(before), actor=SYSTEM)
    idp.token_claims = claims
    client = sign_in(row, idp)
    assert client.get("/api/v1/me/").status_code == 200
    sso.save_provider(changed(row, after), list(after), actor=SYSTEM)
    assert client.get("/api/v1/me/").status_code == 403
    assert "your identity provider reported none" in client.get("/board/").content.decode()
    sso.save_provider(changed(row, before), list(before), actor=SYSTEM)
    assert client.get("/api/v1/me/").status_code == 200, "what the provider reported is stored"


def test_own_second_factor_replaces_the_one_of_the_provider_that_no_longer_counts(
    row: Any, dana: User, idp: OpenIdProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    password.set_up_app(dana, Steps(monkeypatch))
    IdentityProvider.objects.update(second_factor="always")
    client = sign_in(row, idp)
    assert client.get("/board/").status_code == 200
    IdentityProvider.objects.update(second_factor="never")
    assert password.held_back(client, password.VERIFY)


def test_reset_of_an_identity_ends_its_sessions_and_no_others(
    row: Any, acme: Organization, dana: User, idp: OpenIdProvider
) -> None:
    """The former identity may be another person, who had the address before."""
    former, own = sign_in(row, idp), password.sign_in(dana)
    boss = make.browser(make.admin(acme))
    url = reverse("admin:accounts_membership_reset_single_sign_on", args=[dana.memberships.get().pk])
    assert boss.post(url, {"_form_submitted": "True"}).status_code == 200
    assert former.get("/api/v1/me/").status_code == 401
    assert own.get("/api/v1/me/").status_code == 200
    assert boss.get("/api/v1/me/").status_code == 200
    events = Event.objects.filter(organization_id=acme.pk, kind__startswith="membership.").order_by("pk")
    assert [event.kind for event in events][-2:] == ["membership.sso_unlinked", "membership.sessions_ended"]
    idp.claims["sub"] = "0815"
    assert slugs(sign_in(row, idp)) == ["acme"]


def test_reset_ends_a_session_whose_link_was_already_removed(
    row: Any, acme: Organization, dana: User, idp: OpenIdProvider
) -> None:
    former = sign_in(row, idp)
    SocialAccount.objects.all().delete()
    boss = make.browser(make.admin(acme))
    url = reverse("admin:accounts_membership_reset_single_sign_on", args=[dana.memberships.get().pk])
    assert boss.post(url, {"_form_submitted": "True"}).status_code == 200
    assert former.get("/api/v1/me/").status_code == 401
    page = boss.get(reverse("admin:index")).content.decode()
    assert "their sessions by single sign-on were ended" in page
    boss.post(url, {"_form_submitted": "True"})
    assert "has not signed in by single sign-on" in boss.get(reverse("admin:index")).content.decode()


def changed(row: IdentityProvider, values: dict[str, str]) -> IdentityProvider:
    for name, value in values.items():
        setattr(row, name, value)
    return row
