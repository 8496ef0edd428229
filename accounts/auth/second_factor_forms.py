"""Check codes and passkeys more strictly than django-allauth's forms do (MFA_FORMS).

One code is accepted once: the user's row is locked meanwhile, and the time step of a TOTP code must be later than
that of the last one. A cache cannot guarantee this during an outage of Redis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allauth.mfa.adapter import get_adapter
from allauth.mfa.base.forms import AuthenticateForm, BaseAuthenticateForm, ReauthenticateForm
from allauth.mfa.base.internal.flows import check_rate_limit
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.totp.internal import auth as totp
from allauth.mfa.webauthn.forms import (
    AddWebAuthnForm,
    AuthenticateWebAuthnForm,
    LoginWebAuthnForm,
    ReauthenticateWebAuthnForm,
)
from allauth.mfa.webauthn.internal import auth as webauthn
from django import forms
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from accounts.auth.second_factor import LAST_STEP
from accounts.models import User
from dispatch.core.web.form_fields import BoundedJSONField

MAX_CODE_LENGTH = 32


def step_of(authenticator: Authenticator, code: str) -> int | None:
    """Return the time step for which this is the TOTP code; None if it is not valid now."""
    secret = get_adapter().decrypt(authenticator.data["secret"])
    for step in totp.yield_hotp_counters_from_time():
        if totp.format_hotp_value(totp.hotp_value(secret, step)) == code:
            return step
    return None


class _CodeField(forms.CharField):
    """Read a code as people type it: "123 456"."""

    def __init__(self, **kwargs: Any) -> None:
        widget = forms.TextInput(
            attrs={
                "autocomplete": "one-time-code",
                "autofocus": True,
                "spellcheck": "false",
                "inputmode": "numeric",
            }
        )
        super().__init__(label=_("Code"), max_length=MAX_CODE_LENGTH, widget=widget, **kwargs)

    def clean(self, value: Any) -> str:
        code: str = "".join(super().clean(value).split()).replace("-", "")
        if not code.isascii():  # comparing it would fail
            raise get_adapter().validation_error("incorrect_code")
        return code


class _OnceMixin(BaseAuthenticateForm):
    code = _CodeField()

    def clean_code(self) -> str:
        with transaction.atomic():
            User.objects.select_for_update(no_key=True).get(pk=self.user.pk)
            app = Authenticator.objects.filter(user=self.user, type=Authenticator.Type.TOTP).first()
            step = step_of(app, self.cleaned_data["code"]) if app else None
            if app and step is not None and step <= app.data.get(LAST_STEP, 0):
                check_rate_limit(self.user)  # counts as a failure
                self._emit_authentication_failed(app)
                raise get_adapter().validation_error("incorrect_code")
            code: str = super().clean_code()
            if app and step is not None:
                app.data[LAST_STEP] = step
                app.save(update_fields=["data"])
            return code


class CodeForm(_OnceMixin, AuthenticateForm):
    """Check a code of the app or a recovery code during sign-in."""


class ConfirmCodeForm(_OnceMixin, ReauthenticateForm):
    """Check a code of the app or a recovery code in a session."""


class ActivateForm(ActivateTOTPForm):
    """Set up the app: its first code proves that it has the secret."""

    code = _CodeField()


def _parse(parse: Callable[[Any], Any], credential: Any) -> Any:
    """Return the parsed credential of the browser. Raises ValidationError for anything else, of any form."""
    try:
        if isinstance(credential, dict):
            return parse(credential)
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise get_adapter().validation_error("incorrect_code")


class AddPasskeyForm(AddWebAuthnForm):
    """Add a passkey. It may sign in without a password if the device checks its owner."""

    credential = BoundedJSONField(widget=forms.HiddenInput)
    name = forms.CharField(max_length=80, required=False, label=_("Name"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["passwordless"].label = _("Sign in without a password")
        self.fields["passwordless"].help_text = _("The device asks for a fingerprint, face or PIN instead.")
        self.fields["passwordless"].initial = True

    def clean_credential(self) -> dict[str, Any]:
        credential: dict[str, Any] = self.cleaned_data["credential"]
        _parse(webauthn.parse_registration_response, credential)
        return credential


class _PasskeyMixin(AuthenticateWebAuthnForm):
    credential = BoundedJSONField(widget=forms.HiddenInput)
    parsed: Any

    def clean_credential(self) -> Authenticator:
        self.parsed = _parse(webauthn.parse_authentication_response, self.cleaned_data["credential"])
        return super().clean_credential()


class PasskeyForm(_PasskeyMixin, AuthenticateWebAuthnForm):
    """Check a passkey as the second factor."""


class ConfirmPasskeyForm(_PasskeyMixin, ReauthenticateWebAuthnForm):
    """Check a passkey in a session."""


class PasskeySignInForm(_PasskeyMixin, LoginWebAuthnForm):
    """Check a passkey instead of a password. The device must have verified its owner: it is the only step."""

    def clean_credential(self) -> Authenticator:
        authenticator = super().clean_credential()
        if not self.parsed.response.authenticator_data.is_user_verified():
            raise ValidationError(_("This passkey did not ask for a fingerprint, face or PIN. Use your password."))
        return authenticator
