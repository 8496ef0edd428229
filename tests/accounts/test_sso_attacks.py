"""Attacks on single sign-on: forged, replayed and mixed-up responses, hostile providers and configurations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client
from django.urls import reverse
from joserfc.jwk import OctKey

from accounts.models import IdentityProvider, Membership, Organization, User
from accounts.sso import id_tokens, starts
from dispatch.core import clock, crypto
from dispatch.core.models import Event
from tests.accounts.second_factor import is_signed_in
from tests.accounts.single_sign_on import (
    begin,
    come_back,
    configure,
    open_provider,
    sign_in,
    submit_start,
    text_of,
)
from tests.support import factories as make
from tests.support.openid_provider import CLIENT_SECRET, OpenIdProvider, signing_keys

pytestmark = pytest.mark.django_db


@pytest.fixture
def evil() -> Iterator[OpenIdProvider]:
    with OpenIdProvider(key=1) as provider:
        yield provider


def changed(url: str, **parameters: str) -> str:
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()} | parameters
    return parts._replace(query="&".join(f"{name}={value}" for name, value in query.items() if value)).geturl()


# --- the response ---------------------------------------------------------------------------------------------


def test_forged_state_is_refused(row: Any, idp: OpenIdProvider) -> None:
    client = Client()
    url = idp.authorize(begin(row, client))
    for state in ("forged", ""):
        assert "not started in this browser" in come_back(client, changed(url, state=state)).content.decode()
    assert not is_signed_in(client)
    assert "/token" not in idp.requests, "the code was not redeemed"


def test_response_in_another_browser_is_refused(row: Any, idp: OpenIdProvider) -> None:
    url = idp.authorize(begin(row, Client()))
    victim = Client()
    begin(row, victim)
    assert come_back(victim, url).status_code == 403
    assert not is_signed_in(victim)


def test_replayed_response_is_refused(row: Any, idp: OpenIdProvider) -> None:
    client = Client()
    url = idp.authorize(begin(row, client))
    assert come_back(client, url).status_code == 302
    client.post("/account/logout/")
    assert come_back(client, url).status_code == 403
    assert not is_signed_in(client)


def test_code_of_another_sign_in_is_refused_by_pkce(row: Any, idp: OpenIdProvider) -> None:
    stolen = parse_qs(urlsplit(idp.authorize(begin(row, Client()))).query)["code"][0]
    client = Client()
    url = idp.authorize(begin(row, client))
    assert come_back(client, changed(url, code=stolen)).status_code == 403
    assert not is_signed_in(client)


def test_each_sign_in_has_a_fresh_state_nonce_and_challenge(row: Any) -> None:
    asked = [parse_qs(urlsplit(begin(row, Client())).query) for _ in range(2)]
    for name in ("state", "nonce", "code_challenge"):
        values = {each[name][0] for each in asked}
        assert len(values) == 2
        assert all(len(value) >= 16 for value in values)
    assert asked[0]["redirect_uri"][0].endswith(f"/account/sso/{row.pk}/callback/")


# --- the beginning --------------------------------------------------------------------------------------------


def test_link_on_another_site_begins_no_sign_in(row: Any, idp: OpenIdProvider) -> None:
    """The provider of Acme answers at once, and would replace the session of a visitor of its page."""
    vic = make.dispatcher(make.organization("Honest"), "Vic")
    visitors = make.browser(vic), Client()
    for client in visitors:
        answer = client.get(f"/account/sso/{row.pk}/?next=/leads/", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.url == "/account/sso/?organization=acme&next=%2Fleads%2F", "the form, which asks"
        assert client.get(answer.url).context["form"].initial == {"address": "acme"}
    assert not idp.requests
    assert visitors[0].get("/api/v1/me/").json()["user"]["email"] == vic.email


def test_submitted_form_allows_only_one_sign_in_at_its_provider_for_ten_minutes(
    row: Any, idp: OpenIdProvider, evil: OpenIdProvider
) -> None:
    other = configure(make.organization("Evil"), evil)
    client = Client()
    submit_start(row, client)
    assert client.get(f"/account/sso/{other.pk}/").url.startswith("/account/sso/?organization=")
    assert is_signed_in(sign_in(row, idp, client))
    assert client.get(f"/account/sso/{row.pk}/").url.startswith("/account/sso/?organization=")
    submit_start(row, client)
    clock.travel(starts.VALID_S)
    assert client.get(f"/account/sso/{row.pk}/").url.startswith("/account/sso/?organization=")


def test_link_on_another_site_begins_no_trial(row: Any, acme: Organization, idp: OpenIdProvider) -> None:
    boss = make.browser(make.admin(acme))
    answer = boss.get(f"/account/sso/{row.pk}/?try=1")
    assert answer.url == reverse("admin:accounts_identityprovider_change", args=[row.pk])
    assert not idp.requests


# --- the ID token ---------------------------------------------------------------------------------------------

NOW = int(time.time())


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"aud": "another-client"}, "Audience"),
        ({"aud": ["dispatch", "another-client"]}, "azp"),
        ({"aud": ["dispatch"], "azp": "another-client"}, "azp"),
        ({"aud": None}, "aud"),
        ({"exp": NOW - 3600}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": NOW + 3600, "exp": NOW + 7200}, "not yet valid"),
        ({"nbf": NOW + 3600}, "not yet valid"),
        ({"nonce": "of another sign-in"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "subject"),
        ({"sub": "x" * 192}, "subject"),
    ],
)
def test_id_token_that_is_not_ours_is_refused(
    row: Any, idp: OpenIdProvider, acme: Organization, claims: dict[str, Any], reason: str
) -> None:
    idp.token_claims = claims
    client = sign_in(row, idp)
    assert client.answer.status_code == 403
    assert not is_signed_in(client)
    boss = sign_in(row, idp, make.browser(make.admin(acme)), "?try=1")
    assert reason in text_of(boss), "an Admin's trial says why"
    assert not Event.objects.filter(kind="organization.sso_tried").exists()


def test_clock_that_differs_by_half_a_minute_is_tolerated(row: Any, idp: OpenIdProvider) -> None:
    half_a_minute = id_tokens.CLOCK_TOLERANCE_S // 2
    idp.token_claims = {"iat": int(time.time()) + half_a_minute}
    assert is_signed_in(sign_in(row, idp))
    idp.token_claims = {"iat": int(time.time()) - 300, "exp": int(time.time()) - 5}
    assert is_signed_in(sign_in(row, idp))


def test_signature_by_another_key_is_refused(row: Any, idp: OpenIdProvider) -> None:
    idp.signing_key = signing_keys(2)[1]
    assert not is_signed_in(sign_in(row, idp))
    idp.header = {"alg": "RS256", "kid": "unknown"}
    assert not is_signed_in(sign_in(row, idp))


def test_shared_secret_and_unsigned_tokens_are_refused(row: Any, idp: OpenIdProvider) -> None:
    idp.header, idp.signing_key = {"alg": "HS256"}, OctKey.import_key(CLIENT_SECRET * 2)  # type: ignore[assignment]
    assert not is_signed_in(sign_in(row, idp))
    public = idp.key.as_pem(private=False)
    with pytest.raises(id_tokens.InvalidIdToken):
        id_tokens.verify_id_token(
            "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.", {"keys": []}, issuer="i", client_id="c", nonce="n"
        )
    assert public


# --- two organizations ------------------------------------------------------------------------------------------


def test_response_for_one_provider_is_refused_at_the_other(
    row: Any, idp: OpenIdProvider, evil: OpenIdProvider
) -> None:
    """A mix-up: the browser began at the hostile provider, which leads it to the honest one."""
    other = configure(make.organization("Evil"), evil)
    client = Client()
    url = idp.authorize(begin(other, client))
    honest = changed(url).replace(f"/sso/{other.pk}/", f"/sso/{row.pk}/")
    assert come_back(client, honest).status_code == 403
    assert come_back(client, url).status_code == 403, "the honest issuer's response at the hostile one"
    assert "/token" not in [*idp.requests, *evil.requests]
    assert not is_signed_in(client)


def test_response_of_another_issuer_is_refused_before_the_code_is_sent(row: Any, idp: OpenIdProvider) -> None:
    client = Client()
    url = changed(idp.authorize(begin(row, client)), iss="https://evil.example")
    assert come_back(client, url).status_code == 403
    assert "/token" not in idp.requests


def test_same_subject_at_two_providers_is_two_people(row: Any, idp: OpenIdProvider, evil: OpenIdProvider) -> None:
    assert is_signed_in(sign_in(row, idp))
    other = configure(make.organization("Evil"), evil, newcomer_role="admin")
    evil.claims["email"] = "someone@acme.example"
    client = sign_in(other, evil)
    assert client.get("/api/v1/me/").json()["user"]["email"] == "someone@acme.example"
    assert SocialAccount.objects.values("user").distinct().count() == 2


def test_hostile_provider_cannot_pretend_to_be_the_honest_one(
    row: Any, idp: OpenIdProvider, evil: OpenIdProvider
) -> None:
    other = configure(make.organization("Evil"), evil)
    evil.discovery = {"issuer": idp.issuer}
    assert open_provider(other).status_code == 403
    evil.discovery = {}
    evil.token_claims = {"iss": idp.issuer}
    assert not is_signed_in(sign_in(other, evil))


def test_hostile_newcomers_do_not_squat_on_addresses(acme: Organization, evil: OpenIdProvider) -> None:
    """An organization without the domain may neither create nor join accounts of it, invited or not."""
    other = make.organization("Evil")
    row = configure(other, evil, verified_domains=[], newcomer_role="admin")
    evil.claims["email"] = "ceo@acme.example"
    assert not is_signed_in(sign_in(row, evil))
    assert not User.objects.filter(email="ceo@acme.example").exists()
    person = User.objects.create(email="ceo@acme.example", password="!")
    Membership.objects.create(organization=other, user=person, joined_at=None, is_active=False)
    assert not is_signed_in(sign_in(row, evil))


# --- the configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "http://169.254.169.254/latest", "ftp://a.example/", "", None]
)
def test_endpoints_of_discovery_are_guarded(row: Any, idp: OpenIdProvider, endpoint: str, url: Any) -> None:
    idp.discovery = {endpoint: url}
    assert open_provider(row).status_code == 403


@pytest.mark.parametrize(
    "misbehavior",
    [
        {"discovery": {"token_endpoint_auth_methods_supported": 5}},
        {"discovery": {"token_endpoint": ["https://a.example/"]}},
        {"published_keys": []},
        {"published_keys": {"keys": 5}},
        {"published_keys": {"keys": [5, None, {}]}},
        {"published_keys": {"keys": [{"kty": "RSA", "kid": "key-0", "n": "!", "e": "AQAB"}]}},
        {"published_keys": {"keys": [{"kty": "EC", "kid": "key-0", "crv": "P-256", "x": "AA", "y": "AA"}]}},
        {"token_response": []},
        {"token_response": "text"},
        {"token_response": {"access_token": 5, "id_token": "a.b.c"}},
        {"token_response": {"access_token": "at", "expires_in": "soon", "id_token": "x"}},
        {"token_response": {"access_token": "at"}},
        {"claims": {"sub": "1"}, "user_info": []},
        {"claims": {"sub": "1"}, "discovery": {"userinfo_endpoint": 5}},
        {"claims": {"sub": "1", "email": ["dana@acme.example"], "email_verified": True}},
        {"claims": {"sub": ["1"], "email": "dana@acme.example", "email_verified": True}},
        {"claims": {"sub": "1\0", "email": "dana@acme.example", "email_verified": True}},
        {"claims": {"sub": "1", "email": "dana@acme.example", "email_verified": True, "name": "Da\0na"}},
    ],
    ids=str,
)
def test_provider_that_misbehaves_gets_an_error_page(
    row: Any, idp: OpenIdProvider, misbehavior: dict[str, Any]
) -> None:
    for name, value in misbehavior.items():
        setattr(idp, name, value)
    client = Client()
    begun = open_provider(row, client)
    if begun.status_code == 302:
        begun = come_back(client, idp.authorize(begun.url))
    assert begun.status_code == 403
    assert not is_signed_in(client)


@pytest.mark.parametrize("name", ["token_response", "published_keys"])
def test_deeply_nested_response_gets_an_error_page(row: Any, idp: OpenIdProvider, name: str) -> None:
    setattr(idp, name, b"[" * 100_000)
    assert sign_in(row, idp).answer.status_code == 403


def test_newcomer_with_an_address_that_is_too_long_gets_an_error_page(row: Any, idp: OpenIdProvider) -> None:
    IdentityProvider.objects.update(newcomer_role="dispatcher")
    idp.claims |= {"sub": "1", "email": f"{'x' * 260}@acme.example"}
    assert sign_in(row, idp).answer.status_code == 403


def test_private_addresses_and_http_are_refused_in_production(row: Any, acme: Organization, settings: Any) -> None:
    settings.DEVELOPMENT, settings.HTTP_ALLOWED_NETWORKS = False, []
    for url in (
        row.issuer,
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "http://login.example.com/",
        "https://[::1]/",
    ):
        row.issuer = url
        with pytest.raises(ValidationError) as refused:
            row.full_clean()
        assert "issuer" in refused.value.message_dict
    assert open_provider(row).status_code == 403, "the address is checked at every request"


def test_client_secret_is_encrypted_and_never_shown(row: Any, acme: Organization) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT client_secret FROM accounts_identityprovider")
        ((stored,),) = cursor.fetchall()
    assert CLIENT_SECRET not in stored
    assert crypto.decrypt(stored) == CLIENT_SECRET
    boss = make.browser(make.admin(acme))
    page = boss.get(reverse("admin:accounts_identityprovider_change", args=[row.pk]))
    assert page.status_code == 200
    assert CLIENT_SECRET not in page.content.decode()
    assert "a secret" not in page.content.decode()
    assert f"/account/sso/{row.pk}/callback/" in page.content.decode()


def form_of(row: IdentityProvider, **changes: Any) -> dict[str, Any]:
    return {
        "organization": row.organization_id, "is_active": "on", "issuer": row.issuer, "client_id": row.client_id,
        "allowed_domains": ",".join(row.allowed_domains), "email_must_be_verified": "on",
        "second_factor": row.second_factor, "newcomer_role": row.newcomer_role, "acr_values": "",
    } | changes  # fmt: skip


def test_a_domain_that_is_none_is_named_with_the_reason(row: Any, acme: Organization) -> None:
    boss = make.browser(make.admin(acme))
    url = reverse("admin:accounts_identityprovider_change", args=[row.pk])
    page = boss.post(url, form_of(row, allowed_domains="acme.example, @exa mple.com"))
    (error,) = page.context["adminform"].form.errors["allowed_domains"]
    assert "Item 2" in error
    assert "@exa mple.com is not a domain. Write it in lower case, such as example.com." in error


def test_domains_are_stored_once_and_a_long_list_is_refused(row: Any, acme: Organization) -> None:
    boss = make.browser(make.admin(acme))
    url = reverse("admin:accounts_identityprovider_change", args=[row.pk])
    names = [f"d{n}.example" for n in range(100)]
    for given in (["acme.example", *["a.example"] * 70_000], ["acme.example", *names[:99]]):
        assert boss.post(url, form_of(row, allowed_domains=",".join(given))).status_code == 302
        row.refresh_from_db()
        assert row.allowed_domains == list(dict.fromkeys(given))
    page = boss.post(url, form_of(row, allowed_domains=",".join(["acme.example", *names])))
    assert page.context["adminform"].form.errors == {"allowed_domains": ["At most 100 values allowed."]}
    row.refresh_from_db()
    assert len(row.allowed_domains) == 100


def test_admin_changes_the_configuration_but_verifies_no_domain(row: Any, acme: Organization) -> None:
    boss = make.admin(acme)
    url = reverse("admin:accounts_identityprovider_change", args=[row.pk])
    domains = {"allowed_domains": " Acme.example , gmail.com", "verified_domains": "gmail.com"}
    answer = make.browser(boss).post(url, form_of(row, **domains))
    assert answer.status_code == 302, answer.content.decode()
    row.refresh_from_db()
    assert (row.allowed_domains, row.verified_domains) == (["acme.example", "gmail.com"], ["acme.example"])
    assert row.client_secret == CLIENT_SECRET
    event = Event.objects.get(kind="organization.sso_changed")
    assert event.actor_id == boss.pk
    assert CLIENT_SECRET not in str(event.data)
    page = make.browser(boss).post(url, form_of(row, is_required="on", issuer="http://127.0.0.1:1"))
    assert page.status_code == 200, "required needs a break-glass owner"
    page = make.browser(boss).post(url, form_of(row, allowed_domains="gmail.com"))
    assert "Verified domains: Not among the allowed domains: acme.example." in page.content.decode()


def test_new_credentials_must_be_tried_before_they_are_required(row: Any, acme: Organization) -> None:
    boss = make.admin(acme)
    root = make.browser(make.user(is_superuser=True))  # "required" ends the Admins' own sessions
    url = reverse("admin:accounts_identityprovider_change", args=[row.pk])
    required = {"is_required": "on", "break_glass": boss.pk}
    User.objects.filter(pk=boss.pk).update(password="!")
    assert "no password yet" in root.post(url, form_of(row, **required)).content.decode()
    User.objects.filter(pk=boss.pk).update(password=boss.password)
    assert root.post(url, form_of(row, **required)).status_code == 302
    row.refresh_from_db()
    assert row.is_required
    assert root.post(url, form_of(row, **required, secret="another")).status_code == 302
    row.refresh_from_db()
    assert (row.tried_at, row.is_required) == (None, False)
    assert root.post(url, form_of(row, **required)).status_code == 200
    row.refresh_from_db()
    assert not row.is_required


@pytest.mark.parametrize("who", ["dispatcher", "admin of another organization", "nobody"])
def test_only_its_admins_reach_the_configuration_and_the_trial(row: Any, acme: Organization, who: str) -> None:
    people = {
        "dispatcher": lambda: make.browser(make.dispatcher(acme)),
        "admin of another organization": lambda: make.browser(make.admin(make.organization())),
        "nobody": Client,
    }
    client = people[who]()
    for url in (
        reverse("admin:accounts_identityprovider_change", args=[row.pk]),
        reverse("admin:accounts_identityprovider_try_configuration", args=[row.pk]),
        f"/account/sso/{row.pk}/?try=1",
    ):
        assert client.get(url).status_code in (302, 403, 404), url
        assert client.get(url, follow=True).status_code in (200, 403, 404)
    assert SocialAccount.objects.count() == 0


def test_trial_shows_what_would_happen_and_changes_nothing(
    row: Any, acme: Organization, idp: OpenIdProvider, dana: User
) -> None:
    boss = make.admin(acme)
    IdentityProvider.objects.update(tried_at=None, newcomer_role="dispatcher", is_active=False)
    client = make.browser(boss)
    asked = client.post(
        reverse("admin:accounts_identityprovider_try_configuration", args=[row.pk]), {"_form_submitted": "True"}
    )
    assert asked.headers["HX-Redirect"] == f"/account/sso/{row.pk}/?try=1"
    sign_in(row, idp, client, "?try=1")
    assert "dana@acme.example would be signed in as Dispatcher" in text_of(client)
    idp.claims |= {"sub": "1", "email": "new@acme.example", "name": "<script>alert(1)</script>"}
    sign_in(row, idp, client, "?try=1")
    assert "new@acme.example would join as Dispatcher" in text_of(client)
    assert "<script>alert" not in text_of(client)
    idp.claims["email"] = "x@elsewhere.example"
    assert "would not be signed in" in text_of(sign_in(row, idp, client, "?try=1"))
    assert not SocialAccount.objects.exists()
    assert not User.objects.filter(email="new@acme.example").exists()
    assert client.get("/api/v1/me/").json()["user"]["email"] == boss.email
    row.refresh_from_db()
    assert row.tried_at is not None


def test_trial_that_cannot_reach_the_provider_says_why(row: Any, acme: Organization, idp: OpenIdProvider) -> None:
    idp.stop()
    client = make.browser(make.admin(acme))
    asked = client.post(
        reverse("admin:accounts_identityprovider_try_configuration", args=[row.pk]), {"_form_submitted": "True"}
    )
    assert "HX-Redirect" not in asked.headers
    assert "is not responding as expected" in asked.content.decode()


def test_trial_of_one_admin_does_not_sign_another_browser_in(
    row: Any, acme: Organization, idp: OpenIdProvider
) -> None:
    boss, dispatcher = make.browser(make.admin(acme)), make.browser(make.dispatcher(acme))
    url = idp.authorize(begin(row, boss, "?try=1"))
    assert come_back(dispatcher, url).status_code == 403
    boss.post("/account/logout/")
    assert come_back(boss, url).status_code == 403


def test_sign_ins_are_limited_per_address(row: Any, settings: Any) -> None:
    settings.SSO_RATE = "4/min"
    client = Client()
    submit_start(row, client)
    codes = [client.get(f"/account/sso/{row.pk}/").status_code for _ in range(4)]
    assert codes == [302, 302, 302, 429]
    assert Client().post("/account/sso/", {"address": "acme"}).status_code == 429
