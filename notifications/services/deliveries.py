"""Send emails, texts, calls and pushes that were recorded as deliveries, with retries.

Each delivery is claimed by compare-and-set before anything is sent. If a process dies, the claim lapses and
another process takes over. A failure here never fails the work that the notification is about.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.db.models import F, Min, QuerySet

from accounts.models import User
from dispatch.core import clock, events, fault_injection
from dispatch.core.db.due_rows import DueIndex
from dispatch.core.db.isolation import run_each, take_within
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call, Text
from notifications import metrics, rendering
from notifications.models import Alert, Channel, Delivery, Notification, PushMessage
from notifications.rules import BY_KIND
from notifications.services import alert_links, alerts, phone_confirmation, push_messages
from notifications.services.preferences import call_pool

log = structlog.get_logger(__name__)

BATCH = 50
# A pass ends after this time; the rest is in the next one. A mail server may hang.
MAX_PASS_S = 20.0
# Lease of a claim; longer than a mail server's timeout.
CLAIM = timedelta(seconds=120)
EMAIL_RETRIES_S = (30, 120, 600, 3600, 4 * 3600)
# Alert calls and texts that found no line or a busy phone are retried for this long: alerts are urgent.
PHONE_PATIENCE = timedelta(minutes=10)
PHONE_AGAIN = timedelta(seconds=5)
RING_S, TIME_LIMIT_S = 30, 180
LOOK_AGAIN = timedelta(seconds=120)
# Why a delivery was withdrawn.
LEFT = "The person is no longer a member of the organization."
INACTIVE = "The organization is inactive."
Status = Delivery.Status


# The channels of each loop, and its due deliveries, by the indexes email_in_turn, call_or_text_in_turn
# and push_in_turn.
EMAIL = (Channel.EMAIL,)
PHONE = (Channel.SMS, Channel.VOICE)
PUSH = (Channel.PUSH,)
_OPEN = "status IN ('waiting', 'sending')"
_IN_TURN: dict[tuple[Channel, ...], DueIndex] = {
    EMAIL: DueIndex("notifications_delivery", "next_attempt_at", f"channel = 'email' AND {_OPEN}"),
    PHONE: DueIndex("notifications_delivery", "next_attempt_at", f"channel IN ('sms', 'voice') AND {_OPEN}"),
    PUSH: DueIndex("notifications_delivery", "next_attempt_at", f"channel = 'push' AND {_OPEN}"),
}


class NotSent(Exception):
    """Raised if a delivery was not sent. `again_in`: the delay before the retry, or None for no retry."""

    def __init__(self, why: str, again_in: timedelta | None = None) -> None:
        super().__init__(why)
        self.again_in = again_in


def deliver_due(*channels: Channel) -> int:
    """Send the deliveries that are due on these channels (EMAIL, PHONE or PUSH) and return the number claimed."""
    due = [pk for (pk,) in _IN_TURN[channels].unlocked_rows(clock.now(), BATCH, "id")]
    return run_each(deliver, take_within(due, MAX_PASS_S), event="delivery_failed")


def is_any_due(*channels: Channel) -> str:
    """Return the SQL condition that a delivery on these channels is due soon, for a loop that rests."""
    names = ", ".join(f"'{channel}'" for channel in channels)
    is_open = f"channel IN ({names}) AND {_OPEN}"
    return f"EXISTS (SELECT FROM notifications_delivery WHERE {is_open} AND next_attempt_at <= %(soon)s)"


def next_due(*channels: Channel) -> datetime | None:
    """Return when the next delivery on these channels is due."""
    first: datetime | None = (
        open_deliveries().filter(channel__in=channels).aggregate(first=Min("next_attempt_at"))["first"]
    )
    return first


def deliver(delivery_id: int) -> bool:
    """Send one due delivery. Return False if another process has it or it is no longer needed."""
    now = clock.now()
    mine = open_deliveries().filter(pk=delivery_id, next_attempt_at__lte=now)
    if not mine.update(status=Status.SENDING, attempts=F("attempts") + 1, next_attempt_at=now + CLAIM):
        return False
    row = Delivery.objects.select_related("notification__user", "notification__alert", "organization").get(
        pk=delivery_id
    )
    if (why := find_obstacle(row)) or not is_needed(row.notification):
        end_delivery(row, Status.DROPPED, why)
        return False
    fault_injection.crash_point("notifications.deliver.claimed")
    try:
        is_sent = _SENDERS[row.channel](row)
    except NotSent as error:
        retry_later(row, str(error), error.again_in)
    except Exception as error:  # any failure of a mail server or a template
        log.warning("notification_send_failed", delivery=row.pk, channel=row.channel, error=str(error))
        retry_later(row, str(error) or type(error).__name__, _retry_delay(row))
    else:
        fault_injection.crash_point("notifications.deliver.sent")
        if is_sent:
            end_delivery(row, Status.SENT)
    return True


def open_deliveries() -> QuerySet[Delivery]:
    """Return the deliveries that are not sent, failed or dropped."""
    deliveries: QuerySet[Delivery] = Delivery.objects.filter(status__in=(Status.WAITING, Status.SENDING))
    return deliveries


def is_needed(row: Notification) -> bool:
    """Return whether the notification still matters: not once its alert has ended or what it is about is gone."""
    if row.alert is not None:
        return row.alert.status == Alert.Status.OPEN
    rule = BY_KIND.get(row.kind)
    return row.settled_at is None or rule is None or not rule.withdraws


def find_obstacle(row: Delivery) -> str:
    """Return why the delivery's person or team must not get it, as they no longer may see what it is about."""
    if not row.organization.is_active:
        return INACTIVE
    user = row.notification.user
    return "" if user is None or alert_links.is_recipient(row.organization_id, user) else LEFT


