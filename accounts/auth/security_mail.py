"""Mail users about changes of their sign-in, in their language or that of their organization, without secrets.

Also mails the request to confirm the phone for alerts (`PHONE_REMINDER`).

A row is written in the transaction of the change, and an elected loop sends it, so that an unavailable mail server
delays no change and loses no mail.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import structlog
from django.conf import settings
from django.core import mail
from django.db import transaction
from django.urls import reverse

from accounts.models import Membership, Organization, SecurityMail, User
from dispatch.core import clock
from dispatch.core.db.isolation import take_within
from dispatch.core.languages import gettext, mark, override

log = structlog.get_logger(__name__)

BATCH = 50
# A pass ends after this time; the rest is in the next one.
MAX_PASS_S = 20.0
MAX_ATTEMPTS = 12
# The delay before the second attempt; each further delay is twice as long.
RETRY_DELAY = timedelta(seconds=30)
# Longer than the time limit of the mail server.
CLAIM = timedelta(minutes=2)
MAX_BROWSER_LENGTH = 200

PHONE_REMINDER = "phone_reminder"
SUBJECTS = {
    PHONE_REMINDER: mark("Confirm your phone to receive alerts"),
    "totp_added": mark("An authenticator app was added to your account"),
    "totp_removed": mark("The authenticator app was removed from your account"),
    "webauthn_added": mark("A passkey was added to your account"),
    "webauthn_removed": mark("A passkey was removed from your account"),
    "recovery_codes_created": mark("New recovery codes were created for your account"),
    "recovery_code_used": mark("A recovery code of your account was used"),
    "second_factor_reset": mark("An Admin reset the second factor of your account"),
    "password_changed": mark("The password of your account was changed"),
    "sso_linked": mark("Your account was linked to single sign-on"),
    "new_device": mark("New sign-in to your account"),
}


def enqueue_mail(user: User, kind: str, request: Any = None) -> None:
    """Store an email to the user in the transaction of the change. `request`: where the change came from."""
    if not settings.EMAIL_IS_SET_UP:
        return
    meta = getattr(request, "META", {})
    data = {
        "browser": meta.get("HTTP_USER_AGENT", "")[:MAX_BROWSER_LENGTH],
        "address": meta.get("REMOTE_ADDR", ""),
    }
    SecurityMail.objects.create(user=user, kind=kind, data=data if any(data.values()) else {})


def enqueue_phone_reminder(membership: Membership) -> None:
    """Store an email that asks the member to confirm the phone to which alerts of the organization go."""
    data = {"organization": membership.organization.slug}
    SecurityMail.objects.create(user=membership.user, kind=PHONE_REMINDER, data=data)


# The SQL condition that an email is due.
IS_ANY_DUE = "EXISTS (SELECT FROM accounts_securitymail WHERE next_attempt_at <= %(now)s)"


def send_due_mail() -> float | None:
    """Send a batch of emails that are due. Ask to run again immediately if more may be."""
    due = SecurityMail.objects.filter(next_attempt_at__lte=clock.now()).order_by("next_attempt_at", "pk")
    ids = list(due.values_list("pk", flat=True)[:BATCH])
    tried = 0
    for pk in take_within(ids, MAX_PASS_S):
        _send(pk)
        tried += 1
    return 0 if len(ids) == BATCH or tried < len(ids) else None


def _send(pk: int) -> None:
    """Send one email and delete its row, or retry later."""
    with transaction.atomic():
        row = (
            SecurityMail.objects.select_for_update(no_key=True, skip_locked=True, of=("self",))
            .filter(pk=pk)
            .first()
        )
        if row is None or row.next_attempt_at > clock.now():
            return
        row.attempts += 1
        row.next_attempt_at = clock.now() + CLAIM
        row.save(update_fields=["attempts", "next_attempt_at"])
    try:
        subject, text = render_mail(row)
        mail.send_mail(subject, text, None, [row.user.email])
    except Exception as error:  # any failure of a mail server, or a kind of a later version
        log.warning("security_mail_failed", user=row.user_id, kind=row.kind, error=str(error)[:200])
        if row.attempts < MAX_ATTEMPTS:
            again = clock.now() + RETRY_DELAY * 2 ** (row.attempts - 1)
            SecurityMail.objects.filter(pk=pk).update(next_attempt_at=again)
            return
    SecurityMail.objects.filter(pk=pk).delete()


def render_mail(row: SecurityMail) -> tuple[str, str]:
    """Return the subject and the text of a stored email."""
    joined = row.user.memberships.filter(joined_at__isnull=False).select_related("organization")
    first = joined.order_by("pk").first()
    organization = first.organization if first else Organization()
    local = row.created_at.astimezone(ZoneInfo(organization.time_zone))
    sessions = settings.PUBLIC_BASE_URL + reverse("usersessions_list")
    with override(row.user.language or organization.language):
        subject = gettext(SUBJECTS[row.kind])
        if row.kind == PHONE_REMINDER:
            asking = Organization.objects.filter(slug=row.data.get("organization")).first() or organization
            return f"Dispatch: {subject}", _phone_reminder(asking)
        lines = [f"{subject}.", "", gettext("When: {time}").format(time=f"{local:%Y-%m-%d %H:%M %Z}")]
        if row.data:
            lines.append(gettext("Where: {address}").format(address=row.data["address"]))
            lines.append(gettext("Browser: {browser}").format(browser=row.data["browser"]))
        lines += [
            "",
            gettext("If this was you, there is nothing to do."),
            gettext(
                "If this was not you, end all other sessions at {link}, and ask an Admin of your organization "
                "for a new password."
            ).format(link=sessions),
        ]
    return f"Dispatch: {subject}", "\n".join(lines) + "\n"


def _phone_reminder(organization: Organization) -> str:
    text = gettext(
        "Until you confirm your phone, alerts from {organization} can't text or call you. To confirm it, open "
        "{link} and enter your number and the code that we send to it."
    )
    link = f"{settings.PUBLIC_BASE_URL}{reverse('console:notification_choices')}?in={organization.slug}"
    return text.format(organization=organization.name, link=link) + "\n"
