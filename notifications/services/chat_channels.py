"""Add, test and remove channels, and write the deliveries that go to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import transaction

from accounts.auth import throttling
from accounts.models import Organization, User
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.models import Event
from dispatch.core.runtime.queues import notify_loop
from dispatch.core.stored_texts import mark_stored
from notifications import rules
from notifications.channels import kinds
from notifications.channels.failure_reasons import Failure
from notifications.models import Alert, AlertChannel, Channel, Delivery, Level, Notification

CHAT_LOOP = "notifications_chat"
TEST_KIND = "alert_channel.tested"
TEST_TITLE = mark_stored("Test message to {name}")
TEST_BODY = mark_stored("If you can read this, the channel works.")
MAX_PER_PERSON, MAX_PER_TEAM, MAX_NAME = 5, 10, 60
TEST_RATE = throttling.Rate(10, 600)
# After this many failed attempts in a row, a channel waits before the next one.
MAX_FAILURES, PAUSE = 3, timedelta(seconds=60)


class TestRefused(Exception):
    """No test message was sent. The text says why, as a sentence for the user."""

    __test__ = False


@dataclass(frozen=True)
class ChannelState:
    """A channel as its settings page shows it. `is_testing`: a test message is on its way."""

    channel: AlertChannel
    is_testing: bool


# --- Reading -----------------------------------------------------------------------------------------------------
def channels_of(organization_id: int, user: User) -> list[ChannelState]:
    """Return the user's channels in the organization."""
    rows = AlertChannel.objects.of(organization_id).filter(user=user, removed_at=None).defer("config")
    open_tests = Delivery.objects.of(organization_id).filter(
        destination__in=rows.values("pk"),
        notification__kind=TEST_KIND,
        status__in=(Delivery.Status.WAITING, Delivery.Status.SENDING),
    )
    # Before the rows are read: a row read later has the results of the tests that ended.
    testing = set(open_tests.values_list("destination_id", flat=True))
    return [ChannelState(row, row.pk in testing) for row in rows]


def working_by_user(organization_id: int, users: Collection[int]) -> dict[int, list[int]]:
    """Return the ids of the channels of each of these users that take messages, as far as is known."""
    rows = AlertChannel.objects.of(organization_id).filter(user_id__in=users, removed_at=None, stopped_at=None)
    found: dict[int, list[int]] = defaultdict(list)
    for user_id, pk in rows.order_by("pk").values_list("user_id", "pk"):
        found[user_id].append(pk)
    return dict(found)


# --- Changing ----------------------------------------------------------------------------------------------------
def add_channel(
    organization: Organization,
    user: User | None,
    kind: str,
    name: str,
    entered: Mapping[str, str],
    *,
    actor: Actor,
    **more: str,
) -> AlertChannel:
    """Add a channel of the user, or of the team if `user` is None. Raises ValidationError by field.

    `more`: the scope and audience of a team's channel.
    """
    config, address = kinds.read_entered(kind, entered)
    label = AlertChannel.Kind(kind).label
    row = AlertChannel(organization=organization, user=user, kind=kind, address=address, **more)
    row.name, row.config = name.strip()[:MAX_NAME] or label, config
    save_new(row, actor=actor)
    return row


def save_new(row: AlertChannel, *, actor: Actor) -> None:
    """Save a new channel and append its event. Raises ValidationError beyond the number of channels."""
    most = MAX_PER_TEAM if row.is_team else MAX_PER_PERSON
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=row.organization_id)  # two adds at once
        own = AlertChannel.objects.of(row.organization_id).filter(user=row.user, removed_at=None)
        if own.count() >= most:
            raise ValidationError(
                {"kind": _("At most {most} channels are possible. Remove one first.").format(most=most)}
            )
        row.save()
        _append_event(row, "added", actor)


def remove_channel(row: AlertChannel, *, actor: Actor) -> None:
    """Remove the channel and its secrets. Messages that wait for it are dropped."""
    with transaction.atomic():
        mine = AlertChannel.objects.filter(pk=row.pk, removed_at=None)
        if not mine.update(removed_at=clock.now(), config={}, address="", stopped_at=None, error=""):
            return
        waiting = Delivery.objects.filter(destination=row, status=Delivery.Status.WAITING)
        waiting.update(status=Delivery.Status.DROPPED, next_attempt_at=None, ended_at=clock.now())
        _append_event(row, "removed", actor)


