"""Change accounts: API keys, members, duty. Every change appends an Event."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from accounts import invitations, limits
from accounts.auth import api_keys, second_factor, security_mail, sessions
from accounts.invitations import Invitation
from accounts.models import ApiKey, IdentityProvider, Membership, Organization, OrganizationLimits, User
from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict, Unprocessable
from dispatch.core.events import Actor
from dispatch.core.languages import gettext, mark

_on_time_zone_change: list[Callable[[int], None]] = []
_on_member_left: list[Callable[[int, int, Actor], None]] = []


class LastAdmin(Unprocessable):
    """422: the change would leave the organization without an admin."""

    default_detail = mark("This is the organization's last active admin. Make someone else an admin first.")
    default_code = "last_admin"


class BreakGlassOwner(Unprocessable):
    """422: the change would leave nobody who can sign in while the organization's identity provider is down."""

    default_detail = mark(
        "This person is the break-glass owner of the single sign-on. Choose another one there first."
    )
    default_code = "break_glass_owner"


def on_time_zone_change(callback: Callable[[int], None]) -> None:
    """Register a callback, called with the organization's id in the transaction that changes its time zone."""
    if callback not in _on_time_zone_change:
        _on_time_zone_change.append(callback)


def on_member_left(callback: Callable[[int, int, Actor], None]) -> None:
    """Register a callback, called with the ids of the organization and the user, and the actor.

    It is called in the transaction that deactivates or ends the membership.
    """
    if callback not in _on_member_left:
        _on_member_left.append(callback)


def change_organization(organization_id: int, changes: dict[str, Any], *, actor: Actor) -> Organization:
    """Change fields of the organization (by name, validated). The event names the changed fields."""
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
        changed = {name: value for name, value in changes.items() if getattr(organization, name) != value}
        if changed:
            for name, value in changed.items():
                setattr(organization, name, value)
            organization.save(update_fields=list(changed))
            events.append(organization.pk, "organization.changed", organization.pk, actor=actor, changes=changed)
        if "time_zone" in changed:
            for callback in _on_time_zone_change:
                callback(organization.pk)
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
    """Create a key. Return its row and the whole key, which is shown once and never stored.

    `scopes` are `ApiKey.Scope` values. Raises LimitReached if the organization has too many keys.
    """
    while True:
        prefix, whole, digest = api_keys.generate_key()
        try:
            with transaction.atomic():
                Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
                limits.check_key_limit(organization.pk)
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


def default_key_expiry() -> datetime | None:
    """Return when a key expires whose creator names no time; None: never (API_KEY_DAYS is 0)."""
    return clock.now() + timedelta(days=settings.API_KEY_DAYS) if settings.API_KEY_DAYS else None


def reset_proof_of_address(user: User, *, former: str) -> None:
    """Record that the user's address is not proved, unless it is the `former` one."""
    if user.email != former:
        User.objects.filter(pk=user.pk).update(email_confirmed_at=None)


def keys_made_by(membership: Membership) -> QuerySet[ApiKey]:
    """Return the organization's keys that this member created and that still work."""
    unexpired = Q(expires_at=None) | Q(expires_at__gt=clock.now())
    return ApiKey.objects.filter(
        unexpired, organization=membership.organization_id, created_by=membership.user_id, revoked_at=None
    )


def revoke_keys_of(user: User, *, actor: Actor) -> None:
    """Revoke the keys that this user created, in every organization."""
    for key_id in ApiKey.objects.filter(created_by=user, revoked_at=None).values_list("pk", flat=True):
        revoke_api_key(key_id, actor=actor)


def revoke_keys_without_rights(user: User, *, actor: Actor) -> None:
    """Revoke the keys of a former superuser in organizations of which they are not an active admin."""
    administered = user.memberships.filter(role=Membership.Role.ADMIN, is_active=True)
    keys = ApiKey.objects.filter(created_by=user, revoked_at=None)
    for key in keys.exclude(organization__in=administered.values("organization")):
        revoke_api_key(key.pk, actor=actor)


