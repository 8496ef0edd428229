"""Export and erase a user's personal data: account, memberships and sign-ins; or an invitation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from axes.models import AccessAttempt, AccessLog
from django.db.models import F, Q

from accounts import services
from accounts.models import (
    ApiKey,
    DefaultView,
    HandoverNote,
    HandoverReading,
    IdentityProvider,
    Membership,
    Organization,
    ReportSubscription,
    SavedView,
    SecurityMail,
    User,
)
from accounts.sso import sessions as sso
from dispatch.core.events import SYSTEM
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject, EventReference, PersonalDataHandler

SIGN_INS = (AccessAttempt, AccessLog)
LEFT_OUT = (
    "Sign-ins, sessions, second factors and security emails belong to an account that is not this organization's "
    "alone. A superuser can export them."
)


def _users_of(person: DataSubject) -> Any:
    """Return the member with this id. A customer who shares the member's phone or email is a different person."""
    members = Membership.objects.of(person.organization_id).filter(user=person.user_id, joined_at__isnull=False)
    return User.objects.filter(pk__in=members.values("user"))


def _invitations_of(person: DataSubject) -> Any:
    """Return the membership with this id that the person has not joined."""
    invited = Membership.objects.of(person.organization_id).filter(joined_at=None)
    return invited.filter(pk=person.invitation_id) if person.invitation_id is not None else invited.none()


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the account, memberships, created API keys and sign-in records, or the invitation, by table."""
    users = list(_users_of(person))
    ids = [user.pk for user in users]
    names = ("id", "email", "name", "phone", "language", "is_active", "created_at", "last_login")
    own = Membership.objects.of(person.organization_id).filter(user_id__in=ids)
    invitations = _invitations_of(person).annotate(email=F("user__email"))  # without user_id, as in the API
    tables = {
        "invitations": personal_data.as_rows(invitations, "id", "role", "invited_name", "invited_phone", "email"),
        "users": personal_data.as_rows(User.objects.filter(pk__in=ids), *names),
        "memberships": personal_data.as_rows(own),
        "api_keys_made": personal_data.as_rows(
            ApiKey.objects.of(person.organization_id).filter(created_by__in=ids), "id", "name", "created_at"
        ),
    }
    tables |= _account_rows(users, person)
    provider = IdentityProvider.objects.of(person.organization_id).only("pk").first()
    links = SocialAccount.objects.filter(user__in=ids, provider=provider.provider_id if provider else "")
    tables["single_sign_on"] = personal_data.as_rows(links, "id", "provider", "uid", "date_joined", "last_login")
    tables["report_subscriptions"] = personal_data.as_rows(
        ReportSubscription.objects.of(person.organization_id).filter(membership__user__in=ids)
    )
    own_views = SavedView.objects.of(person.organization_id).filter(Q(owner__in=ids) | Q(shared_by__in=ids))
    tables["saved_views"] = personal_data.as_rows(own_views, "id", "name", "query", "created_at")
    notes = HandoverNote.objects.of(person.organization_id)
    tables["handover_notes"] = personal_data.as_rows(notes.filter(author__in=ids), "id", "text", "written_at")
    readings = HandoverReading.objects.filter(note__in=notes, reader__in=ids)
    tables["handover_notes_read"] = personal_data.as_rows(readings, "id", "note_id", "read_at")
    return tables


def _account_rows(users: list[User], person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return what belongs to the accounts as a whole: how and from where they sign in.

    An organization does not get that of a shared account, which also works elsewhere. `left_out` says so.
    """
    own = [user for user in users if person.is_whole_account or not sso.is_shared(user)]
    tables = {
        model._meta.model_name or "": personal_data.as_rows(
            model.objects.filter(username__in=[user.email for user in own]),
            "id", "username", "ip_address", "user_agent", "attempt_time",
        )
        for model in SIGN_INS
    }  # fmt: skip
    tables["sessions"] = personal_data.as_rows(
        UserSession.objects.filter(user__in=own), "id", "created_at", "last_seen_at", "ip", "user_agent"
    )
    tables["security_mails"] = personal_data.as_rows(
        SecurityMail.objects.filter(user__in=own), "id", "kind", "data", "created_at"
    )
    tables["second_factors"] = personal_data.as_rows(
        Authenticator.objects.filter(user__in=own), "id", "type", "created_at", "last_used_at"
    )
    tables["left_out"] = [{"user": user.pk, "reason": LEFT_OUT} for user in users if user not in own]
    return tables


