"""Repeat and escalate open alerts when they are due, and open acknowledged ones again that nothing has followed.

Each alert is handled in its own transaction, identified by its step token. Deliveries are written there and sent
by `deliveries`. After a crash the same step runs again and finds what it has already written. Alerts of an
inactive organization wait until it is active again.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import F, Q

from accounts.models import Membership, User
from dispatch.core import clock, fault_injection
from dispatch.core.db.due_rows import DueIndex
from dispatch.core.db.isolation import FailureRule, run_each, take_within
from dispatch.core.db.prepared import fetch_in_order
from dispatch.core.models import Event
from dispatch.core.runtime.queues import notify_loop
from dispatch.telephony import services as telephony
from notifications import escalation_rules, live_updates, rules
from notifications.models import Alert, Channel, Delivery, Notification
from notifications.services import alerts, chat_channels, phone_confirmation, push_subscriptions
from notifications.services.notifications import EMAIL_LOOP, PHONE_LOOP, people_of, write
from notifications.services.preferences import Wants, wants_of
from notifications.services.push_messages import PUSH_LOOP

log = structlog.get_logger(__name__)

BATCH = 100
# Each kind of step ends its part of a pass after this time; the rest is in the next one.
MAX_PASS_S = 10.0
POSTPONE = timedelta(seconds=20)
# The alerts of active organizations for each kind of step, by the indexes alert_to_escalate_in_turn,
# alert_to_repeat_in_turn and alert_to_return_in_turn. Those of an inactive organization stay due, but nothing
# reads them.
_ACTIVE = "SELECT id FROM accounts_organization WHERE is_active"
_TO_ESCALATE = DueIndex("notifications_alert", "next_action_at", "status = 'open'", _ACTIVE)
_TO_REPEAT = DueIndex("notifications_alert", "next_repeat_at", "status = 'open'", _ACTIVE)
_TO_RETURN = DueIndex("notifications_alert", "returns_at", "status = 'acknowledged'", _ACTIVE)
_IN_TURN = (_TO_ESCALATE, _TO_REPEAT, _TO_RETURN)
# The SQL condition that an alert repeats, escalates or returns soon.
IS_ANY_DUE = f"({' OR '.join(index.is_any_due('%(soon)s') for index in _IN_TURN)})"
_NEXT_DUE = f"SELECT LEAST({', '.join(index.next_due() for index in _IN_TURN)})"


def escalate_due() -> int:
    """Escalate every due alert and return the number. A failing alert is deferred."""
    steps = _TO_ESCALATE.unlocked_rows(clock.now(), BATCH, "id", "step_token")
    run_each(
        lambda step: escalate(*step),
        take_within(steps, MAX_PASS_S),
        event="alert_escalation_failed",
        rule=_ESCALATION_RULE,
    )
    return len(steps)


def _postpone_escalation(step: tuple[int, uuid.UUID]) -> None:
    same = Alert.objects.filter(pk=step[0], step_token=step[1], status=Alert.Status.OPEN)
    same.update(next_action_at=clock.now() + POSTPONE)


_ESCALATION_RULE = FailureRule(_postpone_escalation)


def repeat_due() -> int:
    """Repeat every due alert on screens and return the number. A failing alert is deferred."""
    repeats = _TO_REPEAT.unlocked_rows(clock.now(), BATCH, "id", "next_repeat_at")
    run_each(
        lambda repeat: _repeat(*repeat),
        take_within(repeats, MAX_PASS_S),
        event="alert_not_repeated",
        rule=_REPEAT_RULE,
    )
    return len(repeats)


def _postpone_repeat(repeat: tuple[int, datetime | None]) -> None:
    same = Alert.objects.filter(pk=repeat[0], next_repeat_at=repeat[1], status=Alert.Status.OPEN)
    same.update(next_repeat_at=clock.now() + POSTPONE)


_REPEAT_RULE = FailureRule(_postpone_repeat)


def return_due() -> int:
    """Open every acknowledged alert again that nothing has followed, and return the number.

    A failing alert is deferred.
    """
    free = [pk for (pk,) in _TO_RETURN.unlocked_rows(clock.now(), BATCH, "id")]
    run_each(_return, take_within(free, MAX_PASS_S), event="alert_not_returned", rule=_RETURN_RULE)
    return len(free)


def _postpone_return(alert_id: int) -> None:
    same = Alert.objects.filter(pk=alert_id, status=Alert.Status.ACKNOWLEDGED, returns_at__isnull=False)
    same.update(returns_at=clock.now() + POSTPONE)


_RETURN_RULE = FailureRule(_postpone_return)


def next_due() -> datetime | None:
    """Return when the next alert repeats, escalates or returns."""
    ((first,),) = fetch_in_order(_NEXT_DUE)
    moment: datetime | None = first
    return moment


def escalate(alert_id: int, token: uuid.UUID) -> bool:
    """Run the alert's step `token`. Return False if the alert is closed or not due."""
    with transaction.atomic():
        alert = alerts.lock_alert(alert_id)
        now = clock.now()
        if alert.status != Alert.Status.OPEN or alert.step_token != token:
            return False
        assert alert.next_action_at is not None
        if alert.next_action_at > now:
            return False
        plan = escalation_rules.Plan.from_json(alert.plan)
        reached = Delivery.objects.filter(notification__alert=alert, cycle=alert.cycle, step__isnull=False)
        at_this_step = reached.filter(step=alert.step).values_list("notification__user_id", flat=True)
        # A message that no chat or push service has taken has reached nobody, nor has one that was dropped.
        got_it = reached.exclude(status=Delivery.Status.DROPPED).filter(
            ~Q(channel__in=escalation_rules.UNCERTAIN) | Q(status=Delivery.Status.SENT)
        )
        move = escalation_rules.next_move(
            plan, alert.cycle, alert.step, staff_of(alert), set(at_this_step), anybody_in_cycle=got_it.exists()
        )
        if alert.cycle and alert.step == 0:
            chat_channels.notify_team_again(alert)
        _reach(alert, move)
        alert.cycle, alert.step, alert.step_token = move.cycle, move.step, uuid.uuid4()
        alert.next_action_at = now + timedelta(seconds=move.wait_s)
        alert.save(update_fields=["cycle", "step", "step_token", "next_action_at"])
        fault_injection.crash_point("notifications.escalate.writing")
    fault_injection.crash_point("notifications.escalate.committed")
    return True