def revoke_api_key(key_id: int, *, actor: Actor) -> ApiKey:
    """Revoke the key immediately. Idempotent."""
    with transaction.atomic():
        key = ApiKey.objects.select_for_update(no_key=True).get(pk=key_id)
        if key.revoked_at is None:
            key.revoked_at = clock.now()
            key.save(update_fields=["revoked_at"])
            events.append(key.organization_id, "api_key.revoked", key.pk, actor=actor, name=key.name)
    return key


def reset_second_factor(user: User, *, actor: Actor, mails: Iterable[str] = ("second_factor_reset",)) -> None:
    """Delete all factors and recovery codes of the user, end their sessions, and send them these `mails`."""
    with transaction.atomic():
        row = User.objects.select_for_update(no_key=True).get(pk=user.pk)
        Authenticator.objects.filter(user=row).delete()
        row.second_factor_at = None
        row.save(update_fields=["second_factor_at"])
        second_factor.append_event(row, "membership.second_factor_reset", actor)
        for kind in mails:
            security_mail.enqueue_mail(row, kind)
        sessions.end_all_sessions(row, actor=actor)


def change_limits(row: OrganizationLimits, *, actor: Actor) -> None:
    """Save an organization's limits. They take effect within seconds."""
    with transaction.atomic():
        row.save()
        values = {name: getattr(row, name) for name in limits.LABELS}
        events.append(row.organization_id, "limits.changed", row.pk, actor=actor, **values)
    limits.reset()


def set_duty(membership_id: int, on_duty: bool, *, actor: Actor) -> Membership:
    """Put a member on or off duty and set `duty_changed_at`. Does nothing if the state is unchanged.

    Raises Conflict if the member was removed meanwhile.
    """
    with transaction.atomic():
        membership = _lock_member(membership_id)
        if membership.on_duty != on_duty:
            membership.on_duty, membership.duty_changed_at = on_duty, clock.now()
            membership.save(update_fields=["on_duty", "duty_changed_at"])
            kind = "membership.on_duty" if on_duty else "membership.off_duty"
            events.append(membership.organization_id, kind, membership.pk, actor=actor, user_id=membership.user_id)
    return membership


def dismiss_tour(user: User) -> None:
    """Store that the user has dismissed the tour of the board. No event: it concerns only their screen."""
    User.objects.filter(pk=user.pk, tour_dismissed_at=None).update(tour_dismissed_at=clock.now())


def change_own_phone(user: User, phone: str, *, actor: Actor) -> bool:
    """Change the number for the person's alerts (E.164, empty for none). Return whether it changed.

    An event without the number is appended for each of their organizations.
    """
    with transaction.atomic():
        row = User.objects.select_for_update(no_key=True).get(pk=user.pk)
        if str(row.phone or "") == phone:
            return False
        row.phone = phone
        row.save(update_fields=["phone"])
        for membership in row.active_memberships:
            events.append(
                membership.organization_id, "membership.phone_changed", membership.pk, actor=actor, user_id=row.pk
            )
    return True


def change_own_language(user: User, language: str, *, actor: Actor) -> bool:
    """Change the language of the person's alerts (empty: the organization's). Return whether it changed.

    An event is appended for each of their organizations, also for those that this session does not reach.
    """
    with transaction.atomic():
        row = User.objects.select_for_update(no_key=True).get(pk=user.pk)
        if row.language == language:
            return False
        row.language = language
        row.save(update_fields=["language"])
        for membership in row.active_memberships:
            events.append(
                membership.organization_id,
                "membership.language_changed",
                membership.pk,
                actor=actor,
                user_id=user.pk,
                language=language,
            )
    user.language = language
    return True


def add_member(
    organization: Organization, *, email: str, name: str, role: str, actor: Actor, phone: str = ""
) -> tuple[Membership, bool]:
    """Invite the person with this email address. They become a member when they join.

    Creates the User (without a password) if the address is new. Send the invitation afterwards
    (`send_invitation`). Name and phone stay on the invitation until the person confirms them
    (`join_organization`): a User belongs to several organizations, none of which decides where another
    organization's alerts go.

    Returns the membership and whether the user is new. Raises Conflict if they are already a member or invited,
    and Throttled if too many invitations were mailed.
    """
    with transaction.atomic():
        user, is_new = User.objects.get_or_create(email=email.strip().lower(), defaults={"password": "!"})
        membership, added = Membership.objects.get_or_create(
            organization=organization,
            user=user,
            defaults={
                "role": role,
                "is_active": False,
                "joined_at": None,
                "invited_name": name,
                "invited_phone": phone,
            },
        )
        if not added:
            state = gettext("a member") if membership.joined_at else gettext("invited")
            raise Conflict(
                gettext("{email} is already {state}.").format(email=user.email, state=state),
                code="already_a_member",
            )
        _append_event(membership, "membership.added", actor)
        invitations.take_mail_token(user, [organization.pk])
    return membership, is_new