def blocked_by(person: DataSubject) -> Iterable[str]:
    """Yield the reasons against erasing the account now."""
    for user in _users_of(person):
        if user.is_superuser:
            yield f"{user} is a superuser. Remove that status first."
        if user.joined_memberships.exclude(organization_id=person.organization_id).exists():
            yield f"{user} is a member of other organizations. End those memberships first."
        for own in user.memberships.filter(role=Membership.Role.ADMIN, is_active=True):
            others = Membership.objects.of(own.organization_id).filter(role=own.role, is_active=True)
            if not others.exclude(user=user).exists():
                yield f"{user} is the last admin. Make someone else an admin first."
            if services.is_break_glass_owner(own):
                yield f"{user} is the break-glass owner of the single sign-on. Choose another one there first."


def traces(person: DataSubject) -> list[EventReference]:
    """Return the events about the account and its memberships."""
    references = []
    for user in _users_of(person):
        references.append(EventReference("user", [user.pk], [user.name, user.email, str(user.phone)]))
        references.append(
            EventReference("membership", list(user.memberships.values_list("pk", flat=True)), [user.name])
        )
    for invitation in _invitations_of(person):
        references.append(EventReference("membership", [invitation.pk], [invitation.invited_name]))
    return references


def erase(person: DataSubject) -> int:
    """Anonymize and deactivate the account, and delete its sign-in records. Withdraw an invitation.

    Other organizations' invitations of an erased account are withdrawn, too. Return the number of accounts, and of
    invitations by this organization.
    """
    count = _withdraw_invitations(person)
    for found in list(_users_of(person)):
        user = services.lock_account(found, found.memberships.filter(joined_at=None))
        if reasons := list(blocked_by(person)):  # again: they may have joined another organization meanwhile
            raise personal_data.StillNeeded(" ".join(reasons))
        _withdraw_other_invitations(user)
        for model in SIGN_INS:
            model.objects.filter(username=user.email).delete()
        services.revoke_keys_of(user, actor=SYSTEM)
        user.memberships.update(is_active=False, on_duty=False, invited_name="", invited_phone="")
        user.name, user.email, user.phone = f"Erased user {user.pk}", f"erased-{user.pk}@invalid.invalid", ""
        user.is_active = False
        user.set_unusable_password()  # ends every session
        user.second_factor_at = None
        Authenticator.objects.filter(user=user).delete()
        SocialAccount.objects.filter(user=user).delete()
        SecurityMail.objects.filter(user=user).delete()
        SavedView.objects.filter(owner=user).delete()
        SavedView.objects.filter(shared_by=user).update(shared_by=None)  # the organization keeps shared views
        DefaultView.objects.filter(user=user).delete()
        ReportSubscription.objects.filter(membership__user=user).delete()
        for session in UserSession.objects.filter(user=user):
            session.end()  # deletes what the session stores too
        user.save()
        count += 1
    return count


def _withdraw_invitations(person: DataSubject) -> int:
    """End the invitation, and delete its account if that was created for an invitation and never used."""
    if person.invitation_id is None:
        return 0
    Organization.objects.select_for_update(no_key=True).get(pk=person.organization_id)  # as changes of members do
    users = User.objects.filter(pk__in=_invitations_of(person).values("user"))
    list(users.select_for_update(no_key=True))  # before the membership, as when they join
    count = 0
    for invitation in _invitations_of(person).select_for_update(no_key=True):
        services.remove_member(invitation.pk, actor=SYSTEM)
        User.objects.filter(pk=invitation.user_id, name="", memberships=None, is_superuser=False).delete()
        count += 1
    return count


def _withdraw_other_invitations(user: User) -> None:
    """End all open invitations of the account: nobody can accept them with the address that replaces its own."""
    for invitation in user.memberships.filter(joined_at=None):
        services.remove_member(invitation.pk, actor=SYSTEM)


PART = PersonalDataHandler(rows, erase, traces, blocked_by, keeps=("accounts.Membership",))
