"""Invite people. Membership starts only when the invitee accepts, and only for the invited address.

The invitation link goes to the invited email address and is shown to nobody else. Opening it proves access to
that mailbox, so the link may set the password of a new account, or of an account whose email was never confirmed.
The factors and sessions of the latter end, because somebody else may have used it.
If no mail server is configured (EMAIL_URL), the admin receives the link to pass on. Such a link sets a password
only for an account without one that nobody uses, by single sign-on for example; anyone else must sign in to join.

The link's page shows the name and phone that the inviter entered, and the invitee confirms or corrects them. Until
then both stay on the invitation, so that no organization decides where another organization's alerts go.

A link expires when the invitation ends: after joining, after the membership is removed, or after
PASSWORD_RESET_TIMEOUT. It also ends when the email address is changed, because it went to the former one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.core import mail, signing
from django.urls import Resolver404, resolve, reverse
from rest_framework.exceptions import Throttled

from accounts.auth.throttling import parse_rate, take_tokens
from accounts.models import Membership, User
from dispatch.core.audit.chain import INSTALLATION
from dispatch.core.keyed_hashes import make_hash
from dispatch.core.languages import gettext

log = structlog.get_logger(__name__)

SALT = "accounts.invitations"
# Invitations and password links that one organization may mail: to one person, and to all.
RECIPIENT_RATE, ORGANIZATION_RATE = parse_rate("5/hour"), parse_rate("100/hour")


@dataclass(frozen=True)
class InvitationResult:
    """Report how an invitation was delivered.

    `mailed`: sent by email. `link`: for the admin to pass on. Neither: the mail server refused the message, and
    the invitation can be sent again.
    """

    mailed: bool = False
    link: str | None = None


@dataclass(frozen=True)
class Invitation:
    """Describe an open invitation. `mailed`: only the owner of the email address can have the link."""

    membership: Membership
    mailed: bool

    @property
    def user(self) -> User:
        return self.membership.user

    @property
    def may_set_password(self) -> bool:
        """Return whether the link alone is enough to choose a password for the account."""
        if not self.user.has_usable_password():
            return self.mailed or not self._is_in_use
        return self.mailed and self.user.email_confirmed_at is None

    @property
    def suggested_name(self) -> str:
        """Return the person's own name, or the inviter's suggestion if they never confirmed one."""
        return self.user.name or self.membership.invited_name

    @property
    def suggested_phone(self) -> str:
        """Return the person's own phone if they must sign in to join; otherwise the phone on this invitation.

        The account's phone may have been entered by another organization, so it is not shown before the person has
        proved ownership of the account.
        """
        phone = self.membership.invited_phone if self._is_new else self.user.phone
        return str(phone or "")

    @property
    def _is_in_use(self) -> bool:
        """Return whether the account opens something already: single sign-on needs no password."""
        user = self.user
        return user.is_superuser or user.joined_memberships.exists()

    @property
    def _is_new(self) -> bool:
        """Return whether nobody has yet proved ownership of the account."""
        return self.may_set_password


def sends_mail() -> bool:
    """Return whether links are sent by email. Otherwise admins pass them on."""
    return bool(settings.EMAIL_URL)


def take_mail_token(user: User, organization_ids: Collection[int]) -> None:
    """Count one mail to this person from these organizations (none: from the operator).

    Raises Throttled if there were too many recently. Without a mail server, nothing is sent or limited.
    """
    if not sends_mail():
        return
    recipient = make_hash("mail recipient", user.email)  # not an id: a withdrawn invitation may delete the account
    buckets = []
    for organization_id in organization_ids or [INSTALLATION]:
        buckets.append((f"account-mail:{organization_id}:{recipient}", RECIPIENT_RATE))
        buckets.append((f"account-mail:{organization_id}", ORGANIZATION_RATE))
    if wait_ms := max(token.wait_ms for token in take_tokens(*buckets)):
        raise Throttled(wait_ms / 1000, gettext("Too many invitations and password links were mailed recently."))


def send_invitation_again(membership: Membership) -> InvitationResult:
    """Send the invitation if the person has not got too many. Raises Throttled."""
    take_mail_token(membership.user, [membership.organization_id])
    return send_invitation(membership)


def send_invitation(membership: Membership) -> InvitationResult:
    """Mail the link to the invitee, or return it if no mail server is configured.

    Call it outside transactions: it waits for the mail server. `services.add_member` has taken its token.
    """
    mailed = sends_mail()
    user = membership.user
    signature = _address_signer().signature(user.email)
    claims = {"membership": membership.pk, "user": user.pk, "mailed": mailed, "to": signature}
    token = signing.dumps(claims, salt=SALT)
    link = settings.PUBLIC_BASE_URL + reverse("join", args=[token])
    if not mailed:
        return InvitationResult(link=link)
    organization, role = membership.organization.name, membership.get_role_display()
    text = (
        f"{organization} invites you to join them in Dispatch as {role}.\n\nOpen this link to "
        f"join:\n{link}\n\nIf you weren't expecting this, ignore this message. You won't be added unless you "
        "accept."
    )
    return InvitationResult(mailed=_send_mail(membership.user, f"{organization} invites you to Dispatch", text))


def send_password_link(user: User, link: str) -> bool:
    """Mail the person a link for choosing a new password. Return False if the mail server refuses it."""
    text = (
        f"Open this link to choose a new password for Dispatch:\n{link}\n\nYour current password works until then."
    )
    return _send_mail(user, "Choose a new password for Dispatch", text)


def _address_signer() -> signing.Signer:
    return signing.Signer(salt="invited address")


def read_invitation(token: str) -> Invitation | None:
    """Return the invitation of a link, or None if the link is invalid or the invitation has ended.

    Links without the signature of the address, from before it was added, are invalid.
    """
    try:
        claims = signing.loads(token, salt=SALT, max_age=settings.PASSWORD_RESET_TIMEOUT)
        membership = Membership.objects.select_related("user", "organization").get(
            pk=claims["membership"], user_id=claims["user"], joined_at=None
        )
        _address_signer().unsign(f"{membership.user.email}:{claims.get('to', '')}")
    except (signing.BadSignature, Membership.DoesNotExist):
        return None
    if not membership.user.is_active or not membership.organization.is_active:
        return None
    return Invitation(membership, claims["mailed"])


def is_own_invitation(url: str, user: User) -> bool:
    """Return whether the URL leads to the page of an open invitation of this user.

    With such a URL, the user may sign in even if they may open nothing else.
    """
    try:
        match = resolve(urlsplit(url).path)
    except (Resolver404, ValueError):
        return False
    invitation = read_invitation(match.kwargs["token"]) if match.view_name == "join" else None
    return invitation is not None and invitation.user == user


def _send_mail(user: User, subject: str, text: str) -> bool:
    try:
        mail.send_mail(" ".join(subject.split()), text, None, [user.email])
    except OSError as error:  # smtplib's errors derive from it
        log.warning("invitation_mail_failed", user=user.pk, error=str(error))
        return False
    return True