def join_organization(invitation: Invitation, *, name: str, phone: str, password: str | None = None) -> Membership:
    """Make the invitee a member with the name and phone (E.164, or empty) they confirmed.

    `password`: what they chose, if the link may set one. Idempotent without it. Raises Conflict if meanwhile the
    invitation was withdrawn or the address changed, or with a password if the link may no longer set one.
    """
    with transaction.atomic():
        # In the order of a join by single sign-on.
        user = User.objects.select_for_update(no_key=True).filter(pk=invitation.membership.user_id).first()
        members = Membership.objects.select_for_update(no_key=True)
        membership = members.filter(pk=invitation.membership.pk, user=user).first()
        if user is None or membership is None or user.email != invitation.user.email:
            raise _invitation_ended()
        if password is not None:
            _set_first_password(Invitation(membership, invitation.mailed), user, password)
        if membership.joined_at is None:
            if user.name != name:
                user.name = name
                user.save(update_fields=["name"])
            actor = Actor(type="user", id=user.pk, label=str(user))
            change_own_phone(user, phone, actor=actor)
            membership.joined_at, membership.is_active = clock.now(), True
            membership.invited_name = membership.invited_phone = ""
            membership.save(update_fields=["joined_at", "is_active", "invited_name", "invited_phone"])
            if invitation.mailed and user.email_confirmed_at is None:
                user.email_confirmed_at = membership.joined_at
                user.save(update_fields=["email_confirmed_at"])
                if not user.is_superuser:  # no Admin receives their links, so their factors stay
                    _end_unproved_access(user, actor=actor)
            _append_event(membership, "membership.joined", actor)
    return membership


def _set_first_password(invitation: Invitation, user: User, password: str) -> None:
    """Set the password of the locked user, unless this or another invitation has given them access meanwhile."""
    invitation.membership.user = user
    if invitation.membership.joined_at is not None or not invitation.may_set_password:
        raise _invitation_ended()
    user.set_password(password)
    user.save(update_fields=["password"])


def _invitation_ended() -> Conflict:
    return Conflict(gettext("This invitation was accepted or withdrawn meanwhile."), code="invitation_ended")


def _end_unproved_access(user: User, *, actor: Actor) -> None:
    """Delete the factors and end the sessions from before the email address was proved.

    They may be those of somebody else, whose passkey would still sign in after the new password.
    """
    kinds = set(second_factor.factors_of(user).values_list("type", flat=True))
    if kinds:
        reset_second_factor(user, actor=actor, mails=[f"{kind}_removed" for kind in sorted(kinds)])
    elif user.last_login is not None:
        sessions.end_all_sessions(user, actor=actor)


def change_member(
    membership_id: int,
    *,
    actor: Actor,
    role: str | None = None,
    is_active: bool | None = None,
    alert_order: int | None = None,
) -> Membership:
    """Change a member's role or alert order, or activate or deactivate the membership.

    Deactivation also takes the member off duty. Somebody who is no longer an active admin loses the API keys that
    they created. Raises LastAdmin and BreakGlassOwner, and Conflict if the member was removed meanwhile.
    """
    with transaction.atomic():
        found = Membership.objects.filter(pk=membership_id).first()
        if found is None:
            raise _member_removed()
        organization_id = found.organization_id
        # Serialize changes of members: two of them could otherwise each see the other as the remaining admin.
        Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
        membership = _lock_member(membership_id)
        if is_active and membership.joined_at is None:
            raise Conflict(gettext("This person hasn't accepted the invitation yet."), code="not_joined")
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
                _require_an_admin(membership)
                if is_break_glass_owner(membership):
                    raise BreakGlassOwner
                for key in keys_made_by(membership):
                    revoke_api_key(key.pk, actor=actor)
            if not membership.is_active and membership.on_duty:
                membership.on_duty, membership.duty_changed_at = False, clock.now()
            membership.save(update_fields=["role", "is_active", "on_duty", "duty_changed_at"])
            _append_event(membership, "membership.changed", actor)
            if not membership.is_active:
                for callback in _on_member_left:
                    callback(organization_id, membership.user_id, actor)
    return membership


