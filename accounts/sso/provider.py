"""Send a browser to an organization's provider, and read the identity that comes back.

django-allauth's OpenID Connect provider makes the requests: state, PKCE and the exchange of the code. Added here:
the configuration is an IdentityProvider, every request is guarded, a nonce, the issuer of discovery (RFC 8414) and
of the response (RFC 9207), and a complete verification of the ID token.
"""

from __future__ import annotations

import secrets
from typing import Any, NoReturn

from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialApp
from allauth.socialaccount.providers.base import AuthError
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from cryptography.exceptions import UnsupportedAlgorithm
from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from accounts.sso.id_tokens import InvalidIdToken, verify_id_token
from accounts.sso.models import IdentityProvider, check_provider_url
from accounts.sso.requests_session import GuardedSession
from dispatch.core.api.parsers import is_storable
from dispatch.core.languages import mark

SCOPES = ["openid", "email", "profile"]
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")

UNAVAILABLE = mark("The identity provider is not responding as expected. Try again later.")
# What parsing raises if a provider's response has an unexpected form.
UNEXPECTED = (AttributeError, KeyError, TypeError, ValueError, RecursionError, UnsupportedAlgorithm)
REFUSED = mark("The identity provider's response was not accepted. Start again.")


class SignInFailed(Exception):
    """The sign-in at the provider failed. `text` is for the person, `detail` for the log and an Admin's trial."""

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(detail or text)
        self.text, self.detail = text, detail


class SocialAccountAdapter(DefaultSocialAccountAdapter):
    """Make django-allauth use the guarded client, and leave errors and accounts to this package."""

    def list_apps(self, request: HttpRequest, provider: Any = None, client_id: Any = None) -> list[SocialApp]:
        return []

    def get_requests_session(self) -> Any:
        return GuardedSession()

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return False

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: Any = None,
        exception: Any = None,
        extra_context: Any = None,
    ) -> NoReturn:
        if error == AuthError.CANCELLED:
            raise SignInFailed(mark("You canceled the sign-in."), "canceled")
        if isinstance(exception, Exception):
            raise SignInFailed(
                mark("The identity provider did not complete the sign-in. Try again, or ask an Admin."),
                str(exception)[:500],
            )
        if "error" in request.GET:
            detail = f"{request.GET['error']}: {request.GET.get('error_description', '')}"[:500]
            raise SignInFailed(mark("The identity provider refused the sign-in."), detail)
        raise SignInFailed(
            mark("This sign-in was not started in this browser, or it has expired. Start again."), "no such state"
        )


class OrganizationProvider(OpenIDConnectProvider):
    """django-allauth's provider with the configuration of one organization."""

    def __init__(self, request: HttpRequest, identity_provider: IdentityProvider) -> None:
        app = SocialApp(
            provider=self.id,
            provider_id=identity_provider.provider_id,
            name=str(identity_provider)[:40],
            client_id=identity_provider.client_id,
            secret=identity_provider.client_secret,
            settings={
                "server_url": identity_provider.issuer.rstrip("/"),
                "oauth_pkce_enabled": True,
                "scope": SCOPES,
            },
        )
        super().__init__(request, app)
        self.identity_provider = identity_provider

    def get_oauth2_adapter(self, request: HttpRequest) -> OrganizationOAuth2Adapter:
        return OrganizationOAuth2Adapter(request, self)

    def begin(self, request: HttpRequest, process: str, next_url: str = "", **state: Any) -> HttpResponse:
        """Return the redirect to the provider. Raises SignInFailed."""
        nonce = secrets.token_urlsafe(24)
        parameters = {"nonce": nonce}
        if self.identity_provider.acr_values:
            parameters["acr_values"] = self.identity_provider.acr_values
        if process == "try":
            parameters["prompt"] = "login"
        try:
            return self.redirect(
                request, process, next_url=next_url or None, auth_params=parameters, nonce=nonce, **state
            )
        except UNEXPECTED as error:
            raise SignInFailed(UNAVAILABLE, f"{type(error).__name__}: {error}") from None


