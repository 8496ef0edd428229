"""Decide whom a verified identity may sign in.

A provider speaks for its own organization only. It never reaches a superuser or somebody who has not joined the
organization, and its session is confined to the organization (`sessions`), so that a member of several
organizations is not taken over in the others. Only an unused account of a verified domain joins by the sign-in
itself. Any other joins through the link of an invitation, where its owner proves access to it: an organization
could otherwise claim addresses that are not its own before their owners use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from accounts.auth import security_mail
from accounts.models import Membership, User
from accounts.sso.models import IdentityProvider
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _

MAX_NAME_LENGTH = 120


class NotAdmitted(Exception):
    """The identity may not sign in. The text may be shown to the person; `code` is logged."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Admission:
    """The user whom the identity signs in. `joined`: they became a member by this sign-in."""

    user: User
    joined: bool


def admit_identity(provider: IdentityProvider, claims: dict[str, Any]) -> Admission:
    """Return the member whom the identity signs in, linking or creating the account. Raises NotAdmitted."""
    with transaction.atomic():
        link = SocialAccount.objects.filter(provider=provider.provider_id, uid=claims["sub"]).first()
        if link is not None:
            user = User.objects.select_for_update(no_key=True).get(pk=link.user_id)
            _check_member(provider, user)
            return Admission(user, joined=False)
        email = _read_email(provider, claims)
        if provider.newcomer_role and _domain_of(email) in provider.verified_domains:
            User.objects.get_or_create(email=email, defaults={"password": "!"})
        user_row = User.objects.select_for_update(no_key=True).filter(email=email).first()
        if user_row is None:
            raise NotAdmitted(
                "not_a_member",
                _("{email} is not a member of {organization}. Ask an Admin to invite you.").format(
                    email=email, organization=provider.organization
                ),
            )
        joined = _join(provider, user_row, claims)
        _check_member(provider, user_row)
        _link(provider, user_row, claims["sub"])
    return Admission(user_row, joined)


def satisfies_second_factor(provider: IdentityProvider, claims: dict[str, Any]) -> bool:
    """Return whether the provider's sign-in counts as a second factor (RFC 8176: amr "mfa")."""
    if provider.second_factor == provider.SecondFactor.ALWAYS:
        return True
    if provider.second_factor == provider.SecondFactor.NEVER:
        return False
    if claims.get("acr") and claims["acr"] in provider.acr_values.split():
        return True
    methods = claims.get("amr")
    return isinstance(methods, list) and "mfa" in methods


def _read_email(provider: IdentityProvider, claims: dict[str, Any]) -> str:
    """Return the email address that the provider vouches for and may name."""
    email = str(claims.get("email") or "").strip().lower()
    try:
        validate_email(email)
        User._meta.get_field("email").run_validators(email)  # its length
    except ValidationError:
        raise NotAdmitted("no_email", _("The identity provider sent no email address.")) from None
    verified = claims.get("email_verified")
    is_verified = verified is True or verified == "true"
    if not is_verified and (provider.email_must_be_verified or verified is not None):
        raise NotAdmitted(
            "email_not_verified",
            _("The identity provider has not verified the address {email}.").format(email=email),
        )
    if _domain_of(email) not in provider.allowed_domains:
        raise NotAdmitted(
            "other_domain",
            _("Addresses of {email} can't sign in to {organization}.").format(
                email=_domain_of(email), organization=provider.organization
            ),
        )
    return email


def _domain_of(email: str) -> str:
    return email.rpartition("@")[2]


def _join(provider: IdentityProvider, user: User, claims: dict[str, Any]) -> bool:
    """Make an invited person or a newcomer a member if the account was never used. Return whether they joined."""
    rows = Membership.objects.of(provider.organization_id).select_for_update(no_key=True)
    membership = rows.filter(user=user).first()
    if membership is not None and membership.joined_at is not None:
        return False
    is_newcomer = membership is None
    is_own = _domain_of(user.email) in provider.verified_domains
    if is_newcomer and not (is_own and provider.newcomer_role):
        raise NotAdmitted(
            "not_a_member",
            _("{email} is not a member of {organization}. Ask an Admin to invite you.").format(
                email=user.email, organization=provider.organization
            ),
        )
    if not (is_own and _is_unclaimed(user)):
        raise NotAdmitted(
            "not_joined",
            (
                _(
                    "You have not joined {organization} yet. Ask an Admin to invite you, and open the link of the "
                    "invitation first."
                )
                if is_newcomer
                else _("You have not joined {organization} yet. Open the link of the invitation first.")
            ).format(organization=provider.organization),
        )
    user.name = (
        user.name or str(claims.get("name") or "").strip()[:MAX_NAME_LENGTH] or user.email.partition("@")[0]
    )
    user.save(update_fields=["name"])
    if membership is None:
        membership = Membership(
            organization_id=provider.organization_id, user=user, role=provider.newcomer_role, is_active=False
        )
    membership.joined_at, membership.is_active = clock.now(), True
    membership.invited_name = membership.invited_phone = ""
    membership.save()
    _append_event(membership, "membership.joined", role=membership.role, is_active=True)
    return True


def _is_unclaimed(user: User) -> bool:
    """Return whether nobody has used this account yet: it may only have been invited."""
    has_history = user.has_usable_password() or user.email_confirmed_at or user.last_login or user.is_superuser
    if has_history or not user.is_active or user.memberships.filter(joined_at__isnull=False).exists():
        return False
    return not SocialAccount.objects.filter(user=user).exists()


def _check_member(provider: IdentityProvider, user: User) -> None:
    if user.is_superuser:
        raise NotAdmitted(
            "superuser", _("Superusers can't sign in by an organization's single sign-on. Use your password.")
        )
    membership = Membership.objects.of(provider.organization_id).filter(user=user, joined_at__isnull=False).first()
    if membership is None:
        raise NotAdmitted(
            "removed",
            _("You are no longer a member of {organization}. Ask an Admin to invite you.").format(
                organization=provider.organization
            ),
        )
    if not (membership.is_active and user.is_active):
        raise NotAdmitted(
            "deactivated",
            _("Your account is deactivated in {organization}. Ask an Admin.").format(
                organization=provider.organization
            ),
        )


def _link(provider: IdentityProvider, user: User, subject: str) -> None:
    """Link the identity to the account. A second identity with the same address may be another person."""
    if SocialAccount.objects.filter(provider=provider.provider_id, user=user).exists():
        raise NotAdmitted(
            "linked_to_another",
            _("{email} is linked to another identity. Ask an Admin to reset your single sign-on.").format(
                email=user.email
            ),
        )
    try:
        with transaction.atomic():
            SocialAccount.objects.create(provider=provider.provider_id, uid=subject, user=user)
    except IntegrityError:
        raise NotAdmitted("concurrent", _("This sign-in happened twice at the same time. Start again.")) from None
    membership = Membership.objects.of(provider.organization_id).get(user=user)
    _append_event(membership, "membership.sso_linked")
    security_mail.enqueue_mail(user, "sso_linked")


def _append_event(membership: Membership, kind: str, **data: Any) -> None:
    actor = Actor(type="user", id=membership.user_id, label=str(membership.user))
    events.append(membership.organization_id, kind, membership.pk, actor=actor, user_id=membership.user_id, **data)
