"""Configure an organization's provider, and sign in by it as a browser does."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.test import Client
from django.urls import reverse

from accounts.models import IdentityProvider, Organization
from dispatch.core import clock
from tests.support.openid_provider import CLIENT_ID, CLIENT_SECRET, OpenIdProvider


def configure(organization: Organization, provider: OpenIdProvider, **fields: Any) -> IdentityProvider:
    """Create the configuration, tried, with the domain acme.example allowed and verified."""
    fields.setdefault("allowed_domains", ["acme.example"])
    fields.setdefault("verified_domains", list(fields["allowed_domains"]))
    return IdentityProvider.objects.create(
        organization=organization,
        issuer=provider.issuer,
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        tried_at=clock.now(),
        **fields,
    )


def submit_start(row: IdentityProvider, client: Client, query: str = "") -> None:
    """Submit the form that allows a sign-in to begin, or the dialog of a trial (`?try=1`)."""
    if "try" in query:
        action = reverse("admin:accounts_identityprovider_try_configuration", args=[row.pk])
        client.post(action, {"_form_submitted": "True"})
    else:
        client.post("/account/sso/", {"address": row.organization.slug})


def open_provider(row: IdentityProvider, client: Client | None = None, query: str = "") -> Any:
    """Submit the form, and return the response to the address that it leads to."""
    client = client or Client()
    submit_start(row, client, query)
    return client.get(f"/account/sso/{row.pk}/{query}")


def begin(row: IdentityProvider, client: Client, query: str = "") -> str:
    """Begin a sign-in. Return the address of the provider's page."""
    answer = open_provider(row, client, query)
    assert answer.status_code == 302, answer.content.decode()
    assert "state=" in answer.url, answer.url
    return str(answer.url)


def come_back(client: Client, url: str) -> Any:
    """Open the address to which the provider sends the browser."""
    parts = urlsplit(url)
    return client.get(f"{parts.path}?{parts.query}")


def sign_in(
    row: IdentityProvider, provider: OpenIdProvider, client: Client | None = None, query: str = ""
) -> Client:
    """Sign in by the provider. The last response is `client.answer`."""
    client = client or Client()
    client.answer = come_back(client, provider.authorize(begin(row, client, query)))  # type: ignore[attr-defined]
    return client


def text_of(client: Client) -> str:
    """Return the text of the last response."""
    return " ".join(client.answer.content.decode().split())  # type: ignore[attr-defined]
