"""Chat services and webhooks: what each service gets, failures, retries, stops, and isolation from each other."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction

from accounts.models import Membership, Organization, User
from accounts.tenancy import actor_of
from dispatch.core import clock, events
from dispatch.core.models import Event
from dispatch.core.runtime.fair_threads import FairThreads
from notifications import loops
from notifications.models import Alert, AlertChannel, Channel, Delivery, Notification, Preference
from notifications.services import acknowledge_alert, chat_channels, chat_deliveries, handle
from notifications.services.notifications import handle_early
from tests.notifications.chat_services import Answers
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

KINDS = AlertChannel.Kind.values
Status = Delivery.Status


def add(chat_services: Answers, office: Organization, user: User | None, kind: str = "slack") -> AlertChannel:
    actor = actor_of(user) if user else events.SYSTEM
    return chat_channels.add_channel(office, user, kind, "", chat_services.entered(kind), actor=actor)


def raise_alert(office: Organization, subject_id: int = 12, **data: Any) -> Alert:
    with transaction.atomic():
        event = events.append(office.pk, "schedule.failing", subject_id, name="Nightly", error="no line", **data)
        handle_early(Event.objects.get(pk=event.pk))
    return Alert.objects.latest("pk")


def escalate() -> None:
    clock.travel(130)
    loops.escalate()


def send() -> list[tuple[str, str]]:
    """Run the loop until nothing is due, and return (status, error) of the chat deliveries."""
    while loops.send_chat() == 0:
        pass
    return deliveries()


def deliveries() -> list[tuple[str, str]]:
    rows = Delivery.objects.filter(channel=Channel.CHAT).order_by("pk")
    return list(rows.values_list("status", "error"))


def test_each_service_gets_its_own_protocol(
    chat_services: Answers, office: Organization, dora: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_channels, "MAX_PER_PERSON", len(KINDS))
    for kind in KINDS:
        add(chat_services, office, dora, kind)
    raise_alert(office)
    assert send() == [], "its chat messages are part of the escalation"
    escalate()
    assert send() == [(Status.SENT, "")] * len(KINDS)
    got = {kind: next(one for one in chat_services.requests if path in one.path) for kind, path in {
        "slack": "/services/", "teams": "/workflows/", "google_chat": "/spaces/", "telegram": "/sendMessage",
        "matrix": "/_matrix/", "webhook": "/webhook/"}.items()}  # fmt: skip
    got["ntfy"] = next(one for one in chat_services.requests if one.path == "/")
    assert len(chat_services.requests) == len(KINDS)
    assert got["slack"].path.startswith("/hooks.slack.com/services/T0001/B0001/abcdefghijklmnopqrstuvwx")
    assert "sig=s1g-n_ature" in got["teams"].path
    card = got["teams"].json["attachments"][0]["content"]["body"]
    assert "[Acknowledge](http" in card[1]["text"]
    assert set(got["google_chat"].path.partition("?")[2].split("&")) == {"key=kEy", "token=t0ken%3D"}
    assert got["telegram"].json["chat_id"] == -100200300
    assert got["ntfy"].headers["Authorization"] == "Bearer tk_secret"
    assert got["ntfy"].json["topic"] == "secret-topic"
    assert got["matrix"].method == "PUT"
    assert got["matrix"].headers["Authorization"] == "Bearer syt_secret"
    delivery = Delivery.objects.get(destination__kind="matrix")
    assert got["matrix"].path.endswith(f"/send/m.room.message/dispatch-{delivery.pk}")
    assert got["webhook"].headers["Authorization"] == "Bearer bearer-secret"
    assert got["webhook"].path == "/webhook/hook?code=hidden"
    sent = got["webhook"].json
    assert got["webhook"].headers["Idempotency-Key"] == sent["id"]
    assert sent["title"] == "Desert Air: Schedule Nightly is failing: no line"
    assert "/a/" in sent["acknowledge"]
    for one in chat_services.requests:
        assert "Nightly is failing" in json.dumps(one.json), one
        assert "/a/" in one.body.decode() or "/a/" in one.headers.get("X-Click", "")


def test_text_of_customers_is_no_mention_link_or_format(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    for kind in ("slack", "google_chat", "teams", "telegram", "matrix"):
        add(chat_services, office, dora, kind)
    with transaction.atomic():
        text = "<!channel> <users/all> <at>x</at> @room [pay](http://evil.example/x)"
        event = events.append(office.pk, "job.pending", 12, reason_text=text)
        handle_early(Event.objects.get(pk=event.pk))
    escalate()
    send()
    assert len(chat_services.requests) == 5
    for one in chat_services.requests:
        shown = json.dumps(one.json, ensure_ascii=False)
        assert not any(word in shown for word in ("<!", "<users", "<at", "&lt;!", "evil.example", "](http://e")), (
            shown
        )
    assert next(one for one in chat_services.requests if "_matrix" in one.path).json["m.mentions"] == {}


@pytest.mark.parametrize("kind", KINDS)
def test_deleted_webhook_stops_the_channel_and_says_why(
    chat_services: Answers, office: Organization, dora: User, kind: str
) -> None:
    channel = add(chat_services, office, dora, kind)
    chat_services.answer(kind, 404, b'{"errcode": "M_NOT_FOUND"}')
    raise_alert(office)
    escalate()
    ((status, error),) = send()
    assert status == Status.FAILED
    assert error.startswith(f"{AlertChannel.Kind(kind).label} answered 404: ")
    channel.refresh_from_db()
    assert channel.stopped_at
    assert channel.error == error
    assert Event.objects.filter(kind="alert_channel.stopped", subject_id=channel.pk).count() == 1
    # it is not used again, and its owner repairs it with a test
    raise_alert(office, 13)
    escalate()
    assert len(send()) == 1
    chat_services.answers.clear()
    chat_channels.send_test(channel, user=dora, actor=actor_of(dora))
    assert send()[-1] == (Status.SENT, "")
    channel.refresh_from_db()
    assert (channel.stopped_at, channel.error) == (None, "")
    raise_alert(office, 14)
    escalate()
    assert send()[-1] == (Status.SENT, "")


def test_owner_is_notified_of_a_stopped_channel_and_nobody_else(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    make.dispatcher(office, "Dan")
    channel = add(chat_services, office, dora)
    chat_services.answer("slack", 404, b"no_service")
    raise_alert(office)
    escalate()
    send()
    with transaction.atomic():
        handle(list(Event.objects.filter(kind="alert_channel.stopped")))
    (row,) = Notification.objects.filter(kind="alert_channel.stopped")
    assert row.user == dora
    assert (
        row.title == f"Channel {channel.name} gets no more messages: Slack answered 404: the webhook was deleted"
    )


def test_busy_service_is_tried_again_when_it_wants(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    add(chat_services, office, dora)
    chat_services.answer("slack", 429, Retry_After="40")
    raise_alert(office)
    escalate()
    assert send() == [(Status.WAITING, "Slack answered 429: too many messages")]
    row = Delivery.objects.get(channel=Channel.CHAT)
    assert row.next_attempt_at is not None
    assert (row.next_attempt_at - clock.now()).total_seconds() > 30
    chat_services.answers.clear()
    clock.travel(41)
    assert send() == [(Status.SENT, "")]


def test_failing_service_pauses_its_channel_and_the_message_is_given_up(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    channel = add(chat_services, office, dora)
    chat_services.answer("slack", 503)
    raise_alert(office)
    escalate()
    for _ in range(3):
        send()
        clock.travel(70)
    channel.refresh_from_db()
    assert channel.failures == 3
    assert channel.paused_until is not None
    assert channel.stopped_at is None
    for _ in range(4):
        clock.travel(1000)
        send()
    assert deliveries() == [(Status.FAILED, "Slack answered 503: the service has a problem")]


def test_redirect_is_not_followed(chat_services: Answers, office: Organization, dora: User) -> None:
    for kind in ("webhook", "matrix", "ntfy"):
        add(chat_services, office, dora, kind)
        chat_services.answer(kind, 302, Location="http://169.254.169.254/latest/meta-data/")
    raise_alert(office)
    escalate()
    assert {status for status, _ in send()} == {Status.FAILED}
    assert len(chat_services.requests) == 3
    assert all("a redirect, which is not followed" in error for _, error in deliveries())


@pytest.mark.parametrize("kind", ["webhook", "matrix", "ntfy"])
def test_name_that_resolves_to_an_internal_address_gets_nothing(
    chat_services: Answers, office: Organization, dora: User, kind: str, settings: Any
) -> None:
    """As after DNS rebinding: the name was fine when the channel was added."""
    entered = chat_services.entered(kind)
    name = "url" if kind == "webhook" else "server"
    entered[name] = entered[name].replace("127.0.0.1", "localhost")
    chat_channels.add_channel(office, dora, kind, "", entered, actor=actor_of(dora))
    settings.HTTP_ALLOWED_NETWORKS = []
    raise_alert(office)
    escalate()
    ((status, error),) = send()
    assert status == Status.FAILED
    assert "is a private or loopback address" in error
    assert chat_services.requests == []


def test_secrets_are_encrypted_and_not_logged(
    chat_services: Answers, office: Organization, dora: User, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    for kind in ("slack", "telegram", "ntfy", "webhook", "matrix"):
        add(chat_services, office, dora, kind)
        chat_services.answer(kind, 500)
    secrets = (
        "abcdefghijklmnopqrstuvwx",
        "AAE-secret_token",
        "tk_secret",
        "hidden",
        "bearer-secret",
        "syt_secret",
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT config, name, address FROM notifications_alertchannel")
        stored = str(cursor.fetchall())
    with caplog.at_level(logging.DEBUG):
        raise_alert(office)
        escalate()
        send()
    said = caplog.text + "".join(capsys.readouterr()) + str(deliveries())
    said += str(list(Event.objects.values_list("data", flat=True)))
    for secret in secrets:
        assert secret not in stored
        assert secret not in said


def test_hanging_service_holds_up_nobody_else(chat_services: Answers, office: Organization, dora: User) -> None:
    dan = make.dispatcher(office, "Dan", on_duty=True)
    other = make.organization("Other")
    olga = make.dispatcher(other, "Olga", on_duty=True)
    stuck = [add(chat_services, office, dora), add(chat_services, other, olga)]
    fine = [add(chat_services, office, dan, "telegram"), add(chat_services, other, olga, "ntfy")]
    chat_services.hanging.add("slack")
    for place in (office, other):
        raise_alert(place)
    for _ in range(3):  # people of a step are reached one after another
        escalate()
    try:
        FairThreads.start_threads()

        def fine_ones_are_sent() -> bool:
            loops.send_chat()
            sent = Delivery.objects.filter(status=Status.SENT, destination__in=fine)
            return set(sent.values_list("destination_id", flat=True)) == {row.pk for row in fine}

        wait_until(fine_ones_are_sent)
        going = Delivery.objects.filter(destination__in=stuck, status=Status.SENDING)
        assert set(going.values_list("destination_id", flat=True)) == {row.pk for row in stuck}
    finally:
        chat_services.go_on.set()
        FairThreads.stop_threads(60)


def test_hanging_service_ends_with_the_time_limit(
    chat_services: Answers, office: Organization, dora: User, settings: Any
) -> None:
    settings.ALERT_CHANNEL_TIMEOUT_S = 0.3
    add(chat_services, office, dora, "webhook")
    chat_services.hanging.add("webhook")
    raise_alert(office)
    escalate()
    assert send() == [(Status.WAITING, "Webhook did not answer within 0.3 s")]


def test_message_is_sent_again_after_a_kill_with_the_same_key(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    add(chat_services, office, dora, "webhook")
    add(chat_services, office, dora, "matrix")
    raise_alert(office)
    escalate()
    for row in chat_deliveries._first_due():  # what a process does before it is killed
        chat_deliveries._claim(row.id)
        Delivery.objects.filter(pk=row.id).update(attempts=1)
    assert {status for status, _ in send()} == {Status.SENDING}, "claimed by the dead process"
    clock.travel(125)
    assert send() == [(Status.SENT, "")] * 2
    keys = sorted(Delivery.objects.values_list("pk", flat=True).filter(channel=Channel.CHAT))
    assert {one.headers.get("Idempotency-Key", one.path.rpartition("/")[2]) for one in chat_services.requests} == {
        f"dispatch-{pk}" for pk in keys
    }


def test_acknowledged_alert_drops_what_waits(chat_services: Answers, office: Organization, dora: User) -> None:
    add(chat_services, office, dora)
    chat_services.answer("slack", 503)
    alert = raise_alert(office)
    escalate()
    send()
    acknowledge_alert(alert.pk, user=dora, actor=actor_of(dora), via="app")
    clock.travel(100)
    send()
    assert [status for status, _ in deliveries()] == [Status.DROPPED]
    assert len(chat_services.requests) == 1


def test_former_member_gets_nothing(chat_services: Answers, office: Organization, dora: User) -> None:
    add(chat_services, office, dora)
    raise_alert(office)
    escalate()
    Membership.objects.filter(user=dora).update(is_active=False, on_duty=False)
    assert [status for status, _ in send()] == [Status.DROPPED]
    assert chat_services.requests == []


def test_preferences_apply_to_chat(chat_services: Answers, office: Organization, dora: User) -> None:
    add(chat_services, office, dora)
    Preference.objects.create(organization=office, user=dora, kind="job.running_late", chat=True)
    for kind in ("job.running_late", "job.not_started"):
        with transaction.atomic():
            event = events.append(office.pk, kind, 12, technician="Ann", minutes=5)
            handle([Event.objects.get(pk=event.pk)])
    assert send() == [(Status.SENT, "")]
    assert "running late" in chat_services.requests[0].body.decode()
    Preference.objects.create(organization=office, user=dora, kind="schedule.failing", chat=False)
    dan = make.dispatcher(office, "Dan", on_duty=True)
    add(chat_services, office, dan)
    alert = raise_alert(office)
    escalate()
    send()
    (row,) = Delivery.objects.filter(notification__alert=alert, channel=Channel.CHAT)
    assert (row.notification.user, row.status) == (dan, Status.SENT)


@pytest.mark.parametrize("status", [404, 503])
@pytest.mark.parametrize("role", ["dispatcher", "admin"])
def test_broken_channel_alone_reaches_nobody(
    chat_services: Answers, office: Organization, status: int, role: str
) -> None:
    """A cycle in which no message was taken ends with the last resort."""
    add(chat_services, office, make.member(office, role, "Dora"))
    chat_services.answer("slack", status)
    alert = raise_alert(office)
    escalate()
    send()
    for _ in range(4):
        clock.travel(1000)
        loops.escalate()
        send()
    assert Event.objects.filter(kind="schedule.alert_escalated", data__is_last_resort=True).exists(), alert.cycle


def test_plugin_that_refuses_its_settings_logs_no_secret(
    chat_services: Answers, office: Organization, dora: User, capsys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    channel = add(chat_services, office, dora, "telegram")
    AlertChannel.objects.filter(pk=channel.pk).update(config={"token": "not/a/token-secret", "chat": "1"})
    raise_alert(office)
    escalate()
    assert send() == [(Status.FAILED, "The message could not be made for Telegram")]
    assert "token-secret" not in caplog.text + "".join(capsys.readouterr())


# --- The team's channels ----------------------------------------------------------------------------------------
def test_team_channel_gets_alerts_at_once_and_again(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    add(chat_services, office, None)
    other = make.organization("Other")
    raise_alert(other)
    alert = raise_alert(office)
    assert send() == [(Status.SENT, "")]
    assert f"/notifications/alerts/{alert.pk}/" in chat_services.requests[0].body.decode()
    assert "/a/" not in chat_services.requests[0].body.decode().replace("/alerts/", "")
    raise_alert(office, 12)
    assert Notification.objects.filter(alert=alert, user=None).count() == 1
    acknowledge_alert(alert.pk, user=dora, actor=actor_of(dora), via="app")
    clock.travel(1000)
    loops.escalate()  # nothing has followed
    send()
    texts = [one.body.decode() for one in chat_services.requests if f"/alerts/{alert.pk}/" in one.body.decode()]
    assert len(texts) == 2
    assert "nothing has happened since" in texts[1] or "acknowledged this" in texts[1]


def test_team_channel_for_dispatchers_gets_nothing_for_admins(
    chat_services: Answers, office: Organization
) -> None:
    channel = add(chat_services, office, None)
    AlertChannel.objects.filter(pk=channel.pk).update(scope="shown")
    with transaction.atomic():
        for kind in ("endpoint.disabled", "job.running_late", "campaign.paused"):
            event = events.append(office.pk, kind, 12, name="ERP", technician="Ann")
            handle([Event.objects.get(pk=event.pk)])
    send()
    assert ["running late" in one.body.decode() for one in chat_services.requests] == [True]


def test_removed_channel_keeps_no_secret_and_gets_nothing(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    channel = add(chat_services, office, dora)
    raise_alert(office)
    escalate()
    chat_channels.remove_channel(channel, actor=actor_of(dora))
    assert [status for status, _ in send()] == [Status.DROPPED]
    channel.refresh_from_db()
    assert (channel.config, channel.address) == ({}, "")
    assert chat_services.requests == []


def test_channels_are_limited(chat_services: Answers, office: Organization, dora: User) -> None:
    for _ in range(chat_channels.MAX_PER_PERSON):
        add(chat_services, office, dora)
    with pytest.raises(ValidationError, match="At most 5 channels"):
        add(chat_services, office, dora)
    dan = make.dispatcher(office, "Dan")
    add(chat_services, office, dan)
    add(chat_services, office, None)
