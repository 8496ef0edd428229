"""Define IdentityProvider: how the members of one organization sign in by single sign-on."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models

from accounts.models import Membership, Organization, User
from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.crypto import EncryptedTextField
from dispatch.core.http.ssrf import check_target_url
from dispatch.core.languages import gettext

_DOMAIN = re.compile(r"(?=.{3,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


def validate_domain(name: str) -> None:
    """Raise ValidationError unless `name` is a domain in lower case, such as example.com."""
    if not _DOMAIN.fullmatch(name):
        raise ValidationError(
            gettext("{name} is not a domain. Write it in lower case, such as example.com.").format(name=name[:60])
        )


def check_provider_url(url: str) -> None:
    """Raise ValidationError unless the URL may be called, and is https outside development."""
    if not settings.DEVELOPMENT and urlsplit(url).scheme != "https":
        raise ValidationError(gettext("Must be an https URL."))
    check_target_url(url)


class IdentityProvider(OwnedModel):
    """Store an organization's OpenID Connect provider.

    `allowed_domains` limits which email addresses the provider may name. `verified_domains`, which only
    superusers change, are those that the organization is known to own: only for them does the sign-in page forward
    people by their email address, and only there may the provider create members. `tried_at` is empty until a
    trial with the current values succeeded.
    """

    class SecondFactor(models.TextChoices):
        NEVER = "never", "Never: members enter their second factor here as well"
        REPORTED = "reported", "If the provider reports one (amr or acr)"
        ALWAYS = "always", "Always: the provider enforces one"

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, related_name="identity_provider")
    is_active = models.BooleanField(default=True)
    issuer = models.CharField(
        "issuer URL", max_length=500, validators=[check_provider_url],
        help_text="For example https://login.example.com/realms/staff, without /.well-known/….",
    )  # fmt: skip
    client_id = models.CharField("client ID", max_length=200)
    client_secret = EncryptedTextField()
    allowed_domains = ArrayField(
        models.CharField(max_length=253, validators=[validate_domain]),
        help_text="Domains of email addresses that may sign in, separated by commas.",
    )
    verified_domains = ArrayField(
        models.CharField(max_length=253, validators=[validate_domain]), default=list, blank=True,
        help_text="Domains that this organization is known to own. Only superusers change this.",
    )  # fmt: skip
    email_must_be_verified = models.BooleanField(
        "email must be verified", default=True,
        help_text="Turn it off only if the provider sends no email_verified and users can't choose their address.",
    )  # fmt: skip
    newcomer_role = models.CharField(
        max_length=16, choices=Membership.Role, blank=True, default="",
        help_text="Role of people of a verified domain at their first sign-in. Empty: only invited people join.",
    )  # fmt: skip
    second_factor = models.CharField(
        max_length=16, choices=SecondFactor, default=SecondFactor.REPORTED,
        help_text="When the provider's sign-in counts as a second factor.",
    )  # fmt: skip
    acr_values = models.CharField(
        "ACR values",
        max_length=200, blank=True, default="",
        help_text="Requested from the provider, and accepted as a second factor, separated by spaces.",
    )  # fmt: skip
    is_required = models.BooleanField(
        "required", default=False,
        help_text="Members sign in by single sign-on only, except the break-glass owner and superusers.",
    )  # fmt: skip
    break_glass = models.ForeignKey(
        User, verbose_name="break-glass owner", null=True, blank=True, on_delete=models.SET_NULL, related_name="+",
        help_text="An Admin who may still sign in with a password and a second factor if the provider is down.",
    )  # fmt: skip
    tried_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        app_label = "accounts"
        verbose_name = "single sign-on"
        verbose_name_plural = "single sign-on"

    def __str__(self) -> str:
        return gettext("Single sign-on of {organization}").format(organization=self.organization)

    @property
    def provider_id(self) -> str:
        """Return the name of this provider in links of accounts (SocialAccount.provider). It is never reused."""
        return f"organization-sso-{self.pk}"

    @property
    def host(self) -> str:
        """Return the host name of the issuer, for people."""
        return urlsplit(self.issuer).hostname or self.issuer

    def clean(self) -> None:
        errors: dict[str, Any] = {}
        if foreign := sorted(set(self.verified_domains or []) - set(self.allowed_domains or [])):
            errors["verified_domains"] = gettext("Not among the allowed domains: {domains}.").format(
                domains=", ".join(foreign)
            )
        if self.is_required and self.break_glass_id is None:
            errors["break_glass"] = gettext("Choose who can still sign in if the provider is down.")
        if self.break_glass_id is not None and not self._is_admin(self.break_glass_id):
            errors["break_glass"] = gettext("Must be an active Admin of this organization.")
        elif self.break_glass is not None and not self.break_glass.has_usable_password():
            errors["break_glass"] = gettext(
                "This person has no password yet. Send them a link for setting one first."
            )
        if self.is_required and self.tried_at is None:
            errors["is_required"] = gettext("Save the configuration without this, and try it first.")
        if errors:
            raise ValidationError(errors)

    def _is_admin(self, user_id: int) -> bool:
        admins = Membership.objects.of(self.organization_id).filter(role=Membership.Role.ADMIN, is_active=True)
        return admins.filter(user_id=user_id, user__is_active=True).exists()