def _retry_delay(row: Delivery) -> timedelta | None:
    tried = row.attempts - 1
    return timedelta(seconds=EMAIL_RETRIES_S[tried]) if tried < len(EMAIL_RETRIES_S) else None


def retry_later(row: Delivery, why: str, again_in: timedelta | None) -> None:
    """Record why a claimed delivery was not sent, and retry it after this time; None: it failed."""
    if again_in is None:
        end_delivery(row, Status.FAILED, why)
        return
    mine = Delivery.objects.filter(pk=row.pk, status=Status.SENDING, attempts=row.attempts)
    mine.update(status=Status.WAITING, next_attempt_at=clock.now() + again_in, error=why[:255])


def end_delivery(row: Delivery, status: str, why: str = "") -> None:
    """End the delivery and append its event, unless its status has changed since it was read."""
    with transaction.atomic():
        mine = Delivery.objects.filter(pk=row.pk, status=row.status)
        if not mine.update(status=status, next_attempt_at=None, ended_at=clock.now(), error=why[:255]):
            return
        metrics.deliveries.labels(row.channel, status).inc()
        data: dict[str, Any] = {"channel": row.channel, "user_id": row.notification.user_id, "why": why[:200]}
        kind = f"delivery.{status}"
        events.append(row.organization_id, kind, row.pk, notification_id=row.notification_id, **data)


def recipient_of(row: Delivery) -> User:
    """Return the user; only the team's notifications, which go to chat channels, have none."""
    assert row.notification.user is not None
    return row.notification.user


# --- Email -------------------------------------------------------------------------------------------------------
def _send_email(row: Delivery) -> bool:
    user = recipient_of(row)
    if not settings.EMAIL_IS_SET_UP:
        raise NotSent("No mail server is configured (EMAIL_URL).")
    mail = rendering.render_email(row.notification)
    message = EmailMultiAlternatives(
        mail.subject,
        mail.text,
        to=[user.email],
        # the same for every attempt, so that mail clients can recognize duplicates
        headers={"Message-ID": f"<delivery-{row.pk}@{settings.EMAIL_DOMAIN}>", "Auto-Submitted": "auto-generated"},
    )
    message.attach_alternative(mail.html, "text/html")
    message.send()
    return True


# --- Phone -------------------------------------------------------------------------------------------------------
def _place_call(row: Delivery) -> bool:
    """Write the call. Telephony places it soon, and reports the result to `apply_call_report`."""
    call_id = _write_locked(row, _create_call)
    if call_id is not None:
        telephony.place_soon(Call.objects.get(pk=call_id))
        apply_call_report(Call.objects.get(pk=call_id))
    return False


def _write_locked(row: Delivery, make: Callable[[Delivery], int]) -> int | None:
    """Return the id that `make` writes in a transaction that locks the alert; None if the alert is not open."""
    user = recipient_of(row)
    if not user.phone:
        raise NotSent(f"{user} has no phone number.")
    if not phone_confirmation.is_usable(row.organization_id, user):
        raise NotSent(f"{user} has not confirmed their phone number.")
    try:
        with transaction.atomic():
            if row.notification.alert_id is not None:
                alert = alerts.lock_alert(row.notification.alert_id)
                if alert.status != Alert.Status.OPEN:
                    end_delivery(row, Status.DROPPED)
                    return None
            return make(row)
    except (telephony.CallNotAllowed, telephony.TextNotAllowed, telephony.NoTextNumber) as error:
        raise NotSent(str(error)) from error
    except telephony.NoLine as error:
        raise NotSent(str(error), _retry_within(row, timedelta(seconds=error.retry_in_s))) from error
    except telephony.PhoneBusy as error:
        raise NotSent("the phone is busy with another call", _retry_within(row, PHONE_AGAIN)) from error


def _send_text(row: Delivery) -> bool:
    """Write the text. Telephony reports the result to `apply_text_report`."""
    text_id = _write_locked(row, _create_text)
    if text_id is not None:
        apply_text_report(Text.objects.get(pk=text_id))
    return False