def send_test(row: AlertChannel, *, user: User, actor: Actor) -> Delivery:
    """Send a test message to the channel; the loop does, within seconds. Raises TestRefused.

    It ends a stop or pause: the channel is used again if the service takes it.
    """
    (taken,) = throttling.take_tokens((f"alert-channel-test:{user.pk}", TEST_RATE))
    if taken.wait_ms:
        minutes = -(-taken.wait_ms // 60_000)
        raise TestRefused(_("Too many test messages. Try again in {minutes} min.").format(minutes=minutes))
    with transaction.atomic():
        channel = _lock_channel(row.pk)
        if channel.removed_at is not None:
            raise TestRefused(_("This channel was removed."))
        AlertChannel.objects.filter(pk=channel.pk).update(paused_until=None)
        event = _append_event(channel, "tested", actor)
        notification = Notification.objects.create(
            organization_id=channel.organization_id,
            user=channel.user,
            event_id=event.pk,
            kind=TEST_KIND,
            level=Level.QUIET,
            title=TEST_TITLE.format(name=channel.name)[: rules.MAX_TITLE],
            body=TEST_BODY,
            subject_type="alert_channel",
            subject_id=channel.pk,
            read_at=clock.now(),
        )
        delivery = Delivery.objects.create(
            organization_id=channel.organization_id, notification=notification, channel=Channel.CHAT,
            destination=channel,
        )  # fmt: skip
        notify_loop(CHAT_LOOP)
    return delivery


def record_success(channel_id: int) -> None:
    """Record that the channel took a message. It is used again if it was stopped or paused."""
    AlertChannel.objects.filter(pk=channel_id).update(
        failures=0, error="", tried_at=clock.now(), paused_until=None, stopped_at=None
    )


def record_failure(channel_id: int, failure: Failure, *, is_test: bool) -> None:
    """Record why the channel did not take a message. A permanent failure stops it, and its owner is notified."""
    now = clock.now()
    with transaction.atomic():
        row = _lock_channel(channel_id)
        row.failures, row.error, row.tried_at = row.failures + 1, failure.reason[:255], now
        if row.failures >= MAX_FAILURES and not failure.is_permanent:
            row.paused_until = now + PAUSE
        is_stopped = failure.is_permanent and row.stopped_at is None and row.removed_at is None
        if is_stopped:
            row.stopped_at = now
        row.save(update_fields=["failures", "error", "tried_at", "paused_until", "stopped_at"])
        if is_stopped and not is_test:
            events.append(
                row.organization_id, "alert_channel.stopped", row.pk,
                name=row.name, reason=row.error, owner_id=row.user_id,
            )  # fmt: skip


def _lock_channel(channel_id: int) -> AlertChannel:
    """Lock the channel's row, without its config: that may be unreadable."""
    rows = AlertChannel.objects.select_for_update(no_key=True, of=("self",)).defer("config")
    row: AlertChannel = rows.get(pk=channel_id)
    return row


def _append_event(row: AlertChannel, verb: str, actor: Actor) -> Event:
    return events.append(
        row.organization_id, f"alert_channel.{verb}", row.pk, actor=actor,
        name=row.name, channel_kind=row.kind, user_id=row.user_id,
    )  # fmt: skip


# --- Deliveries --------------------------------------------------------------------------------------------------
def make_deliveries(
    rows: Collection[Notification], users: Collection[int], *, cycle: int = 0, step: int | None = None
) -> list[Delivery]:
    """Return unsaved deliveries of these notifications to the working channels of these users."""
    if not users or not rows:
        return []
    working = working_by_user(next(iter(rows)).organization_id, users)
    return [
        Delivery(
            organization_id=row.organization_id, notification=row, channel=Channel.CHAT, destination_id=pk,
            cycle=cycle, step=step,
        )
        for row in rows
        for pk in working.get(row.user_id or 0, ())
    ]  # fmt: skip


def notify_team(
    organization_id: int, *, event: Event | Alert, level: str, message: rules.Message, to: str,
    alert: Alert | None,
) -> None:  # fmt: skip
    """Write the team's notification and its deliveries, if the organization has a channel for it.

    Idempotent for each cycle of an alert. Call it in the transaction of the event.
    """
    if level not in (Level.CRITICAL, Level.TOAST):
        return
    channels = AlertChannel.objects.of(organization_id).filter(user=None, removed_at=None, stopped_at=None)
    if to != rules.EVERYBODY:
        channels = channels.filter(audience=to)
    if level == Level.TOAST:
        channels = channels.filter(scope=AlertChannel.Scope.SHOWN)
    ids = list(channels.order_by("pk").values_list("pk", flat=True))
    if not ids:
        return
    event_id = event.event_id if isinstance(event, Alert) else event.pk
    Notification.objects.bulk_create(
        [
            Notification(
                organization_id=organization_id, user=None, alert=alert, event_id=event_id, kind=event.kind,
                level=level, title=message.title, body=message.body, subject_type=event.subject_type,
                subject_id=event.subject_id, read_at=clock.now(),
            )
        ],
        ignore_conflicts=True,
    )  # fmt: skip
    row = Notification.objects.of(organization_id).get(event_id=event_id, user=None)
    _write_for_team(row, ids, cycle=alert.cycle if alert else 0)


def notify_team_again(alert: Alert) -> None:
    """Write the team's deliveries for the alert's current cycle, if an earlier cycle went to the team."""
    row = Notification.objects.of(alert.organization_id).filter(alert=alert, user=None).first()
    if row is None:
        return
    earlier = Delivery.objects.filter(
        notification=row, destination__removed_at=None, destination__stopped_at=None
    ).order_by()
    _write_for_team(row, sorted(set(earlier.values_list("destination_id", flat=True))), cycle=alert.cycle)


def _write_for_team(row: Notification, ids: Collection[int], *, cycle: int) -> None:
    Delivery.objects.bulk_create(
        [
            Delivery(
                organization_id=row.organization_id, notification=row, channel=Channel.CHAT, destination_id=pk,
                cycle=cycle,
            )
            for pk in ids
        ],
        ignore_conflicts=True,
    )  # fmt: skip
    notify_loop(CHAT_LOOP)
