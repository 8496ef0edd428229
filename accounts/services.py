"""Changes of accounts: API keys, members, duty. Every one appends an Event."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.contrib.auth.tokens import default_token_generator
from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from accounts import keys
from accounts.invitations import Invitation
from accounts.models import ApiKey, Membership, Organization, User
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.problems import Conflict, Unprocessable


class LastAdmin(Unprocessable):
    """422: nobody would be left to administer the organization."""

    default_detail = "This is the organization's last active Admin. Make somebody else an Admin first."
    default_code = "last_admin"


def change_organization(organization_id: int, changes: dict[str, Any], *, actor: Actor) -> Organization:
    """Changes fields of the organization (by name, validated); the event names them."""
    with transaction.atomic():
        organization = Organization.objects.select_for_update().get(pk=organization_id)
        changed = {name: value for name, value in changes.items() if getattr(organization, name) != value}
        if changed:
            for name, value in changed.items():
                setattr(organization, name, value)
            organization.save(update_fields=list(changed))
            events.append(organization.pk, "organization.changed", organization.pk, actor=actor, changes=changed)
    return organization


def create_api_key(
    organization: Organization,
    name: str,
    scopes: Iterable[str],
    *,
    actor: Actor,
    created_by: User | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """A new key and the whole of it, which is shown once and kept nowhere. `scopes` are `ApiKey.Scope` values."""
    while True:
        prefix, whole, digest = keys.fresh()
        try:
            with transaction.atomic():
                key = ApiKey.objects.create(
                    organization=organization,
                    name=name,
                    prefix=prefix,
                    secret_hash=digest,
                    scopes=sorted(set(scopes)),
                    created_by=created_by,
                    expires_at=expires_at,
                )
                events.append(
                    organization.pk, "api_key.created", key.pk, actor=actor, name=name, scopes=key.scopes
                )
                return key, whole
        except IntegrityError:
            if not ApiKey.objects.filter(prefix=prefix).exists():
                raise


def revoke_api_key(key_id: int, *, actor: Actor) -> ApiKey:
    """Ends the key at once; a second time changes nothing."""
    with transaction.atomic():
        key = ApiKey.objects.select_for_update().get(pk=key_id)
        if key.revoked_at is None:
            key.revoked_at = clock.now()
            key.save(update_fields=["revoked_at"])
            events.append(key.organization_id, "api_key.revoked", key.pk, actor=actor, name=key.name)
    return key


def set_duty(membership_id: int, on_duty: bool, *, actor: Actor) -> Membership:
    """Puts a member on or off duty; `duty_changed_at` says since when. The same again changes nothing."""
    with transaction.atomic():
        membership = (
            Membership.objects.select_for_update(of=("self",)).select_related("user").get(pk=membership_id)
        )
        if membership.on_duty != on_duty:
            membership.on_duty, membership.duty_changed_at = on_duty, clock.now()
            membership.save(update_fields=["on_duty", "duty_changed_at"])
            kind = "membership.on_duty" if on_duty else "membership.off_duty"
            events.append(membership.organization_id, kind, membership.pk, actor=actor, user_id=membership.user_id)
    return membership


def change_own_phone(user: User, phone: str, *, actor: Actor) -> bool:
    """Changes the number by which alerts reach the person (E.164, empty for none); whether it was another
    one. Each of their organizations' logs is told, without the number."""
    with transaction.atomic():
        row = User.objects.select_for_update().get(pk=user.pk)
        if str(row.phone or "") == phone:
            return False
        row.phone = phone
        row.save(update_fields=["phone"])
        for membership in row.active_memberships:
            events.append(
                membership.organization_id, "membership.phone_changed", membership.pk, actor=actor, user_id=row.pk
            )
    return True


