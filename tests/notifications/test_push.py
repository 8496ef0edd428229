"""Push notifications to browsers of dispatchers: encryption, signature, failures, retries, end of alerts."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.test import Client

from accounts.auth.sessions import end_all_sessions
from accounts.models import Membership, Organization, User
from accounts.tenancy import actor_of
from dispatch.core import clock, events
from dispatch.core.models import Event
from dispatch.core.runtime.fair_threads import FairThreads
from notifications import loops
from notifications.models import (
    Alert,
    Channel,
    Delivery,
    EscalationPolicy,
    Notification,
    Preference,
    PushKey,
    PushMessage,
    PushSubscription,
)
from notifications.services import (
    acknowledge_alert,
    handle,
    push_deliveries,
    push_keys,
    push_messages,
    push_subscriptions,
)
from notifications.services.deliveries import LEFT, PUSH, deliver_due
from notifications.services.notifications import handle_early
from tests.notifications.push_service import HOST, PushService
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Status = Delivery.Status
CHROME = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0 Safari/537.36"
)


def subscribe(
    push_service: PushService, office: Organization, owner: Any, name: str = "laptop"
) -> PushSubscription:
    browser = push_service.browser(name)
    browser.server_key = push_keys.load_keys().public
    return push_subscriptions.subscribe(office, owner, browser.subscription, agent=CHROME, actor=events.SYSTEM)


def raise_alert(office: Organization, subject_id: int = 12, **data: Any) -> Alert:
    with transaction.atomic():
        event = events.append(office.pk, "job.pending", subject_id, reason_text="no technician is free", **data)
        handle_early(Event.objects.get(pk=event.pk))
    return Alert.objects.latest("pk")


def escalate() -> None:
    clock.travel(130)
    loops.escalate()


def send() -> list[tuple[str, str]]:
    """Run the loop until nothing is due, and return (status, error) of the pushes."""
    while loops.send_push() == 0:
        pass
    return deliveries()


def deliveries() -> list[tuple[str, str]]:
    rows = Delivery.objects.filter(channel=Channel.PUSH).order_by("pk")
    return list(rows.values_list("status", "error"))


def test_alert_reaches_each_browser_encrypted_and_signed(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora, "laptop")
    subscribe(push_service, office, dora, "phone")
    alert = raise_alert(office)
    assert send() == [], "its pushes are part of the escalation"
    escalate()
    assert send() == [(Status.SENT, "")]
    assert sorted(one.browser for one in push_service.pushed) == ["laptop", "phone"]
    assert push_service.refused == []
    pushed = push_service.pushed[0]
    assert pushed.claims["aud"] == f"https://{HOST}"
    assert (pushed.headers["Urgency"], 3000 < pushed.ttl_s <= 3600) == ("high", True)
    assert len(pushed.headers["Topic"]) == 32
    assert b"technician" not in pushed.body
    payload = pushed.payload
    assert payload["title"] == "Job 12 needs a dispatcher: no technician is free"
    assert payload["body"] == "Desert Air"
    assert payload["tag"] == f"dispatch-{alert.event_id}"
    assert payload["url"] == f"/board/?job=12&in={office.slug}"
    assert [one["action"] for one in payload["actions"]] == ["acknowledge", "open"]
    assert payload["actions"][0]["url"].startswith("/a/")


def test_link_of_the_notification_acknowledges_as_its_user(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscription = subscribe(push_service, office, dora)
    alert = raise_alert(office)
    escalate()
    send()
    url = push_service.pushed[0].payload["actions"][0]["url"]
    client = Client()
    assert client.get(url).status_code == 200
    alert.refresh_from_db()
    assert alert.status == Alert.Status.OPEN, "opening it acknowledges nothing"
    client.post(url)
    alert.refresh_from_db()
    assert (alert.acknowledged_by, alert.acknowledged_via) == (dora, "link")
    push_subscriptions.remove(subscription, actor=events.SYSTEM)
    assert client.get(url).status_code == 410


def test_acknowledged_alert_closes_its_notification(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    dan = make.dispatcher(office, "Dan")
    alert = raise_alert(office)
    escalate()
    send()
    acknowledge_alert(alert.pk, user=dan, actor=actor_of(dan), via="app")
    send()
    shown, closed = push_service.pushed
    assert closed.payload["type"] == "close"
    assert closed.payload["tag"] == shown.payload["tag"]
    assert closed.payload["title"] == "Acknowledged by Dan"
    assert closed.headers["Topic"] == shown.headers["Topic"], "it replaces an alert that was not delivered yet"
    assert send() == [(Status.SENT, "")]
    assert len(push_service.pushed) == 2


def note_event(office: Organization, kind: str, **data: Any) -> None:
    with transaction.atomic():
        event = events.append(office.pk, kind, 12, actor=events.Actor("user", 1, "Dan"), note_id=5, **data)
        handle([Event.objects.get(pk=event.pk)])


def test_deleted_note_closes_its_notification(push_service: PushService, office: Organization, dora: User) -> None:
    subscribe(push_service, office, dora)
    Preference.objects.create(organization=office, user=dora, kind="job.note_written", push=True)
    note_event(office, "job.note_written", mentioned=[dora.pk])
    assert send() == [(Status.SENT, "")]
    for _ in range(2):
        note_event(office, "job.note_deleted")
        send()
    shown, closed = push_service.pushed
    assert (shown.payload["type"], closed.payload["type"]) == ("show", "close")
    assert closed.payload["tag"] == shown.payload["tag"]
    assert closed.payload["title"] == "Dan deleted the note"
    assert closed.headers["Topic"] == shown.headers["Topic"]


def test_note_deleted_before_its_push_is_sent_shows_nothing(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    Preference.objects.create(organization=office, user=dora, kind="job.note_written", push=True)
    note_event(office, "job.note_written", mentioned=[dora.pk])
    note_event(office, "job.note_deleted")
    assert send() == [(Status.DROPPED, "")]
    assert push_service.pushed == []


def test_acknowledged_alert_drops_what_waits(push_service: PushService, office: Organization, dora: User) -> None:
    subscribe(push_service, office, dora)
    alert = raise_alert(office)
    escalate()
    acknowledge_alert(alert.pk, user=dora, actor=actor_of(dora), via="app")
    assert send() == [(Status.DROPPED, "")]
    assert push_service.requests == 0


def test_browser_that_unsubscribed_is_removed_and_its_user_is_notified(
    push_service: PushService, office: Organization, dora: User
) -> None:
    make.dispatcher(office, "Dan")
    subscribe(push_service, office, dora)
    push_service.answer("laptop", 410)
    raise_alert(office)
    escalate()
    ((status, error),) = send()
    assert (status, error) == (
        Status.FAILED,
        f"{HOST} answered 410: the browser no longer takes notifications",
    )
    assert not PushSubscription.objects.exists()
    with transaction.atomic():
        handle(list(Event.objects.filter(kind="push_subscription.expired")))
    (row,) = Notification.objects.filter(kind="push_subscription.expired")
    assert row.user == dora
    assert row.title.startswith("Chrome on Windows no longer gets push notifications")


def test_one_gone_browser_does_not_fail_the_other(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora, "laptop")
    subscribe(push_service, office, dora, "phone")
    push_service.answer("laptop", 404)
    raise_alert(office)
    escalate()
    assert send() == [(Status.SENT, "")]
    assert [row.name for row in PushSubscription.objects.all()] == ["Chrome on Windows"]
    assert len(push_service.payloads("phone")) == 1


@pytest.mark.parametrize("as_date", [False, True])
def test_busy_service_is_tried_again_when_it_wants(
    push_service: PushService, office: Organization, dora: User, as_date: bool
) -> None:
    subscribe(push_service, office, dora)
    raise_alert(office)
    escalate()
    when = (clock.now() + timedelta(seconds=41)).strftime("%a, %d %b %Y %H:%M:%S GMT") if as_date else "40"
    push_service.answer("laptop", 429, Retry_After=when)
    send()
    (message,) = PushMessage.objects.all()
    assert (message.status, message.error) == ("waiting", f"{HOST} answered 429: too many messages")
    assert message.next_attempt_at is not None
    assert (message.next_attempt_at - clock.now()).total_seconds() > 30
    push_service.answers.clear()
    raise_alert(office, 13)  # another message does not go either
    escalate()
    clock.travel(-100)
    send()
    assert push_service.requests == 1
    clock.travel(145)
    assert {status for status, _ in send()} == {Status.SENT}


def test_failing_service_is_tried_again_and_given_up(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    push_service.answer("laptop", 503)
    raise_alert(office)
    escalate()
    send()
    for _ in range(12):
        clock.travel(600)
        send()
    status, error = deliveries()[0]
    assert (status, error) == (Status.FAILED, f"{HOST} answered 503: the service has a problem")
    assert push_service.requests <= 8


def test_redirect_is_not_followed(push_service: PushService, office: Organization, dora: User) -> None:
    subscribe(push_service, office, dora)
    push_service.answer("laptop", 307, Location="http://169.254.169.254/latest")
    raise_alert(office)
    escalate()
    assert send() == [(Status.FAILED, f"{HOST} answered 307: a redirect, which is not followed")]
    assert push_service.requests == 1


def test_endpoint_inside_the_network_is_not_called(
    office: Organization, dora: User, push_service: PushService, settings: Any
) -> None:
    subscribe(push_service, office, dora)
    settings.HTTP_ALLOWED_NETWORKS = []
    raise_alert(office)
    escalate()
    ((status, error),) = send()
    assert status == Status.FAILED
    assert "may not be called" in error
    assert push_service.requests == 0


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "http://push.example.com/send/x"},
        {"endpoint": "https://10.0.0.1/send/x"},
        {"endpoint": "https://user:pass@push.example.com/x"},
        {"endpoint": "https://push.example.com:22/x"},
        {"endpoint": "https://push.example.com/" + "x" * 1000},
        {"endpoint": "file:///etc/passwd"},
        {"endpoint": "https://push.example.com/\r\nX: y"},
        {"endpoint": ["https://push.example.com"]},
        {"endpoint": None},
        {"keys": None},
        {"keys": {"p256dh": "AAAA", "auth": "AAAA"}},
        {"keys": {"p256dh": "ü" * 87, "auth": "A" * 22}},
        {"keys": {"p256dh": "B" + "A" * 86, "auth": "A" * 22}},
    ],
)
def test_forged_subscription_is_refused(
    push_service: PushService, office: Organization, dora: User, change: dict[str, Any]
) -> None:
    entered = {**push_service.browser("laptop").subscription, **change}
    with pytest.raises(ValidationError):
        push_subscriptions.subscribe(office, dora, entered, agent="", actor=events.SYSTEM)
    assert not PushSubscription.objects.exists()


def test_key_is_generated_once_and_stored_encrypted(office: Organization) -> None:
    assert push_keys.load_keys().public == push_keys.load_keys().public
    row = PushKey.objects.get()
    with connection.cursor() as cursor:
        cursor.execute("SELECT private_key FROM notifications_pushkey")
        stored = cursor.fetchone()[0]
    assert row.private_key not in stored
    assert len(push_keys.from_base64url(row.private_key)) == 32


def test_key_of_the_environment_has_precedence(settings: Any) -> None:
    settings.VAPID_PRIVATE_KEY = push_keys.generate_key()
    assert push_keys.load_keys().public == push_keys.read_key(settings.VAPID_PRIVATE_KEY).public
    assert not PushKey.objects.exists()


def test_browser_of_another_key_is_removed_with_notice(
    push_service: PushService, office: Organization, dora: User, settings: Any
) -> None:
    subscribe(push_service, office, dora)
    settings.VAPID_PRIVATE_KEY = push_keys.generate_key()
    raise_alert(office)
    escalate()
    ((status, error),) = send()
    assert status == Status.FAILED
    assert "another key" in error
    assert push_service.refused
    assert Event.objects.filter(kind="push_subscription.expired").count() == 1


def test_endpoint_and_keys_are_encrypted_and_not_in_events(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    with connection.cursor() as cursor:
        cursor.execute("SELECT endpoint, keys FROM notifications_pushsubscription")
        stored = " ".join(cursor.fetchone())
    secret = push_service.browsers["laptop"].subscription
    for text in (secret["endpoint"], secret["keys"]["auth"], secret["keys"]["p256dh"]):
        assert text not in stored
        assert not any(text in json.dumps(event.data) for event in Event.objects.all())


def test_organization_may_hide_details(push_service: PushService, office: Organization, dora: User) -> None:
    EscalationPolicy.objects.create(organization=office, push_shows_details=False)
    subscribe(push_service, office, dora)
    raise_alert(office)
    escalate()
    send()
    payload = push_service.pushed[0].payload
    assert (payload["title"], payload["body"]) == ("A job needs a dispatcher", "Desert Air")


def test_preference_for_other_events_sends_at_once(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    Preference.objects.create(organization=office, user=dora, kind="job.cannot_make_it", push=True)
    make.dispatcher(office, "Dan")
    with transaction.atomic():
        handle([events.append(office.pk, "job.cannot_make_it", 12, technician="Ann", note="flat tire")])
    assert send() == [(Status.SENT, "")]
    pushed = push_service.pushed[0]
    assert pushed.payload["title"] == "Job 12: Ann can't make it"
    assert (pushed.headers["Urgency"], pushed.payload["actions"]) == ("normal", [])


def test_push_turned_off_for_alerts_is_not_used(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    Preference.objects.create(organization=office, user=dora, kind="job.pending", push=False)
    dan = make.dispatcher(office, "Dan", on_duty=True)
    User.objects.filter(pk=dan.pk).update(phone=make.phone())
    dan.refresh_from_db()
    make.confirm_phone(office, dan)
    raise_alert(office)
    escalate()
    assert send() == []


def test_browser_alone_that_fails_reaches_nobody(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    push_service.answer("laptop", 410)
    raise_alert(office)
    for _ in range(12):
        escalate()
        send()
    assert Event.objects.filter(kind="job.alert_escalated", data__is_last_resort=True).exists()
    assert Delivery.objects.filter(channel=Channel.EMAIL).exists()


def test_former_member_gets_nothing(push_service: PushService, office: Organization, dora: User) -> None:
    subscribe(push_service, office, dora)
    raise_alert(office)
    escalate()
    deliver_due(*PUSH)  # the message waits in the queue of her browser
    Membership.objects.filter(user=dora).update(is_active=False)
    send()
    assert push_service.requests == 0
    assert PushMessage.objects.get().status == "dropped"
    assert deliveries() == [("dropped", LEFT)]


def test_end_of_all_sessions_ends_push_until_it_is_turned_on_again(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    raise_alert(office)
    escalate()
    end_all_sessions(dora, actor=events.SYSTEM)
    send()
    assert push_service.requests == 0
    assert push_subscriptions.states_of(office.pk, dora) == []
    clock.travel(1)
    subscribe(push_service, office, dora)
    raise_alert(office, 13)
    escalate()
    send()
    assert any("Job 13" in one["title"] for one in push_service.payloads("laptop"))


def test_kill_between_sending_and_recording_sends_again_under_the_same_tag(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    raise_alert(office)
    escalate()
    send()
    PushMessage.objects.update(status="sending", next_attempt_at=clock.now(), ended_at=None)
    assert send() == [(Status.SENT, "")]
    first, second = push_service.pushed
    assert first.payload["tag"] == second.payload["tag"]


def test_hanging_service_holds_up_nobody_else(push_service: PushService, office: Organization, dora: User) -> None:
    other = make.organization("Other")
    dana = make.dispatcher(other, "Dana", on_duty=True)
    push_service.hanging.add("laptop")
    subscribe(push_service, office, dora, "laptop")
    subscribe(push_service, other, dana, "phone")
    FairThreads.start_threads()
    try:
        raise_alert(office)
        raise_alert(other)
        escalate()
        wait_until(lambda: loops.send_push() is not None and push_service.payloads("phone"))
        assert push_service.payloads("laptop") == []
        assert push_deliveries.busy_subscriptions()
    finally:
        push_service.go_on.set()
        FairThreads.stop_threads(10)


def test_number_of_browsers_is_limited(push_service: PushService, office: Organization, dora: User) -> None:
    for number in range(push_subscriptions.MAX_PER_PERSON):
        subscribe(push_service, office, dora, f"browser-{number}")
    subscribe(push_service, office, dora, "browser-0")  # the same again
    with pytest.raises(ValidationError, match="At most 10"):
        subscribe(push_service, office, dora, "one-more")


def test_colleague_who_turns_it_on_in_the_same_browser_takes_it_over(
    push_service: PushService, office: Organization, dora: User
) -> None:
    dan = make.dispatcher(office, "Dan")
    subscribe(push_service, office, dora)
    subscribe(push_service, office, dan)
    assert [row.user for row in PushSubscription.objects.all()] == [dan]


def test_browser_of_another_organization_is_untouched(
    push_service: PushService, office: Organization, dora: User
) -> None:
    other = make.organization("Other")
    subscribe(push_service, office, dora)
    subscribe(push_service, other, make.dispatcher(other, "Mallory"))
    assert PushSubscription.objects.count() == 2


def test_long_text_of_any_alphabet_fits_into_a_message(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    raise_alert(office)
    Notification.objects.update(title="緊" * 160, body="€😀" * 250)
    Alert.objects.update(title="緊" * 160, body="€😀" * 250)
    escalate()
    assert send() == [(Status.SENT, "")]
    assert len(push_service.pushed[0].body) <= 4096


def test_test_notification_is_sent_and_limited(
    push_service: PushService, office: Organization, dora: User
) -> None:
    row = subscribe(push_service, office, dora)
    for _ in range(push_subscriptions.TEST_RATE.limit):
        push_subscriptions.send_test(row, actor=actor_of(dora))
    with pytest.raises(push_subscriptions.TestRefused):
        push_subscriptions.send_test(row, actor=actor_of(dora))
    send()
    assert push_service.pushed[0].payload["title"] == "Test notification"
    (state,) = push_subscriptions.states_of(office.pk, dora)
    assert (state.is_testing, state.error, state.subscription.tried_at is not None) == (False, "", True)


def test_settings_say_that_a_test_was_not_sent_in_time(
    push_service: PushService, office: Organization, dora: User
) -> None:
    row = subscribe(push_service, office, dora)
    push_subscriptions.send_test(row, actor=actor_of(dora))
    clock.travel(push_messages.TEST_LIFETIME.total_seconds() + 1)
    send()
    assert push_service.pushed == []
    page = make.browser(dora).get("/notifications/choices/").content.decode()
    assert "The latest notification failed: It was not sent in time." in " ".join(page.split())
    row.refresh_from_db()
    assert row.failures == 0
    push_subscriptions.send_test(row, actor=actor_of(dora))
    send()
    page = make.browser(dora).get("/notifications/choices/").content.decode()
    assert "not sent in time" not in page
    assert "Works." in page


def test_alert_that_returns_is_shown_again(push_service: PushService, office: Organization, dora: User) -> None:
    subscribe(push_service, office, dora)
    alert = raise_alert(office)
    escalate()
    send()
    acknowledge_alert(alert.pk, user=dora, actor=actor_of(dora), via="app")
    send()
    alert.refresh_from_db()
    assert alert.returns_at is not None
    clock.travel((alert.returns_at - clock.now()).total_seconds() + 1)
    loops.escalate()
    escalate()
    send()
    assert [one["type"] for one in push_service.payloads("laptop")] == ["show", "close", "show"]