class OrganizationOAuth2Adapter(OpenIDConnectOAuth2Adapter):
    """Send requests to one organization's provider."""

    state: dict[str, Any]

    def __init__(self, request: HttpRequest, provider: OrganizationProvider) -> None:
        super().__init__(request, provider.identity_provider.provider_id)
        self.provider, self.identity_provider = provider, provider.identity_provider

    def get_provider(self) -> OrganizationProvider:
        return self.provider

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        return callback_url(self.identity_provider)

    @property
    def openid_config(self) -> dict[str, Any]:
        """Return the provider's configuration. Raises SignInFailed if it is unavailable or not the provider's."""
        if not hasattr(self, "_openid_config"):
            self._openid_config = self._discover()
        return self._openid_config

    def _discover(self) -> dict[str, Any]:
        found = self._fetch(self.provider.server_url)
        issuer = self.identity_provider.issuer
        if found.get("issuer") not in (issuer, issuer.rstrip("/"), f"{issuer.rstrip('/')}/"):
            raise SignInFailed(UNAVAILABLE, f"The provider calls itself {found.get('issuer')!r}, not {issuer!r}.")
        for name in ENDPOINTS:
            try:
                check_provider_url(str(found.get(name, "")))
            except ValidationError as error:
                raise SignInFailed(UNAVAILABLE, f"{name}: {error.messages[0]}") from None
        return found

    def _fetch(self, url: str, **headers: str) -> dict[str, Any]:
        try:
            response = GuardedSession(self.identity_provider.organization_id).get(url, headers=headers)
            response.raise_for_status()
            found = response.json()
        except (OSError, ValueError, RecursionError) as error:  # errors of requests derive from OSError
            raise SignInFailed(UNAVAILABLE, str(error)) from None
        if not isinstance(found, dict):
            raise SignInFailed(UNAVAILABLE, f"{url}: the response is not a JSON object")
        return found

    def complete_login(self, request: HttpRequest, app: Any, token: Any, **kwargs: Any) -> NoReturn:
        """Raise Identified with the verified claims."""
        config = self.openid_config
        id_token = kwargs["response"].get("id_token")
        if not isinstance(id_token, str):
            raise OAuth2Error("The token response has no id_token.")
        try:
            claims = verify_id_token(
                id_token,
                self._fetch(config["jwks_uri"]),
                issuer=config["issuer"],
                client_id=self.identity_provider.client_id,
                nonce=self.state["nonce"],
            )
        except InvalidIdToken as error:
            raise OAuth2Error(str(error)) from None
        if "email" not in claims and config.get("userinfo_endpoint"):
            claims |= self._read_user_info(config["userinfo_endpoint"], token.token, claims["sub"])
        if not is_storable(claims):
            raise OAuth2Error("The claims contain a NUL character or half of a surrogate pair.")
        raise Identified(claims, self.state)

    def _read_user_info(self, url: str, access_token: str, subject: str) -> dict[str, Any]:
        try:
            check_provider_url(str(url))
        except ValidationError as error:
            raise SignInFailed(UNAVAILABLE, f"userinfo_endpoint: {error.messages[0]}") from None
        found = self._fetch(url, Authorization=f"Bearer {access_token}")
        if found.get("sub") != subject:
            raise OAuth2Error("The user information belongs to another subject.")
        return {name: found[name] for name in ("email", "email_verified", "name") if name in found}


class Identified(Exception):
    """The provider proved who signs in: the verified claims and what was stored when the sign-in began."""

    def __init__(self, claims: dict[str, Any], state: dict[str, Any]) -> None:
        super().__init__("identified")
        self.claims, self.state = claims, state


class _CallbackView(OAuth2CallbackView):
    adapter: OrganizationOAuth2Adapter

    def _get_state(self, request: HttpRequest, provider: Any) -> Any:
        state, response = super()._get_state(request, provider)
        issuer = request.GET.get("iss")
        if state is not None and issuer is not None and issuer != self.adapter.openid_config["issuer"]:
            raise SignInFailed(REFUSED, f"The response comes from another issuer: {issuer[:200]!r}.")
        self.adapter.state = state
        return state, response


def callback_url(identity_provider: IdentityProvider) -> str:
    """Return the redirect URI, which the provider must know. Each organization has its own."""
    return settings.PUBLIC_BASE_URL + reverse("sso_callback", args=[identity_provider.pk])


def read_identity(request: HttpRequest, identity_provider: IdentityProvider) -> Identified:
    """Return the identity that the provider's response proves. Raises SignInFailed."""
    provider = OrganizationProvider(request, identity_provider)
    adapter = OrganizationOAuth2Adapter(request, provider)
    try:
        _CallbackView.adapter_view(adapter)(request)
    except Identified as identity:
        return identity
    except ImmediateHttpResponse:
        pass
    except UNEXPECTED as error:
        raise SignInFailed(REFUSED, f"{type(error).__name__}: {error}") from None
    raise SignInFailed(REFUSED)


def check_discovery(request: HttpRequest, identity_provider: IdentityProvider) -> None:
    """Raise SignInFailed unless the provider publishes its configuration."""
    _ = OrganizationProvider(request, identity_provider).get_oauth2_adapter(request).openid_config
