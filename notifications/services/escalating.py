"""What an open alert does when its time has come: it shows itself again, and reaches more people.

Each alert is handled in a transaction of its own, by its step token; what is to be sent is written there and sent
by others (`delivering`). Killed anywhere, the same step is done again, and finds what it has written."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import F, Min

from accounts.models import Membership, User
from dispatch.core import clock, faults
from dispatch.core.queues import wake
from dispatch.telephony import services as telephony
from notifications import push, rules, steps
from notifications.models import Alert, Channel, Delivery, Notification
from notifications.services import alerts
from notifications.services.preferences import Wants, wants_of
from notifications.services.writing import EMAIL_LOOP, PHONE_LOOP, people_of, write

log = structlog.get_logger(__name__)

BATCH = 100
PUT_OFF = timedelta(seconds=20)


def escalate_due() -> int:
    """Moves on every open alert whose next step is due; how many. One that fails is put off."""
    due = Alert.objects.filter(status=Alert.Status.OPEN, next_action_at__lte=clock.now())
    found = list(due.order_by("next_action_at").values_list("pk", "step_token")[:BATCH])
    for alert_id, token in found:
        try:
            escalate(alert_id, token)
        except Exception:
            log.exception("an alert could not escalate", alert=alert_id)
            step = Alert.objects.filter(pk=alert_id, step_token=token, status=Alert.Status.OPEN)
            step.update(next_action_at=clock.now() + PUT_OFF)
    return len(found)


def repeat_due() -> int:
    """Shows every open alert again that is due for it; how many."""
    due = Alert.objects.filter(status=Alert.Status.OPEN, next_repeat_at__lte=clock.now())
    found = list(due.order_by("next_repeat_at").values_list("pk", "next_repeat_at")[:BATCH])
    for alert_id, planned in found:
        _repeat(alert_id, planned)
    return len(found)


def next_due() -> datetime | None:
    """When the next open alert repeats or escalates."""
    coming = Alert.objects.filter(status=Alert.Status.OPEN).aggregate(
        act=Min("next_action_at"), repeat=Min("next_repeat_at")
    )
    moments = [moment for moment in coming.values() if moment is not None]
    return min(moments) if moments else None


def escalate(alert_id: int, token: uuid.UUID) -> bool:
    """Does the alert's step `token`; False when it is over, or not due."""
    with transaction.atomic():
        alert = alerts.locked(alert_id)
        now = clock.now()
        if alert.status != Alert.Status.OPEN or alert.step_token != token:
            return False
        assert alert.next_action_at is not None
        if alert.next_action_at > now:
            return False
        plan = steps.Plan.from_json(alert.plan)
        reached = Delivery.objects.filter(notification__alert=alert, cycle=alert.cycle, step__isnull=False)
        at_this_step = reached.filter(step=alert.step).values_list("notification__user_id", flat=True)
        move = steps.next_move(
            plan, alert.cycle, alert.step, staff_of(alert), set(at_this_step), anybody_in_cycle=reached.exists()
        )
        _reach(alert, move)
        alert.cycle, alert.step, alert.step_token = move.cycle, move.step, uuid.uuid4()
        alert.next_action_at = now + timedelta(seconds=move.wait_s)
        alert.save(update_fields=["cycle", "step", "step_token", "next_action_at"])
        faults.point("notifications.escalate.writing")
    faults.point("notifications.escalate.committed")
    return True


def staff_of(alert: Alert) -> steps.Staff:
    """Who could be reached for the alert as things are now."""
    people = people_of(alert.organization_id)
    everybody = [*people.dispatchers, *people.admins, *people.superusers]
    duty = Membership.objects.of(alert.organization_id).filter(on_duty=True, user_id__in=people.dispatchers)
    on_duty = set(duty.values_list("user_id", flat=True))
    users = {user.pk: user for user in User.objects.filter(pk__in=everybody)}
    can = {pk: _can(alert.organization_id, user) for pk, user in users.items()}
    wants = wants_of(alert.organization_id, everybody, alert.kind, is_alert=True)
    chosen = {
        pk: {
            channel
            for channel, is_wanted in ((steps.SMS, wants[pk].sms), (steps.VOICE, wants[pk].voice))
            if is_wanted and channel in can[pk]
        }
        for pk in users
    }
    return steps.Staff(
        on_duty=[user for user in people.dispatchers if user in on_duty],
        dispatchers=people.dispatchers,
        admins=people.admins,
        superusers=people.superusers,
        ways=chosen,
        can=can,
    )


def _can(organization_id: int, user: User) -> set[str]:
    if not user.phone:
        return {steps.EMAIL}
    may_text = telephony.may_text(organization_id, user.phone)
    return {steps.EMAIL, steps.VOICE} | ({steps.SMS} if may_text else set())


def _reach(alert: Alert, move: steps.Move) -> None:
    """Writes what is to be sent; whoever had no notification of the alert yet gets one, too."""
    if not move.users:
        if move.is_last_resort:
            log.error("an alert cannot reach anybody", alert=alert.pk, organization=alert.organization_id)
            alerts.note(alert, "alert_reached_nobody")
        return
    users = [user for user, _ in move.users]
    message = rules.Message(alert.title, alert.body)
    silent = dict.fromkeys(users, _NOTHING)
    rows = write(
        alert.organization_id, users, silent, event=alert, level=Notification.Level.CRITICAL, message=message,
        alert=alert,
    )  # fmt: skip
    own = {row.user_id: row for row in rows}
    Delivery.objects.bulk_create(
        [
            Delivery(
                organization_id=alert.organization_id,
                notification=own[user],
                channel=channel,
                cycle=alert.cycle,
                step=move.at,
            )
            for user, ways in move.users
            for channel in ways
        ],
        ignore_conflicts=True,
    )
    wake(PHONE_LOOP)
    wake(EMAIL_LOOP)
    names = {user.pk: str(user) for user in User.objects.filter(pk__in=users)}
    told = ", ".join(f"{names[user]} by {' and '.join(_WORDS[way] for way in ways)}" for user, ways in move.users)
    alerts.note(
        alert, "alert_escalated", user_ids=users, told=told[:500], cycle=alert.cycle, step=move.at,
        is_last_resort=move.is_last_resort,
    )  # fmt: skip


def _repeat(alert_id: int, planned: datetime | None) -> None:
    with transaction.atomic():
        alert = alerts.locked(alert_id)
        if alert.status != Alert.Status.OPEN or alert.next_repeat_at != planned:
            return
        every = steps.Plan.from_json(alert.plan).repeat_s
        # from now on: a loop that stood still does not make up for what it missed
        next_at = clock.now() + timedelta(seconds=every)
        Alert.objects.filter(pk=alert.pk).update(repeats=F("repeats") + 1, next_repeat_at=next_at)
        open_rows = Notification.objects.filter(alert=alert, acknowledged_at=None).order_by("pk")
        push.repeated(alert.organization_id, list(open_rows.values_list("pk", flat=True)))


_NOTHING = Wants(shown=True, email=False, sms=False, voice=False)
_WORDS: dict[str, str] = {Channel.EMAIL: "e-mail", Channel.SMS: "text", Channel.VOICE: "call"}
