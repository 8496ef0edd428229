"""What leaves the house: e-mails, texts and calls that were written as deliveries are sent here, with retries.

Each is claimed by compare-and-set before anything is sent; a process that dies with it leaves it to the next one.
Nothing here can fail the work that the notification is about."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.db.models import F, Min, QuerySet

from dispatch.core import clock, events, faults
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call, Text
from notifications import metrics, words
from notifications.models import Alert, Channel, Delivery, Notification
from notifications.services import alerts
from notifications.services.policies import call_pool

log = structlog.get_logger(__name__)

BATCH = 50
# A claim lapses after this long; longer than a mail server's timeout.
CLAIM = timedelta(seconds=120)
EMAIL_RETRIES_S = (30, 120, 600, 3600, 4 * 3600)
# An alert's call or text that found no line, or a busy phone, is tried again until then: it is for now.
PHONE_PATIENCE = timedelta(minutes=10)
PHONE_AGAIN = timedelta(seconds=5)
RING_S, TIME_LIMIT_S = 30, 180
LOOK_AGAIN = timedelta(seconds=120)
Status = Delivery.Status


class NotSent(Exception):
    """It did not go out. `again_in`: when to try again; None: never."""

    def __init__(self, why: str, again_in: timedelta | None = None) -> None:
        super().__init__(why)
        self.again_in = again_in


def deliver_due(*channels: Channel) -> int:
    """Sends what is due on these channels; how many it took."""
    due = _open().filter(channel__in=channels, next_attempt_at__lte=clock.now())
    found = list(due.order_by("next_attempt_at", "pk").values_list("pk", flat=True)[:BATCH])
    return sum(deliver(pk) for pk in found)


def next_due(*channels: Channel) -> datetime | None:
    """When the next delivery on these channels is due."""
    first: datetime | None = _open().filter(channel__in=channels).aggregate(first=Min("next_attempt_at"))["first"]
    return first


def deliver(delivery_id: int) -> bool:
    """Sends one that is due; False when somebody else has it, or it is not needed any more."""
    now = clock.now()
    mine = _open().filter(pk=delivery_id, next_attempt_at__lte=now)
    if not mine.update(status=Status.SENDING, attempts=F("attempts") + 1, next_attempt_at=now + CLAIM):
        return False
    row = Delivery.objects.select_related("notification__user", "notification__alert", "organization").get(
        pk=delivery_id
    )
    if not is_needed(row.notification):
        _end(row, Status.DROPPED)
        return False
    faults.point("notifications.deliver.claimed")
    try:
        is_sent = _SENDERS[row.channel](row)
    except NotSent as error:
        _try_again(row, str(error), error.again_in)
    except Exception as error:  # whatever a mail server or a template can do
        log.warning("a notification was not sent", delivery=row.pk, channel=row.channel, error=str(error))
        _try_again(row, str(error) or type(error).__name__, _pause(row))
    else:
        faults.point("notifications.deliver.sent")
        if is_sent:
            _end(row, Status.SENT)
    return True


def _open() -> QuerySet[Delivery]:
    found: QuerySet[Delivery] = Delivery.objects.filter(status__in=(Status.WAITING, Status.SENDING))
    return found


def is_needed(row: Notification) -> bool:
    """Whether there is still anything to tell: an alert's is over when somebody has it."""
    return row.alert is None or row.alert.status == Alert.Status.OPEN


def _pause(row: Delivery) -> timedelta | None:
    tried = row.attempts - 1
    return timedelta(seconds=EMAIL_RETRIES_S[tried]) if tried < len(EMAIL_RETRIES_S) else None


def _try_again(row: Delivery, why: str, again_in: timedelta | None) -> None:
    if again_in is None:
        _end(row, Status.FAILED, why)
        return
    mine = Delivery.objects.filter(pk=row.pk, status=Status.SENDING, attempts=row.attempts)
    mine.update(status=Status.WAITING, next_attempt_at=clock.now() + again_in, error=why[:255])


def _end(row: Delivery, status: str, why: str = "") -> None:
    with transaction.atomic():
        mine = Delivery.objects.filter(pk=row.pk, status=row.status)
        if not mine.update(status=status, next_attempt_at=None, ended_at=clock.now(), error=why[:255]):
            return
        metrics.deliveries.labels(row.channel, status).inc()
        said: dict[str, Any] = {"channel": row.channel, "user_id": row.notification.user_id, "why": why[:200]}
        kind = f"delivery.{status}"
        events.append(row.organization_id, kind, row.pk, notification_id=row.notification_id, **said)