def staff_of(alert: Alert) -> escalation_rules.Staff:
    """Return the users who can be reached for the alert now."""
    people = people_of(alert.organization_id)
    everybody = [*people.dispatchers, *people.admins, *people.superusers]
    duty = Membership.objects.of(alert.organization_id).filter(on_duty=True, user_id__in=people.dispatchers)
    on_duty = set(duty.values_list("user_id", flat=True))
    users = {user.pk: user for user in User.objects.filter(pk__in=everybody)}
    usable = phone_confirmation.usable_phones(alert.organization_id, users.values())
    textable = telephony.textable(alert.organization_id, [str(users[pk].phone) for pk in usable])
    in_chat = chat_channels.working_by_user(alert.organization_id, everybody)
    in_browsers = push_subscriptions.subscribed_users(alert.organization_id, everybody)
    can = {
        pk: {escalation_rules.EMAIL}
        | ({escalation_rules.VOICE} if pk in usable else set())
        | ({escalation_rules.SMS} if pk in usable and str(user.phone) in textable else set())
        | ({escalation_rules.CHAT} if pk in in_chat else set())
        | ({escalation_rules.PUSH} if pk in in_browsers else set())
        for pk, user in users.items()
    }
    wants = wants_of(alert.organization_id, everybody, alert.kind, is_alert=True)
    chosen = {
        pk: {
            channel
            for channel, is_wanted in (
                (escalation_rules.SMS, wants[pk].sms),
                (escalation_rules.VOICE, wants[pk].voice),
                (escalation_rules.CHAT, wants[pk].chat),
                (escalation_rules.PUSH, wants[pk].push),
            )
            if is_wanted and channel in can[pk]
        }
        for pk in users
    }
    return escalation_rules.Staff(
        on_duty=[user for user in people.dispatchers if user in on_duty],
        dispatchers=people.dispatchers,
        admins=people.admins,
        superusers=people.superusers,
        ways=chosen,
        can=can,
    )


