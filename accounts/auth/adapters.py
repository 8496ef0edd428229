"""Fit django-allauth to our accounts: people sign in by email, are invited, and have encrypted secrets."""

from __future__ import annotations

from typing import Any

from allauth.account import app_settings
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.utils import get_next_redirect_url
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth import authenticate, login
from django.contrib.auth.base_user import AbstractBaseUser
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy

from accounts import invitations
from accounts.auth import devices, second_factor
from accounts.auth.session_store import SIGNED_IN_AT
from accounts.models import User
from accounts.sso import sessions as sso
from dispatch.core import clock, crypto
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.web.client_addresses import read_address

BACKEND = "django.contrib.auth.backends.ModelBackend"
METHODS = {
    "reauthenticate": mark("Use your password"),
    "mfa_reauthenticate": mark("Use a code"),
    "mfa_reauthenticate:webauthn": mark("Use a passkey"),
}


class AccountAdapter(DefaultAccountAdapter):
    """Sign people in and confirm passwords, with the lock-out of `sign_in`. Nobody signs up."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def pre_login(self, request: HttpRequest, user: Any, **kwargs: Any) -> HttpResponse | None:
        """Refuse people without an active membership, as the sign-in form does; a passkey skips that form.

        If they did not sign in at a provider, also refuse those whose organizations require single sign-on. The
        link of an invitation still opens for both: no provider accepts it for them, and the session reaches no
        organization.
        """
        is_by_provider = sso.SESSION_KEY in (kwargs.get("signal_kwargs") or {})
        target = kwargs.get("redirect_url") or get_next_redirect_url(request) or ""
        if not is_by_provider and invitations.is_own_invitation(target, user):
            return None
        if not (user.is_active and user.is_staff):
            return self.respond_user_inactive(request, user)
        if not is_by_provider and (required := sso.required_provider(user)):
            return TemplateResponse(request, "sso/required.html", {"provider": required}, status=403)
        return None

    def post_login(self, request: HttpRequest, user: Any, **kwargs: Any) -> HttpResponse:
        """Store in the session that a provider opened it, and report a new browser."""
        if opened := (kwargs.get("signal_kwargs") or {}).get(sso.SESSION_KEY):
            request.session[sso.SESSION_KEY] = opened
        response: HttpResponse = super().post_login(request, user, **kwargs)
        devices.recognize_browser(request, response, user)
        return response

    def get_login_stages(self) -> list[str]:
        """Return the steps of a sign-in: the second factor, unless the provider's counts."""
        own = {"allauth.mfa.stages.AuthenticateStage": "accounts.auth.stages.SecondFactorStage"}
        return [own.get(path, path) for path in super().get_login_stages()]

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the client's address for limits and the list of sessions, IPv4 also if it is mapped to IPv6.

        django-allauth counts an IPv6 client by its /64 network, and all mapped addresses are in one.
        """
        address = read_address(request)
        return super().get_client_ip(request) if address is None else str(address)

    def login(self, request: HttpRequest, user: AbstractBaseUser) -> None:
        login(request, user, backend=BACKEND)  # type: ignore[arg-type]

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """Return whether changing a factor needs the password or a factor again: not just after signing in."""
        signed_in_at: float = self.request.session.get(SIGNED_IN_AT, 0.0)
        return clock.now().timestamp() - signed_in_at > app_settings.REAUTHENTICATION_TIMEOUT

    def get_reauthentication_methods(self, user: Any) -> list[dict[str, Any]]:
        """Return the ways to confirm the user's identity, with our descriptions."""
        methods = super().get_reauthentication_methods(user)
        return [
            {**method, "description": _(METHODS.get(method["id"], str(method["description"])))}
            for method in methods
        ]

    def reauthenticate(self, user: AbstractBaseUser, password: str) -> bool:
        """Return whether it is the user's password. Failures count toward the lock-out."""
        found = authenticate(self.request, username=user.get_username(), password=password)
        return found is not None and found.pk == user.pk


class MFAAdapter(DefaultMFAAdapter):
    """Encrypt secrets with FIELD_ENCRYPTION_KEYS, and keep the last factor where one is required."""

    error_messages = {
        **DefaultMFAAdapter.error_messages,
        "cannot_delete_authenticator": gettext_lazy(
            mark("You need a second factor here. Add a passkey before you turn off the app.")
        ),
        "incorrect_code": gettext_lazy(
            mark("This code is wrong, has expired or was already used. Enter the next one.")
        ),
    }

    def encrypt(self, text: str) -> str:
        return crypto.encrypt(text)

    def decrypt(self, encrypted_text: str) -> str:
        return crypto.decrypt(encrypted_text)

    def can_delete_authenticator(self, authenticator: Authenticator) -> bool:
        user = authenticator.user
        assert isinstance(user, User)
        others = second_factor.factors_of(user).exclude(pk=authenticator.pk)
        return others.exists() or not second_factor.is_required(user)

    def generate_authenticator_name(self, user: AbstractBaseUser, type: Authenticator.Type) -> str:  # noqa: A002
        """Return the suggested name of a new passkey."""
        count = Authenticator.objects.filter(user_id=user.pk, type=type).count()
        return _("Passkey {number}").format(number=count + 1) if count else _("Passkey")

    def get_public_key_credential_rp_entity(self) -> dict[str, str]:
        return {**super().get_public_key_credential_rp_entity(), "name": settings.MFA_TOTP_ISSUER}
