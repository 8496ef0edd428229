"""Sign and read the link by which a person acknowledges one alert without signing in.

A link belongs to one message: the delivery to one channel, or to the browsers, of one person. It
acknowledges that person's alert, once: after the alert has opened again, a newer message has a newer link.
"""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.urls import reverse

from accounts.models import Membership, User
from dispatch.jobs.signed_links import InvalidLink, read_token, sign_token
from notifications.models import Alert, Channel, Delivery, PushMessage

KIND = "alert"
_PUSHES = PushMessage.objects.filter(purpose=PushMessage.Purpose.ALERT, subject_id=OuterRef("pk"))


def acknowledge_url(row: Delivery) -> str:
    """Return the URL for the message of this delivery.

    A person's acknowledges by itself. A team's leads to a page that asks for sign-in: the link does not say who of
    the team, or which guest of its chat, has followed it.
    """
    alert = row.notification.alert
    if alert is None:
        return ""
    if row.notification.user_id is None:
        path = reverse("console:alert", args=[alert.pk])
        return f"{settings.PUBLIC_BASE_URL}{path}?in={row.organization.slug}"
    token = sign_token(KIND, [row.pk, alert.returns], timedelta(hours=settings.ALERT_LINK_HOURS))
    return f"{settings.PUBLIC_BASE_URL}{reverse('console:alert_link', args=[token])}"


def delivery_of(token: str) -> Delivery:
    """Return the delivery of a link, with its alert. Raises InvalidLink.

    The link ends with its time, when its channel or all browsers that got it are removed, and when its person
    leaves the organization.
    """
    delivery_id, returns = read_token(KIND, token, 2)
    row = (
        Delivery.objects.select_related(
            "notification__user", "notification__alert__acknowledged_by", "organization"
        )
        .filter(
            Q(channel=Channel.CHAT, destination__removed_at=None) | Q(Exists(_PUSHES), channel=Channel.PUSH),
            pk=delivery_id,
            organization__is_active=True,
        )
        .first()
    )
    alert = row.notification.alert if row is not None else None
    if row is None or alert is None or not is_recipient(row.organization_id, row.notification.user):
        raise InvalidLink(expired=True)
    if alert.returns != returns and alert.status == Alert.Status.OPEN:
        raise InvalidLink(expired=True)  # it has opened again since, and a newer message says so
    return row


def is_recipient(organization_id: int, user: User | None) -> bool:
    """Return whether the user may still get the organization's notifications."""
    return user is not None and bool(recipients_of(organization_id).filter(pk=user.pk).exists())


def recipients_of(organization_id: int) -> QuerySet[User]:
    """Return the users who may get the organization's notifications."""
    members = Membership.objects.of(organization_id).filter(is_active=True)
    users: QuerySet[User] = User.objects.filter(
        Q(is_superuser=True) | Q(pk__in=members.values("user_id")), is_active=True
    )
    return users