def _reach(alert: Alert, move: escalation_rules.EscalationMove) -> None:
    """Write the deliveries, and a notification for each recipient who does not have one yet."""
    if not move.users:
        if move.is_last_resort:
            log.error("alert_unreachable", alert=alert.pk, organization=alert.organization_id)
            alerts.append_alert_event(alert, "alert_reached_nobody")
        return
    users = [user for user, _ in move.users]
    message = rules.Message(alert.title, alert.shown_body)
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
            if channel != Channel.CHAT
        ],
        ignore_conflicts=True,
    )
    by_chat = [user for user, ways in move.users if Channel.CHAT in ways]
    chats = chat_channels.make_deliveries(
        [own[user] for user in by_chat], by_chat, cycle=alert.cycle, step=move.at
    )
    Delivery.objects.bulk_create(chats, ignore_conflicts=True)
    notify_loop(chat_channels.CHAT_LOOP)
    notify_loop(PUSH_LOOP)
    notify_loop(PHONE_LOOP)
    notify_loop(EMAIL_LOOP)
    names = {user.pk: str(user) for user in User.objects.filter(pk__in=users)}
    recipients = ", ".join(
        f"{names[user]} by {' and '.join(_WORDS[way] for way in ways)}" for user, ways in move.users
    )
    alerts.append_alert_event(
        alert, "alert_escalated", user_ids=users, told=recipients[:500], cycle=alert.cycle, step=move.at,
        is_last_resort=move.is_last_resort,
    )  # fmt: skip


def _repeat(alert_id: int, planned: datetime | None) -> bool:
    with transaction.atomic():
        alert = alerts.lock_alert(alert_id)
        if alert.status != Alert.Status.OPEN or alert.next_repeat_at != planned:
            return False
        every = escalation_rules.Plan.from_json(alert.plan).repeat_s
        # Counted from now, so that a loop that was down does not catch up on missed repeats.
        next_at = clock.now() + timedelta(seconds=every)
        Alert.objects.filter(pk=alert.pk).update(repeats=F("repeats") + 1, next_repeat_at=next_at)
        open_rows = Notification.objects.filter(alert=alert, acknowledged_at=None).order_by("pk")
        live_updates.notify_repeated(alert.organization_id, list(open_rows.values_list("pk", flat=True)))
    return True


def _return(alert_id: int) -> bool:
    """Open an acknowledged alert again, unless a person has done something about its subject since."""
    with transaction.atomic():
        alert = alerts.lock_alert(alert_id)
        now = clock.now()
        if alert.status != Alert.Status.ACKNOWLEDGED or alert.returns_at is None or alert.returns_at > now:
            return False
        acknowledged_at = alert.acknowledged_at or now
        followed = _last_action_since(alert, acknowledged_at)
        if followed is not None and (later := alerts.return_time(alert, followed)) and later > now:
            Alert.objects.filter(pk=alert.pk).update(returns_at=later)
            return False
        who, minutes = str(alert.acknowledged_by or "Somebody"), int((now - acknowledged_at).total_seconds() // 60)
        ago = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
        plan = escalation_rules.Plan.from_json(alert.plan)
        alert.return_note = f"{who} acknowledged this {ago} ago, but nothing has happened since"[:160]
        alert.status, alert.returns, alert.returns_at = Alert.Status.OPEN, alert.returns + 1, None
        alert.acknowledged_at, alert.acknowledged_by, alert.acknowledged_via = None, None, ""
        alert.cycle, alert.step, alert.step_token = alert.cycle + 1, 0, uuid.uuid4()
        alert.next_action_at = now + timedelta(seconds=plan.wait_before(0))
        alert.next_repeat_at = now + timedelta(seconds=plan.repeat_s)
        alert.save()
        rows = Notification.objects.filter(alert=alert).select_for_update(no_key=True).order_by("pk")
        ids = list(rows.values_list("pk", flat=True))
        Notification.objects.filter(pk__in=ids).update(
            acknowledged_at=None, acknowledged_by=None, read_at=None, body=alert.shown_body
        )
        alerts.append_alert_event(alert, "alert_returned", by=who)
        chat_channels.notify_team_again(alert)
        live_updates.notify_changed(alert.organization_id, ids)
        live_updates.notify_repeated(alert.organization_id, ids)
    return True


def _last_action_since(alert: Alert, since: datetime) -> datetime | None:
    """Return when a person last did something about the alert's subject, apart from acknowledging."""
    done = Event.objects.filter(
        organization_id=alert.organization_id,
        subject_type=alert.subject_type,
        subject_id=alert.subject_id,
        actor_type="user",
        at__gt=since,
    ).exclude(kind__contains=".alert_")
    return done.order_by("-id").values_list("at", flat=True).first()


_NOTHING = Wants(shown=True, email=False, sms=False, voice=False)
_WORDS: dict[str, str] = {
    Channel.EMAIL: "email",
    Channel.SMS: "text",
    Channel.VOICE: "call",
    Channel.CHAT: "chat",
    Channel.PUSH: "push",
}
