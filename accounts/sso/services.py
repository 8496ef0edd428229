"""Change the configuration of single sign-on. Every change appends an Event without secrets."""

from __future__ import annotations

from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ValidationError
from django.db import transaction

from accounts.auth import sessions
from accounts.models import Membership, Organization, User
from accounts.sso.models import IdentityProvider
from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict, Unprocessable
from dispatch.core.events import Actor
from dispatch.core.languages import gettext

# A change of these may lead to another provider with other identities, so the links are deleted.
IDENTITY = ("issuer", "client_id")
# After a change of these, the configuration must be tried again.
TRIED = (*IDENTITY, "client_secret")


def save_provider(provider: IdentityProvider, changed: list[str], *, actor: Actor) -> None:
    """Save a new or changed configuration. `changed` names the changed fields; the others keep what is stored.

    A new issuer or client deletes the links of accounts, because their subjects belong to the former one, and ends
    the sessions that the former one opened. Raises Unprocessable if the values contradict what changed meanwhile,
    for example if the break-glass owner was removed.
    """
    with transaction.atomic():
        _lock_organization(provider.organization_id)
        _keep_unchanged(provider, changed)
        if set(TRIED) & set(changed):
            provider.tried_at = None
            provider.is_required = False
        _check(provider)
        provider.save()
        if set(IDENTITY) & set(changed):
            SocialAccount.objects.filter(provider=provider.provider_id).delete()
        shown = {
            name: getattr(provider, name)
            for name in (
                "is_active", "issuer", "client_id", "allowed_domains", "verified_domains", "newcomer_role",
                "email_must_be_verified", "second_factor", "acr_values", "is_required", "break_glass_id",
            )
        }  # fmt: skip
        _append_event(provider, "organization.sso_changed", actor, changed=sorted(changed), **shown)


def _lock_organization(organization_id: int) -> None:
    """Serialize changes of the provider with each other and with changes of members (`services.change_member`)."""
    Organization.objects.select_for_update(no_key=True).get(pk=organization_id)


def _keep_unchanged(provider: IdentityProvider, changed: list[str]) -> None:
    """Take the fields that are not in `changed` from the stored row, which another request may have changed."""
    rows = IdentityProvider.objects.select_for_update(no_key=True)
    stored = rows.filter(pk=provider.pk).first() if provider.pk else None
    if provider.pk and stored is None:
        raise Conflict(gettext("The configuration was removed meanwhile."), code="removed")
    for field in provider._meta.concrete_fields:
        if stored is not None and field.name not in changed:
            setattr(provider, field.attname, getattr(stored, field.attname))


def _check(provider: IdentityProvider) -> None:
    """Validate the values together under the lock: the form validated them before it."""
    try:
        provider.clean()
    except ValidationError as error:
        raise Unprocessable(" ".join(error.messages), code="changed_meanwhile") from None


def delete_provider(provider: IdentityProvider, *, actor: Actor) -> None:
    """Delete the configuration and the links of accounts. Sessions that the provider opened end."""
    with transaction.atomic():
        _lock_organization(provider.organization_id)
        SocialAccount.objects.filter(provider=provider.provider_id).delete()
        _append_event(provider, "organization.sso_removed", actor, issuer=provider.issuer)
        provider.delete()


def record_trial(provider: IdentityProvider, *, actor: Actor) -> None:
    """Record that an Admin completed a sign-in with the current configuration."""
    with transaction.atomic():
        row = IdentityProvider.objects.select_for_update(no_key=True).filter(pk=provider.pk).first()
        if row is not None and all(getattr(row, name) == getattr(provider, name) for name in TRIED):
            row.tried_at = clock.now()
            row.save(update_fields=["tried_at"])
            _append_event(provider, "organization.sso_tried", actor)


def unlink_identity(membership: Membership, *, actor: Actor) -> bool:
    """Delete the link of a member to an identity of the provider. Return whether there was one, or a session.

    Sessions that the provider opened end: the former identity may be another person by now.
    """
    provider = IdentityProvider.objects.of(membership.organization_id).first()
    if provider is None:
        return False
    with transaction.atomic():
        # As when an identity is linked.
        user = User.objects.select_for_update(no_key=True).get(pk=membership.user_id)
        count, _ = SocialAccount.objects.filter(provider=provider.provider_id, user=user).delete()
        kinds = ["membership.sso_unlinked"] if count else []
        if sessions.end_provider_sessions(user, provider.pk):
            kinds.append("membership.sessions_ended")
        for kind in kinds:
            events.append(membership.organization_id, kind, membership.pk, actor=actor, user_id=user.pk)
    return bool(kinds)


def _append_event(provider: IdentityProvider, kind: str, actor: Actor, **data: Any) -> None:
    events.append(provider.organization_id, kind, provider.organization_id, actor=actor, **data)
