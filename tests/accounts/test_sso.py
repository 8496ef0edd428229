"""Single sign-on: whom an organization's provider signs in, and what the session may do."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.test import Client
from django.urls import reverse

from accounts import invitations, personal, services
from accounts.models import IdentityProvider, Membership, Organization, User
from accounts.sso import services as sso
from accounts.sso import sessions
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.privacy.personal_data import DataSubject
from tests.accounts import second_factor as password
from tests.accounts.second_factor import Steps, is_signed_in
from tests.accounts.single_sign_on import begin, configure, open_provider, sign_in, text_of
from tests.support import factories as make
from tests.support.openid_provider import OpenIdProvider

pytestmark = pytest.mark.django_db


@pytest.fixture
def row(acme: Organization, idp: OpenIdProvider) -> IdentityProvider:
    return configure(acme, idp)


def dana_of(organization: Organization, role: str = "dispatcher") -> User:
    person = make.user("Dana", email="dana@acme.example")
    Membership.objects.create(organization=organization, user=person, role=role)
    return person


def opened(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.session[sessions.SESSION_KEY]
    return found


def me(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api/v1/me/").json()
    return found


# --- the flow -------------------------------------------------------------------------------------------------


def test_member_signs_in_and_the_session_says_how(acme: Organization, row: Any, idp: OpenIdProvider) -> None:
    dana = dana_of(acme)
    idp.claims |= {"amr": ["pwd", "mfa"], "acr": "loa2"}
    client = sign_in(row, idp, query="?next=/leads/")
    assert client.answer.url == "/leads/", text_of(client)
    assert client.get("/board/").status_code == 200
    assert (opened(client)["amr"], opened(client)["acr"]) == (["pwd", "mfa"], "loa2")
    assert opened(client)["second_factor"] is True
    assert SocialAccount.objects.get().user == dana
    assert SocialAccount.objects.get().extra_data == {}
    assert Event.objects.get(kind="membership.sso_linked").actor_id == dana.pk
    assert me(client)["user"]["email"] == dana.email


def test_start_page_forwards_by_email_and_by_address(row: Any) -> None:
    for address in ("Dana@Acme.example", "acme", "nobody@acme.example"):
        page = Client().post("/account/sso/", {"address": address, "next": "/leads/"})
        assert page.status_code == 200
        assert f"/account/sso/{row.pk}/?next=%2Fleads%2F" in page.content.decode()
    for address in ("dana@elsewhere.example", "other", "@", "x@acme.example.evil.example"):
        assert (
            "There is no single sign-on" in Client().post("/account/sso/", {"address": address}).content.decode()
        )
    evil = Client().post("/account/sso/", {"address": "acme", "next": "https://evil.example/"})
    assert "evil" not in evil.content.decode()


def test_short_name_is_found_in_upper_or_lower_case(row: Any, acme: Organization, idp: OpenIdProvider) -> None:
    Organization.objects.update(slug="Acme-1")
    for address in ("Acme-1", "acme-1", " ACME-1 "):
        page = Client().post("/account/sso/", {"address": address})
        assert f"/account/sso/{row.pk}/" in page.content.decode(), address
    other = configure(make.organization("Other", slug="acme-1"), idp)
    for address, found in (("Acme-1", row), ("acme-1", other)):
        assert f"/account/sso/{found.pk}/" in Client().post("/account/sso/", {"address": address}).content.decode()
    page = Client().post("/account/sso/", {"address": "ACME-1"})
    assert page.status_code == 422
    assert "Several organizations have this short name." in page.content.decode()


def test_an_unverified_domain_does_not_forward_its_people(row: Any) -> None:
    IdentityProvider.objects.update(verified_domains=[])
    assert Client().post("/account/sso/", {"address": "dana@acme.example"}).status_code == 422
    assert Client().post("/account/sso/", {"address": "acme"}).status_code == 200


def test_inactive_configuration_signs_nobody_in(acme: Organization, row: Any, idp: OpenIdProvider) -> None:
    dana_of(acme)
    client = sign_in(row, idp)
    assert client.get("/board/").status_code == 200
    IdentityProvider.objects.update(is_active=False)
    assert client.get("/board/").status_code == 302, "the open session has ended"
    assert Client().get(f"/account/sso/{row.pk}/").status_code == 404


def test_provider_that_is_down_gives_a_clear_error(acme: Organization, row: Any, idp: OpenIdProvider) -> None:
    dana = dana_of(acme)
    idp.stop()
    page = open_provider(row)
    assert page.status_code == 403
    assert "is not responding as expected" in page.content.decode()
    assert "Use a password" in page.content.decode()
    assert idp.issuer not in page.content.decode(), "details are for Admins"
    assert is_signed_in(password.sign_in(dana))


def test_refusal_and_cancellation_at_the_provider(row: Any, idp: OpenIdProvider) -> None:
    for error, text in (("access_denied", "You canceled"), ("server_error", "refused the sign-in")):
        client = Client()
        state = idp.authorize(begin(row, client)).partition("state=")[2].partition("&")[0]
        page = client.get(f"/account/sso/{row.pk}/callback/?error={error}&state={state}")
        assert page.status_code == 403
        assert text in page.content.decode()


def test_email_from_user_information(acme: Organization, row: Any, idp: OpenIdProvider) -> None:
    dana_of(acme)
    del idp.claims["email"], idp.claims["email_verified"]
    idp.user_info = {"sub": "another", "email": "dana@acme.example", "email_verified": True}
    assert not is_signed_in(sign_in(row, idp))
    idp.user_info["sub"] = idp.claims["sub"]
    assert is_signed_in(sign_in(row, idp))


# --- who ------------------------------------------------------------------------------------------------------


def test_newcomer_of_a_verified_domain_joins_with_the_role(
    acme: Organization, row: Any, idp: OpenIdProvider
) -> None:
    assert "Ask an Admin to invite you" in text_of(sign_in(row, idp))
    IdentityProvider.objects.update(newcomer_role="dispatcher", verified_domains=[])
    assert not is_signed_in(sign_in(row, idp))
    IdentityProvider.objects.update(verified_domains=["acme.example"])
    idp.claims["name"] = "Dana Whitfield"
    client = sign_in(row, idp)
    assert client.get("/board/").status_code == 200
    person = User.objects.get(email="dana@acme.example")
    assert (person.name, person.has_usable_password()) == ("Dana Whitfield", False)
    assert person.memberships.get().role == "dispatcher"
    assert Event.objects.get(kind="membership.joined").organization_id == acme.pk


def test_invited_person_joins_by_a_verified_domain_only(acme: Organization, row: Any, idp: OpenIdProvider) -> None:
    IdentityProvider.objects.update(verified_domains=[])
    services.add_member(acme, email="dana@acme.example", name="Dana", role="admin", actor=SYSTEM)
    assert "Open the link of the invitation first" in text_of(sign_in(row, idp))
    IdentityProvider.objects.update(verified_domains=["acme.example"])
    assert is_signed_in(sign_in(row, idp))
    assert Membership.objects.get().role == "admin"


def test_deactivated_and_removed_members_stay_out(acme: Organization, row: Any, idp: OpenIdProvider) -> None:
    dana = dana_of(acme)
    IdentityProvider.objects.update(newcomer_role="dispatcher")
    client = sign_in(row, idp)
    services.change_member(dana.memberships.get().pk, actor=SYSTEM, is_active=False)
    assert client.get("/board/").status_code == 302
    assert "deactivated" in text_of(sign_in(row, idp))
    services.remove_member(dana.memberships.get().pk, actor=SYSTEM)
    assert "no longer a member" in text_of(sign_in(row, idp))
    idp.claims["sub"] = "a second identity with the same address"
    assert not is_signed_in(sign_in(row, idp))
    assert not Membership.objects.exists()


def test_deactivated_user_stays_out(acme: Organization, row: Any, idp: OpenIdProvider) -> None:
    dana = dana_of(acme)
    sign_in(row, idp)
    User.objects.filter(pk=dana.pk).update(is_active=False)
    assert not is_signed_in(sign_in(row, idp))


def test_superuser_never_signs_in_by_a_tenant(acme: Organization, row: Any, idp: OpenIdProvider) -> None:
    dana = dana_of(acme)
    client = sign_in(row, idp)
    User.objects.update(is_superuser=True)
    assert client.get("/admin/").status_code == 302, "the open session reaches nothing"
    assert "Superusers" in text_of(sign_in(row, idp))
    SocialAccount.objects.all().delete()
    assert "Superusers" in text_of(sign_in(row, idp))
    assert not SocialAccount.objects.exists()
    Membership.objects.filter(user=dana).delete()
    assert not is_signed_in(sign_in(row, idp))


@pytest.mark.parametrize("verified", [False, None, "false", 1, {}])
def test_unverified_email_is_refused(acme: Organization, row: Any, idp: OpenIdProvider, verified: Any) -> None:
    dana_of(acme)
    idp.claims["email_verified"] = verified
    assert "has not verified" in text_of(sign_in(row, idp))


def test_missing_verification_is_accepted_only_if_the_organization_says_so(
    acme: Organization, row: Any, idp: OpenIdProvider
) -> None:
    dana_of(acme)
    IdentityProvider.objects.update(email_must_be_verified=False)
    idp.claims["email_verified"] = False
    assert not is_signed_in(sign_in(row, idp))
    idp.claims["email_verified"] = None
    assert is_signed_in(sign_in(row, idp))


@pytest.mark.parametrize(
    "email", ["dana@elsewhere.example", "dana@sub.acme.example", "dana@acme.example@elsewhere.example", "", None]
)
def test_other_domains_are_refused(acme: Organization, row: Any, idp: OpenIdProvider, email: Any) -> None:
    dana_of(acme)
    make.dispatcher(acme)
    IdentityProvider.objects.update(newcomer_role="admin")
    idp.claims["email"] = email
    assert not is_signed_in(sign_in(row, idp))
    assert User.objects.count() == 2


def test_second_identity_with_the_same_email_needs_a_reset(
    acme: Organization, row: Any, idp: OpenIdProvider
) -> None:
    dana = dana_of(acme)
    assert is_signed_in(sign_in(row, idp))
    idp.claims |= {"sub": "0815"}
    assert "linked to another identity" in text_of(sign_in(row, idp))
    boss = make.browser(make.admin(acme))
    url = reverse("admin:accounts_membership_reset_single_sign_on", args=[dana.memberships.get().pk])
    assert boss.post(url, {"_form_submitted": "True"}).status_code == 200
    assert Event.objects.filter(kind="membership.sso_unlinked").count() == 1
    assert is_signed_in(sign_in(row, idp))


def test_changed_address_at_the_provider_keeps_the_account(
    acme: Organization, row: Any, idp: OpenIdProvider
) -> None:
    dana_of(acme)
    sign_in(row, idp)
    idp.claims["email"] = "dana.whitfield@acme.example"
    assert is_signed_in(sign_in(row, idp))


# --- the provider of another organization -----------------------------------------------------------------------


def test_provider_cannot_sign_in_a_member_of_another_organization(
    acme: Organization, row: Any, idp: OpenIdProvider
) -> None:
    elsewhere = make.organization("Elsewhere")
    victim = make.admin(elsewhere)
    User.objects.filter(pk=victim.pk).update(email="victim@acme.example", name="Vic", phone="+16025550123")
    IdentityProvider.objects.update(newcomer_role="admin")
    idp.claims["email"] = "victim@acme.example"
    for _ in ("as a newcomer", "as an invited person"):
        client = sign_in(row, idp)
        assert not is_signed_in(client)
        assert "Vic" not in text_of(client)
        assert not Membership.objects.filter(organization=acme, joined_at__isnull=False).exists()
        Membership.objects.get_or_create(
            organization=acme, user=victim, defaults={"joined_at": None, "is_active": False}
        )
    assert not SocialAccount.objects.exists()


def test_session_of_a_shared_member_reaches_only_the_provider_s_organization(
    acme: Organization, row: Any, idp: OpenIdProvider
) -> None:
    elsewhere = make.organization("Elsewhere", slug="elsewhere")
    dana = dana_of(acme)
    Membership.objects.create(organization=elsewhere, user=dana, role="admin")
    client = sign_in(row, idp)
    assert client.get("/board/").status_code == 200
    assert [each["slug"] for each in me(client)["organizations"]] == ["acme"]
    assert client.get("/api/v1/jobs/", headers={"X-Organization": "elsewhere"}).status_code == 403
    assert client.get(f"/admin/accounts/organization/{elsewhere.pk}/change/").status_code in (302, 403)
    phone = dana.phone
    assert client.post(reverse("console:own_phone"), {"phone": "+16025550199"}).status_code == 403
    assert client.post(reverse("console:own_language"), {"language": "es"}).status_code == 403
    dana.refresh_from_db()
    assert (dana.phone, dana.language) == (phone, "")
    settings_page = client.get(reverse("console:notification_choices")).content.decode()
    assert "belong to all your organizations" in settings_page
    assert client.get("/account/sessions/").status_code == 403
    both = password.sign_in(dana)
    assert len(me(both)["organizations"]) == 2


@pytest.mark.parametrize(
    "name", ["mfa_index", "mfa_activate_totp", "mfa_add_webauthn", "mfa_generate_recovery_codes"]
)
def test_session_of_a_provider_changes_no_factor(
    acme: Organization, row: Any, idp: OpenIdProvider, name: str
) -> None:
    dana_of(acme)
    client = sign_in(row, idp)
    assert client.get(reverse(name)).status_code == 403
    assert client.post(reverse(name), {}).status_code == 403
    assert client.get("/account/sessions/").status_code == 200


def test_session_of_a_provider_accepts_no_other_invitation(
    acme: Organization, row: Any, idp: OpenIdProvider, settings: Any
) -> None:
    dana = dana_of(acme)
    User.objects.filter(pk=dana.pk).update(email_confirmed_at=clock.now())  # the link sets no password any longer
    settings.EMAIL_URL = ""
    elsewhere = make.organization("Elsewhere")
    membership, _ = services.add_member(elsewhere, email=dana.email, name="D", role="admin", actor=SYSTEM)
    link = invitations.send_invitation(membership).link
    client = sign_in(row, idp)
    assert client.post(link, {"name": "D", "phone": ""}).status_code == 403
    assert not Membership.objects.get(pk=membership.pk).joined_at


def test_invitation_elsewhere_does_not_take_over_an_account_without_a_password(
    acme: Organization, row: Any, idp: OpenIdProvider, settings: Any
) -> None:
    """Without a mail server, the hostile organization has the link."""
    settings.EMAIL_URL = ""
    IdentityProvider.objects.update(newcomer_role="dispatcher")
    assert is_signed_in(sign_in(row, idp))
    dana = User.objects.get(email="dana@acme.example")
    evil = make.organization("Evil")
    membership, _ = services.add_member(evil, email=dana.email, name="D", role="admin", actor=SYSTEM)
    link = invitations.send_invitation(membership).link
    chosen = "three blind llamas"
    given = {"name": "D", "phone": "", "new_password1": chosen, "new_password2": chosen}
    assert "login" in Client().post(link, given).url
    dana.refresh_from_db()
    assert not dana.has_usable_password()
    assert not Membership.objects.get(pk=membership.pk).joined_at


def test_former_link_is_worthless_after_another_issuer(acme: Organization, row: Any, idp: OpenIdProvider) -> None:
    dana_of(acme)
    client = sign_in(row, idp)
    assert client.get("/board/").status_code == 200
    row.issuer = "http://127.0.0.1:1"
    sso.save_provider(row, ["issuer"], actor=SYSTEM)
    assert not SocialAccount.objects.exists()
    assert row.tried_at is None
    assert client.get("/board/").status_code == 302, "the former issuer opened this session"


def test_trial_with_former_credentials_does_not_count(row: Any) -> None:
    trial = IdentityProvider.objects.get()
    row.client_secret = "another secret"
    sso.save_provider(row, ["client_secret"], actor=SYSTEM)
    sso.record_trial(trial, actor=SYSTEM)
    assert IdentityProvider.objects.get().tried_at is None
    assert not Event.objects.filter(kind="organization.sso_tried").exists()


# --- required -------------------------------------------------------------------------------------------------


def test_required_means_no_password_and_no_passkey_session(
    acme: Organization, row: Any, idp: OpenIdProvider
) -> None:
    dana = dana_of(acme)
    before = password.sign_in(dana)
    IdentityProvider.objects.update(is_required=True)
    assert before.get("/board/").status_code != 200, "open sessions without single sign-on reach nothing"
    client = password.sign_in(dana)
    assert not is_signed_in(client)
    assert "can only sign in by single sign-on" in text_of(client)
    assert is_signed_in(sign_in(row, idp))


def test_required_leaves_shared_members_their_other_organization(acme: Organization, row: Any) -> None:
    elsewhere = make.organization("Elsewhere", slug="elsewhere")
    dana = dana_of(acme)
    Membership.objects.create(organization=elsewhere, user=dana, role="dispatcher")
    IdentityProvider.objects.update(is_required=True)
    client = password.sign_in(dana)
    assert [each["slug"] for each in me(client)["organizations"]] == ["elsewhere"]
    assert client.get("/api/v1/jobs/", headers={"X-Organization": "acme"}).status_code == 403


def test_break_glass_owner_needs_a_second_factor(acme: Organization, row: Any) -> None:
    boss = make.admin(acme, "Boss")
    IdentityProvider.objects.update(is_required=True, break_glass=boss)
    client = password.sign_in(boss)
    assert is_signed_in(client)
    assert password.held_back(client, password.SET_UP)


def test_break_glass_owner_stays_an_admin_until_another_is_chosen(acme: Organization, row: Any) -> None:
    boss = make.admin(acme, "Boss")
    other = make.admin(acme, "Other")
    IdentityProvider.objects.update(is_required=True, break_glass=boss)
    own = boss.memberships.get().pk
    changes: list[dict[str, Any]] = [{"role": "dispatcher"}, {"is_active": False}]
    for change in changes:
        with pytest.raises(services.BreakGlassOwner):
            services.change_member(own, actor=SYSTEM, **change)
    with pytest.raises(services.BreakGlassOwner):
        services.remove_member(own, actor=SYSTEM)
    assert any("break-glass" in why for why in personal.blocked_by(DataSubject(acme.pk, user_id=boss.pk)))
    IdentityProvider.objects.update(break_glass=other)
    services.remove_member(own, actor=SYSTEM)
    assert not acme.memberships.filter(user=boss).exists()


def test_superuser_signs_in_with_a_password_where_sso_is_required(acme: Organization, row: Any) -> None:
    root = make.admin(acme, "Root")
    User.objects.update(is_superuser=True)
    IdentityProvider.objects.update(is_required=True)
    client = password.sign_in(root)
    assert client.get("/admin/").status_code == 200


# --- the second factor ----------------------------------------------------------------------------------------


def test_second_factor_of_the_provider_counts_only_if_reported(
    acme: Organization, row: Any, idp: OpenIdProvider
) -> None:
    dana_of(acme)
    services.change_organization(acme.pk, {"requires_second_factor": True}, actor=SYSTEM)
    for claims in ({}, {"amr": ["pwd"]}, {"amr": "mfa"}, {"acr": "loa2"}):
        idp.token_claims = claims
        assert "did not report one" in text_of(sign_in(row, idp)), claims
    idp.token_claims = {"amr": ["pwd", "mfa"]}
    assert sign_in(row, idp).get("/board/").status_code == 200
    IdentityProvider.objects.update(second_factor="never")
    assert not is_signed_in(sign_in(row, idp))
    IdentityProvider.objects.update(second_factor="reported", acr_values="loa2 loa3")
    idp.token_claims = {"acr": "loa3"}
    assert sign_in(row, idp).get("/board/").status_code == 200
    IdentityProvider.objects.update(second_factor="always", acr_values="")
    idp.token_claims = {}
    assert sign_in(row, idp).get("/board/").status_code == 200


def test_own_factor_is_asked_for_if_the_provider_s_does_not_count(
    acme: Organization, row: Any, idp: OpenIdProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    dana = dana_of(acme)
    password.set_up_app(dana, steps)
    client = sign_in(row, idp)
    assert client.answer.url == reverse("mfa_authenticate")
    assert not is_signed_in(client)
    password.enter(client, steps.code(password.secret_of(dana)))
    assert client.get("/board/").status_code == 200
    assert opened(client)["second_factor"] is False
    idp.token_claims = {"amr": ["mfa"]}
    assert sign_in(row, idp).get("/board/").status_code == 200


def test_new_requirement_of_a_factor_holds_open_sessions_back(
    acme: Organization, row: Any, idp: OpenIdProvider
) -> None:
    dana_of(acme)
    client = sign_in(row, idp)
    services.change_organization(acme.pk, {"requires_second_factor": True}, actor=SYSTEM)
    assert client.get("/board/").status_code == 403
    assert client.get("/api/v1/me/").status_code == 403