def _create_text(row: Delivery) -> int:
    text = telephony.create_text(
        organization=row.organization,
        purpose="alert",
        subject_id=row.pk,
        to_phone=str(recipient_of(row).phone),
        body=rendering.render_text(row.notification),
        pool=call_pool(row.organization_id),
        not_after=row.created_at + PHONE_PATIENCE,
        context={f"{row.notification.subject_type}_id": row.notification.subject_id},
    )
    _leave_to_others(row)
    return text.pk


def _leave_to_others(row: Delivery) -> None:
    """Leave the delivery to telephony or the push loop, and check again later in case the report is lost."""
    Delivery.objects.filter(pk=row.pk).update(next_attempt_at=clock.now() + LOOK_AGAIN)


def apply_text_report(text: Text) -> None:
    """Apply telephony's report on a text. A text that was sent may still turn out to be undelivered."""
    if text.status in (Text.Status.SENT, Text.Status.DELIVERED):
        _apply_report(text.subject_id or 0, Status.SENT)
    elif text.ended_at is not None:
        _apply_report(text.subject_id or 0, Status.FAILED, text.error_message or Text.Status(text.status).label)


def _apply_report(delivery_id: int, status: str, why: str = "") -> None:
    with transaction.atomic():  # serialize: "sent" and "undelivered" may arrive at the same moment
        rows = Delivery.objects.select_for_update(no_key=True, of=("self",))
        related = ("notification__alert", "notification__user", "organization")
        row = rows.select_related(*related).filter(pk=delivery_id).first()
        if row is None or row.status in (status, Status.FAILED, Status.DROPPED):
            return
        if status == Status.FAILED and ((obstacle := find_obstacle(row)) or not is_needed(row.notification)):
            status, why = Status.DROPPED, obstacle
        end_delivery(row, status, why)


def _retry_within(row: Delivery, pause: timedelta) -> timedelta | None:
    return pause if clock.now() + pause < row.created_at + PHONE_PATIENCE else None


def _create_call(row: Delivery) -> int:
    pool = call_pool(row.organization_id)
    if pool is None:
        raise NotSent("The organization has no call pool.")
    last = telephony.calls_of("alert", row.pk).order_by("-attempt").first()
    call = telephony.create_call(
        organization=row.organization,
        purpose="alert",
        subject_id=row.pk,
        attempt=1 if last is None else last.attempt + _met_outage(last),
        to_phone=str(recipient_of(row).phone),
        pool=pool,
        ring_timeout_s=RING_S,
        time_limit_s=TIME_LIMIT_S,
        place_by=row.created_at + PHONE_PATIENCE,
        context={f"{row.notification.subject_type}_id": row.notification.subject_id},
    )
    _leave_to_others(row)
    return call.pk


def apply_call_report(call: Call) -> None:
    """Apply telephony's report on a call: `sent` if it was answered, `failed` if it ended without an answer.

    A call that was not placed because of its account's outage is tried again, from the fallback if there is one.
    """
    if call.answered_at is not None:
        _apply_report(call.subject_id, Status.SENT)
    elif _met_outage(call):
        mine = Delivery.objects.filter(pk=call.subject_id, status=Status.SENDING)
        mine.update(status=Status.WAITING, next_attempt_at=clock.now())
    elif call.ended_at is not None:
        _apply_report(call.subject_id, Status.FAILED, call.error_message or Call.Status(call.status).label)


def _met_outage(call: Call) -> bool:
    """Return whether the call was not placed because of its account's outage, and there is time to call again."""
    never_placed = call.status in (Call.Status.NOT_PLACED, Call.Status.REJECTED)
    return never_placed and bool(call.account.outage) and clock.now() < call.place_by


# --- Push --------------------------------------------------------------------------------------------------------
def _write_pushes(row: Delivery) -> bool:
    """Write a message to each of the person's browsers. `report_push` applies their results."""
    if not push_messages.write_for_delivery(row):
        raise NotSent(f"{recipient_of(row)} gets push notifications in no browser.")
    _leave_to_others(row)
    report_push(row.pk)
    return False


def report_push(delivery_id: int) -> None:
    """Apply the results of a delivery's messages: `sent` once one is, `failed` once none can be."""
    messages = PushMessage.objects.filter(purpose=PushMessage.Purpose.ALERT, subject_id=delivery_id)
    found = list(messages.order_by("pk").values_list("status", "error"))
    statuses = {status for status, _ in found}
    if PushMessage.Status.SENT in statuses:
        _apply_report(delivery_id, Status.SENT)
    elif found and not statuses & set(push_messages.OPEN):
        _apply_report(delivery_id, Status.FAILED, next((why for _, why in found if why), ""))


_SENDERS: dict[str, Callable[[Delivery], bool]] = {
    Channel.EMAIL: _send_email,
    Channel.SMS: _send_text,
    Channel.VOICE: _place_call,
    Channel.PUSH: _write_pushes,
}