# --- by e-mail --------------------------------------------------------------------------------------------------
def _email(row: Delivery) -> bool:
    if not settings.EMAIL_IS_SET_UP:
        raise NotSent("No mail server is set up (EMAIL_URL).")
    mail = words.email(row.notification)
    message = EmailMultiAlternatives(
        mail.subject,
        mail.text,
        to=[row.notification.user.email],
        # the same for every attempt, so that a second copy can be known as one
        headers={"Message-ID": f"<delivery-{row.pk}@{settings.EMAIL_DOMAIN}>", "Auto-Submitted": "auto-generated"},
    )
    message.attach_alternative(mail.html, "text/html")
    message.send()
    return True


# --- by phone ---------------------------------------------------------------------------------------------------
def _call(row: Delivery) -> bool:
    """Makes the call; how it ends is told by telephony (`tell_of`)."""
    call_id = _made(row, _create_call)
    if call_id is not None:
        tell_of(telephony.place(call_id))
    return False


def _made(row: Delivery, make: Callable[[Delivery], int]) -> int | None:
    """What `make` writes, in a transaction that holds the alert open; None when it is open no more."""
    user = row.notification.user
    if not user.phone:
        raise NotSent(f"{user} has no phone number.")
    try:
        with transaction.atomic():
            if row.notification.alert_id is not None:
                alert = alerts.locked(row.notification.alert_id)
                if alert.status != Alert.Status.OPEN:
                    _end(row, Status.DROPPED)
                    return None
            return make(row)
    except (telephony.CallNotAllowed, telephony.TextNotAllowed, telephony.NoTextNumber) as error:
        raise NotSent(str(error)) from error
    except telephony.NoLine as error:
        raise NotSent(str(error), _patience(row, timedelta(seconds=error.retry_in_s))) from error
    except telephony.PhoneBusy as error:
        raise NotSent("the phone is in another call", _patience(row, PHONE_AGAIN)) from error


def _text(row: Delivery) -> bool:
    """Writes the text; what becomes of it is told by telephony (`tell_of_text`)."""
    text_id = _made(row, _create_text)
    if text_id is not None:
        tell_of_text(Text.objects.get(pk=text_id))
    return False


def _create_text(row: Delivery) -> int:
    text = telephony.create_text(
        organization=row.organization,
        purpose="alert",
        subject_id=row.pk,
        to_phone=str(row.notification.user.phone),
        body=words.text(row.notification),
        pool=call_pool(row.organization_id),
        not_after=row.created_at + PHONE_PATIENCE,
        context={f"{row.notification.subject_type}_id": row.notification.subject_id},
    )
    _look_again(row)
    return text.pk


def _look_again(row: Delivery) -> None:
    """In telephony's hands now, which tells what becomes of it; looked at again, should that be lost."""
    Delivery.objects.filter(pk=row.pk).update(next_attempt_at=clock.now() + LOOK_AGAIN)


def tell_of_text(text: Text) -> None:
    """Telephony's news of a delivery's text: what went out may yet turn out not to have arrived."""
    if text.status in (Text.Status.SENT, Text.Status.DELIVERED):
        _news(text.subject_id or 0, Status.SENT)
    elif text.ended_at is not None:
        _news(text.subject_id or 0, Status.FAILED, text.error_message or text.get_status_display())


def _news(delivery_id: int, status: str, why: str = "") -> None:
    with transaction.atomic():  # one after the other: "sent" and "did not arrive" may come in the same moment
        rows = Delivery.objects.select_for_update(of=("self",)).select_related("notification__alert")
        row = rows.filter(pk=delivery_id).first()
        if row is None or row.status in (status, Status.FAILED, Status.DROPPED):
            return
        is_dropped = status == Status.FAILED and not is_needed(row.notification)
        _end(row, Status.DROPPED if is_dropped else status, "" if is_dropped else why)


def _patience(row: Delivery, pause: timedelta) -> timedelta | None:
    return pause if clock.now() + pause < row.created_at + PHONE_PATIENCE else None


def _create_call(row: Delivery) -> int:
    pool = call_pool(row.organization_id)
    if pool is None:
        raise NotSent("The organization has no call pool.")
    call = telephony.create_call(
        organization=row.organization,
        purpose="alert",
        subject_id=row.pk,
        attempt=1,
        to_phone=str(row.notification.user.phone),
        pool=pool,
        ring_timeout_s=RING_S,
        time_limit_s=TIME_LIMIT_S,
        place_by=row.created_at + PHONE_PATIENCE,
        context={f"{row.notification.subject_type}_id": row.notification.subject_id},
    )
    _look_again(row)
    return call.pk


def tell_of(call: Call) -> None:
    """Telephony's news of a delivery's call: answered is sent, over without an answer is failed."""
    if call.answered_at is not None:
        _news(call.subject_id, Status.SENT)
    elif call.ended_at is not None:
        _news(call.subject_id, Status.FAILED, call.error_message or call.get_status_display())


_SENDERS: dict[str, Callable[[Delivery], bool]] = {
    Channel.EMAIL: _email,
    Channel.SMS: _text,
    Channel.VOICE: _call,
}
