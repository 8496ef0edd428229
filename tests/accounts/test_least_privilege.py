"""What the least privileged callers reach: a Dispatcher, a key with the smallest scope, a stranger."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import NoReverseMatch, get_resolver, reverse

from accounts import services
from accounts.models import ApiKey, IdentityProvider, Membership, Organization, User
from dispatch.core.events import SYSTEM
from tests.support import factories as make

pytestmark = pytest.mark.django_db

CONFIRMED = {"_form_submitted": "True"}  # the dialog of an action
ACTIONS = ("new_password_link", "end_sessions", "reset_second_factor", "invite_again", "reset_single_sign_on",
           "revoke_this", "try_configuration")  # fmt: skip


@pytest.fixture
def acme() -> Organization:
    return make.organization("Acme")


@pytest.fixture
def rows(acme: Organization) -> dict[type, Any]:
    """One row of each model about identity, of the organization itself."""
    boss = make.admin(acme, "Boss")
    key, _ = services.create_api_key(acme, "ERP", ["read"], actor=SYSTEM, created_by=boss)
    provider = IdentityProvider.objects.create(
        organization=acme,
        issuer="http://127.0.0.1:1",
        client_id="c",
        client_secret="s",
        allowed_domains=["acme.example"],
    )
    return {
        Organization: acme,
        User: boss,
        Membership: boss.memberships.get(),
        ApiKey: key,
        IdentityProvider: provider,
    }


def admin_urls(rows: dict[type, Any]) -> list[str]:
    urls = []
    for model, row in rows.items():
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        urls += [reverse(f"{name}_{page}", args=[row.pk]) for page in ("change", "delete", "history")]
        urls += [reverse(f"{name}_{page}") for page in ("changelist", "add")]
        for action in ACTIONS:
            try:
                urls.append(reverse(f"{name}_{action}", args=[row.pk]))
            except NoReverseMatch:
                continue
    return urls


def is_refused(answer: Any) -> bool:
    """Return whether the page is denied, or the row does not exist for the reader (a redirect to the index)."""
    return answer.status_code in (403, 404) or (answer.status_code == 302 and answer.url == "/admin/")


def test_dispatcher_reaches_no_page_about_identity(acme: Organization, rows: dict[type, Any]) -> None:
    client = make.browser(make.dispatcher(acme))
    urls = admin_urls(rows)
    assert sum(url.rstrip("/").endswith(ACTIONS) for url in urls) == len(ACTIONS)
    before = list(User.objects.values()), list(ApiKey.objects.values()), list(IdentityProvider.objects.values())
    for url in urls:
        assert is_refused(client.get(url)), url
        assert is_refused(client.post(url, {**CONFIRMED, "name": "x", "is_active": ""})), url
    assert before == (
        list(User.objects.values()),
        list(ApiKey.objects.values()),
        list(IdentityProvider.objects.values()),
    )
    assert set(rows) <= set(admin.site._registry)


def test_key_opens_no_page_and_no_trial(acme: Organization, rows: dict[type, Any]) -> None:
    key = Client(headers={"Authorization": f"Bearer {make.api_key(acme, *ApiKey.Scope.values)}"})
    pages = ["/board/", "/admin/", "/account/sessions/", "/account/second-factor/", *admin_urls(rows)]
    for url in [*pages, f"/account/sso/{rows[IdentityProvider].pk}/?try=1"]:
        assert key.get(url).status_code in (302, 403), url
    assert "sessionid" not in key.cookies


def test_smallest_key_reads_only_itself(acme: Organization, rows: dict[type, Any]) -> None:
    key = Client(headers={"Authorization": f"Bearer {make.api_key(acme, ApiKey.Scope.SUBMIT)}"})
    answered = {}
    for pattern in _api_paths():
        answer = key.get(f"/api/v1/{pattern}")
        if answer.status_code < 400:
            answered[pattern] = answer
    allowed = {"me/", "schema/", "schema/webhooks/", "docs/"}
    assert {each for each in answered if each not in allowed} == set()
    assert answered["me/"].json()["api_key"] is not None
    for path, body in (
        ("members/", {"email": "x@acme.example", "name": "X", "role": "admin"}),
        ("api-keys/", {"name": "x", "scopes": ["manage"]}),
        ("me/organization/", {"organization": acme.slug}),
    ):
        assert key.post(f"/api/v1/{path}", body, content_type="application/json").status_code in (403, 404), path
    assert key.patch("/api/v1/organization/", {"name": "x"}, content_type="application/json").status_code == 403


def _api_paths() -> list[str]:
    """Return every path of the API without parameters."""
    found: set[str] = set()

    def walk(patterns: Any, prefix: str) -> None:
        for entry in patterns:
            path = prefix + str(entry.pattern).replace("^", "").replace("\\Z", "").replace("$", "")
            if hasattr(entry, "url_patterns"):
                walk(entry.url_patterns, path)
            elif path.startswith("api/v1/") and not set("<(?[") & set(path):
                found.add(path.removeprefix("api/v1/"))

    walk(get_resolver().url_patterns, "")
    return sorted(found)


def test_demoted_admin_loses_keys_and_pages(acme: Organization, rows: dict[type, Any]) -> None:
    make.admin(acme, "Another")
    boss, key = rows[User], rows[ApiKey]
    client = make.browser(boss)
    services.change_member(rows[Membership].pk, actor=SYSTEM, role="dispatcher")
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert client.get(reverse("admin:accounts_apikey_changelist")).status_code == 403
