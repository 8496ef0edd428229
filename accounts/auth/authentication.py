"""Authenticate REST clients and signed-in users, and set the request's organization.

Both methods set `request.organization`, `request.membership` (None for a key), `request.role` and `request.actor`
(`core.events.Actor`).
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from accounts import tenancy
from accounts.auth import api_keys, throttling
from accounts.models import ApiKey, User
from dispatch.core.web.client_addresses import limit_key


class KeyClient:
    """Stand for the caller as `request.user` of a request with an API key: authenticated, but not a person."""

    is_authenticated = True
    is_anonymous = False
    is_active = True
    is_staff = False
    is_superuser = False
    pk = None

    def __init__(self, key: ApiKey) -> None:
        self.key = key

    def __str__(self) -> str:
        return self.key.name


def has_credentials(request: HttpRequest | Request) -> bool:
    """Return whether the request names an API key, so that its session does not count."""
    return bool(get_authorization_header(request).partition(b" ")[0])  # type: ignore[arg-type]


class ApiKeyAuthentication(BaseAuthentication):
    """Authenticate `Authorization: Bearer dk_<prefix>_<secret>`. `request.auth` is the ApiKey."""

    def authenticate(self, request: Request) -> tuple[KeyClient, ApiKey] | None:
        if not has_credentials(request):
            return None
        scheme, _, credentials = get_authorization_header(request).partition(b" ")
        if scheme.lower() != b"bearer":
            raise AuthenticationFailed("Send `Authorization: Bearer` with an API key.")
        whole = credentials.strip().decode("ascii", "replace")
        sender = f"{limit_key(request._request)}:{api_keys.prefix_of(whole)}"
        throttling.check_sender(sender)
        try:
            key = api_keys.authenticate_key(whole)
        except api_keys.InvalidApiKey as error:
            throttling.record_bad_key(sender)
            raise AuthenticationFailed(str(error)) from None
        if not key.organization.is_active:
            raise PermissionDenied("This organization is deactivated.")
        if (named := request.headers.get(tenancy.HEADER)) and named != key.organization.slug:
            raise PermissionDenied("This API key belongs to another organization.")
        api_keys.mark_used(key)
        http = request._request
        http.organization, http.membership, http.role = key.organization, None, None
        http.actor = tenancy.actor_of_key(key)
        return KeyClient(key), key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class MemberSessionAuthentication(SessionAuthentication):
    """Authenticate a browser session. Unsafe requests need the CSRF token."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        authenticated = super().authenticate(request)
        if authenticated is None:
            return None
        try:
            enter_organization(
                request._request,
                tenancy.membership_context(authenticated[0], *requested_organization(request._request)),
            )
        except tenancy.NoOrganization as error:
            raise PermissionDenied(str(error)) from None
        return authenticated


def requested_organization(request: HttpRequest) -> tuple[str, int | None]:
    """Return the slug of the request's header, and the id of the organization that the session remembers."""
    return request.headers.get(tenancy.HEADER, ""), request.session.get(tenancy.SESSION_KEY)


def enter_organization(request: HttpRequest, tenant: tenancy.CurrentTenant) -> None:
    """Set the organization, membership, role and actor on the request."""
    assert isinstance(request.user, User)
    request.organization = tenant.organization
    request.membership = tenant.membership
    request.role = tenant.role
    request.actor = tenancy.actor_of(request.user)
