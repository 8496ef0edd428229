"""Inviting people. Nobody is a member before they said so themselves, and nobody gets another person's account.

The link of an invitation goes to the invited e-mail and is shown to nobody else; who opens it has the e-mail, so
it may give a new account its password, and an account whose e-mail was never confirmed a new one. Where no mail
server is set up (EMAIL_URL), the Admin gets the link to hand over: it gives a password only to an account that
has none, and any other person must sign in to join.

A link ends when its invitation does: joined, or the membership removed, or PASSWORD_RESET_TIMEOUT over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from django.conf import settings
from django.core import mail, signing
from django.urls import reverse

from accounts.models import Membership, User

log = structlog.get_logger(__name__)

SALT = "accounts.invitations"


@dataclass(frozen=True)
class Sent:
    """What became of an invitation: `mailed`, or `link` for the Admin to hand over, or neither: the mail server
    refused it, and it may be sent again."""

    mailed: bool = False
    link: str | None = None


@dataclass(frozen=True)
class Invitation:
    """An invitation that stands: who may join what. `mailed`: only the owner of the e-mail can have its link."""

    membership: Membership
    mailed: bool

    @property
    def user(self) -> User:
        return self.membership.user

    @property
    def may_set_password(self) -> bool:
        """Whether the link alone is enough to choose a password for the account."""
        if not self.user.has_usable_password():
            return True
        return self.mailed and self.user.email_confirmed_at is None


def sends_mail() -> bool:
    """Whether links go to the e-mail itself. Else Admins hand them over."""
    return bool(settings.EMAIL_URL)


def send(membership: Membership, absolute: Callable[[str], str]) -> Sent:
    """Mails the link to the invited person, or returns it where no mail is sent. `absolute` makes the whole
    address of a path. Outside of transactions: it waits for the mail server."""
    mailed = sends_mail()
    token = signing.dumps({"membership": membership.pk, "user": membership.user_id, "mailed": mailed}, salt=SALT)
    link = absolute(reverse("join", args=[token]))
    if not mailed:
        return Sent(link=link)
    organization, role = membership.organization.name, membership.get_role_display()
    text = (
        f"{organization} invites you to work with them in Dispatch, as {role}.\n\n"
        f"Open this link to join:\n{link}\n\n"
        "If you do not know them, do nothing: without you, nothing happens."
    )
    return Sent(mailed=_mail(membership.user, f"{organization} invites you to Dispatch", text))


def send_password_link(user: User, link: str) -> bool:
    """Mails the person a link with which to choose a new password; False when the mail server refuses it."""
    text = f"Open this link to choose a new password for Dispatch:\n{link}\n\nUntil then your present one stays."
    return _mail(user, "Choose a new password for Dispatch", text)


def read(token: str) -> Invitation | None:
    """The invitation of a link, or None when it is not one of ours, or is over."""
    try:
        said = signing.loads(token, salt=SALT, max_age=settings.PASSWORD_RESET_TIMEOUT)
        found = Membership.objects.select_related("user", "organization").get(
            pk=said["membership"], user_id=said["user"], joined_at=None
        )
    except (signing.BadSignature, Membership.DoesNotExist):
        return None
    if not found.user.is_active or not found.organization.is_active:
        return None
    return Invitation(found, said["mailed"])


def _mail(user: User, subject: str, text: str) -> bool:
    try:
        mail.send_mail(" ".join(subject.split()), text, None, [user.email])
    except OSError as error:  # what smtplib raises derives from it
        log.warning("a link could not be mailed", user=user.pk, error=str(error))
        return False
    return True