def _lock_member(membership_id: int) -> Membership:
    """Return the locked membership. Raises Conflict if it was removed meanwhile."""
    rows = Membership.objects.select_for_update(no_key=True, of=("self",)).select_related("user")
    membership = rows.filter(pk=membership_id).first()
    if membership is None:
        raise _member_removed()
    return membership


def _member_removed() -> Conflict:
    return Conflict(gettext("This person was removed meanwhile."), code="removed")


def remove_member(membership_id: int, *, actor: Actor) -> None:
    """End a membership permanently. The User remains. Raises LastAdmin, BreakGlassOwner and Conflict."""
    with transaction.atomic():
        membership = change_member(membership_id, actor=actor, is_active=False)
        _append_event(membership, "membership.removed", actor)
        membership.delete()


def lock_account(user: User, memberships: QuerySet[Membership]) -> User:
    """Return the user, locked so that they accept no invitation meanwhile. Call it in a transaction.

    The organizations of the `memberships` are locked before, as when an invitation is withdrawn. A person who
    joins locks the user before the membership.
    """
    organizations = Organization.objects.filter(pk__in=memberships.values("organization")).order_by("pk")
    list(organizations.select_for_update(no_key=True))
    return User.objects.select_for_update(no_key=True).get(pk=user.pk)


def delete_user(user: User, *, actor: Actor) -> None:
    """Revoke the user's keys, end their memberships, and delete the account.

    Raises LastAdmin and BreakGlassOwner, and then changes nothing.
    """
    with transaction.atomic():
        row = lock_account(user, user.memberships.all())
        revoke_keys_of(row, actor=actor)
        for membership_id in row.memberships.order_by("organization").values_list("pk", flat=True):
            remove_member(membership_id, actor=actor)
        row.delete()


class PasswordTokens(PasswordResetTokenGenerator):
    """Make tokens that end when the person joins or leaves an organization, or becomes a superuser.

    After such a change, the admin who created the link may no longer have a right to the account.
    """

    def _make_hash_value(self, user: Any, timestamp: int) -> str:
        reach = sorted(user.joined_memberships.values_list("organization_id", flat=True))
        return f"{super()._make_hash_value(user, timestamp)}{reach}{user.is_superuser}"


password_tokens = PasswordTokens()


def password_path(user: User) -> str:
    """Return the path of the page on which this user sets a password.

    It is valid until used, or for PASSWORD_RESET_TIMEOUT.
    """
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    return reverse("set_password", args=[uid, password_tokens.make_token(user)])


def is_only_theirs(user: User, organization_ids: Iterable[int] | None) -> bool:
    """Return whether an admin of these organizations (None: a superuser) may give this user a sign-in link.

    False for a superuser, and for a member of any other organization. An open invitation elsewhere does not count.
    """
    if organization_ids is None:
        return True
    joined = set(user.joined_memberships.values_list("organization_id", flat=True))
    return not user.is_superuser and bool(joined) and joined <= set(organization_ids)


def is_break_glass_owner(membership: Membership) -> bool:
    """Return whether single sign-on is required and this member may sign in without it."""
    required = IdentityProvider.objects.of(membership.organization_id).filter(is_active=True, is_required=True)
    return required.filter(break_glass=membership.user_id).exists()


def _require_an_admin(leaving: Membership) -> None:
    others = Membership.objects.of(leaving.organization_id).filter(
        role=Membership.Role.ADMIN, is_active=True, user__is_active=True
    )
    if not others.exclude(pk=leaving.pk).exists():
        raise LastAdmin


def _append_event(membership: Membership, kind: str, actor: Actor) -> None:
    """Append an event. Before the person has joined, it does not reveal whether they have an account."""
    events.append(
        membership.organization_id,
        kind,
        membership.pk,
        actor=actor,
        **({"user_id": membership.user_id} if membership.joined_at else {}),
        role=membership.role,
        is_active=membership.is_active,
    )
