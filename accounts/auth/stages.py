"""Ask for the second factor during sign-in, unless an identity provider has already."""

from __future__ import annotations

from allauth.mfa.stages import AuthenticateStage
from django.http import HttpRequest

from accounts.sso.sessions import SESSION_KEY


class SecondFactorStage(AuthenticateStage):
    """Skip the second factor if the organization accepts the provider's (`IdentityProvider.second_factor`)."""

    def _should_handle(self, request: HttpRequest) -> bool:
        opened = (self.login.signal_kwargs or {}).get(SESSION_KEY)
        if opened and opened["second_factor"]:
            return False
        return bool(super()._should_handle(request))
