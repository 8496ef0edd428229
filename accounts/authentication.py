"""How a REST client or a signed-in person is recognised, and which organization they speak for.

Both set `request.organization`, `request.membership` (None for a key), `request.role` and `request.actor`
(`core.events.Actor`)."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from accounts import current, guessing, keys
from accounts.models import ApiKey, User


class KeyClient:
    """`request.user` of a request that came with an API key: somebody, but no person."""

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


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer dk_<prefix>_<secret>`. `request.auth` is the ApiKey."""

    def authenticate(self, request: Request) -> tuple[KeyClient, ApiKey] | None:
        scheme, _, credentials = get_authorization_header(request).partition(b" ")
        if not scheme:
            return None
        if scheme.lower() != b"bearer":
            raise AuthenticationFailed("Authorize with `Bearer` and an API key.")
        whole = credentials.strip().decode("ascii", "replace")
        sender = f"{request.META.get('REMOTE_ADDR', '')}:{keys.prefix_of(whole)}"
        guessing.check(sender)
        try:
            key = keys.recognise(whole)
        except keys.Unrecognised as error:
            guessing.failed(sender)
            raise AuthenticationFailed(str(error)) from None
        if not key.organization.is_active:
            raise PermissionDenied("This organization is switched off.")
        if (named := request.headers.get(current.HEADER)) and named != key.organization.slug:
            raise PermissionDenied("This API key belongs to another organization.")
        keys.mark_used(key)
        http = request._request
        http.organization, http.membership, http.role = key.organization, None, None
        http.actor = current.actor_of_key(key)
        return KeyClient(key), key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class MemberSessionAuthentication(SessionAuthentication):
    """A person signed in with a browser; unsafe requests need the CSRF token."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        found = super().authenticate(request)
        if found is None:
            return None
        try:
            work_in(request._request, current.of_person(found[0], *wanted(request._request)))
        except current.NoOrganization as error:
            raise PermissionDenied(str(error)) from None
        return found


def wanted(request: HttpRequest) -> tuple[str, int | None]:
    """What the request says about its organization: the header's slug, and the session's choice."""
    return request.headers.get(current.HEADER, ""), request.session.get(current.SESSION_KEY)


def work_in(request: HttpRequest, found: current.Current) -> None:
    """Puts what was found on the request."""
    assert isinstance(request.user, User)
    request.organization = found.organization
    request.membership = found.membership
    request.role = found.role
    request.actor = current.actor_of(request.user)