def add_member(
    organization: Organization, *, email: str, name: str, role: str, actor: Actor, phone: str = ""
) -> tuple[Membership, bool]:
    """Invites the person with this e-mail, creating the User when there is none (with no password yet): a member
    as soon as they join. Send the invitation afterwards (`invitations.send`).

    Returns the membership and whether the user is new; of a known user nothing is changed. Raises Conflict when
    they are a member, or invited, already."""
    with transaction.atomic():
        user, is_new = User.objects.get_or_create(
            email=email.strip().lower(), defaults={"name": name, "phone": phone, "password": "!"}
        )
        membership, added = Membership.objects.get_or_create(
            organization=organization,
            user=user,
            defaults={"role": role, "is_active": False, "joined_at": None},
        )
        if not added:
            what = "a member" if membership.joined_at else "invited"
            raise Conflict(f"{user.email} is {what} already.", code="already_a_member")
        _tell(membership, "membership.added", actor)
    return membership, is_new


def join(invitation: Invitation, *, actor: Actor) -> Membership:
    """The invited person becomes a member; a second time changes nothing. `actor` is that person."""
    with transaction.atomic():
        membership = Membership.objects.select_for_update().get(pk=invitation.membership.pk)
        if membership.joined_at is None:
            membership.joined_at, membership.is_active = clock.now(), True
            membership.save(update_fields=["joined_at", "is_active"])
            if invitation.mailed:
                User.objects.filter(pk=membership.user_id, email_confirmed_at=None).update(
                    email_confirmed_at=membership.joined_at
                )
            _tell(membership, "membership.joined", actor)
    return membership


def change_member(
    membership_id: int,
    *,
    actor: Actor,
    role: str | None = None,
    is_active: bool | None = None,
    alert_order: int | None = None,
) -> Membership:
    """Changes a member's role or place among those whom alerts reach, or switches the membership off or on. Off
    also means off duty. Raises LastAdmin."""
    with transaction.atomic():
        organization_id = Membership.objects.values_list("organization_id", flat=True).get(pk=membership_id)
        # One change of members at a time, so that two cannot both see the other as the Admin who stays.
        Organization.objects.select_for_update().get(pk=organization_id)
        membership = Membership.objects.select_related("user").get(pk=membership_id)
        if is_active and membership.joined_at is None:
            raise Conflict("They have not accepted the invitation yet.", code="not_joined")
        before = (membership.role, membership.is_active)
        if alert_order is not None and alert_order != membership.alert_order:
            membership.alert_order = alert_order
            membership.save(update_fields=["alert_order"])
            events.append(
                organization_id, "membership.ordered", membership.pk, actor=actor, user_id=membership.user_id,
                alert_order=alert_order,
            )  # fmt: skip
        membership.role = membership.role if role is None else role
        membership.is_active = membership.is_active if is_active is None else is_active
        if before != (membership.role, membership.is_active):
            if before == (Membership.Role.ADMIN, True):
                _keep_an_admin(membership)
            if not membership.is_active and membership.on_duty:
                membership.on_duty, membership.duty_changed_at = False, clock.now()
            membership.save()
            _tell(membership, "membership.changed", actor)
    return membership


def remove_member(membership_id: int, *, actor: Actor) -> None:
    """Ends a membership for good; the User stays. Raises LastAdmin."""
    with transaction.atomic():
        membership = change_member(membership_id, actor=actor, is_active=False)
        _tell(membership, "membership.removed", actor)
        membership.delete()


def password_path(user: User) -> str:
    """The path of the page on which this user sets a password; good until used, or for PASSWORD_RESET_TIMEOUT."""
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    return reverse("set_password", args=[uid, default_token_generator.make_token(user)])


def is_only_theirs(user: User, organization_ids: Iterable[int] | None) -> bool:
    """Whether an Admin of these organizations (None: a superuser) may hand this user a way to sign in: nobody
    whose account reaches farther than the organizations administered."""
    if organization_ids is None:
        return True
    elsewhere = user.memberships.exclude(organization_id__in=list(organization_ids))
    return not user.is_superuser and user.memberships.exists() and not elsewhere.exists()


def _keep_an_admin(leaving: Membership) -> None:
    others = Membership.objects.of(leaving.organization_id).filter(
        role=Membership.Role.ADMIN, is_active=True, user__is_active=True
    )
    if not others.exclude(pk=leaving.pk).exists():
        raise LastAdmin


def _tell(membership: Membership, kind: str, actor: Actor) -> None:
    events.append(
        membership.organization_id,
        kind,
        membership.pk,
        actor=actor,
        user_id=membership.user_id,
        role=membership.role,
        is_active=membership.is_active,
    )
