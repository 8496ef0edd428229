"""Attacks on push notifications: other tenants, poison, hostile push services, forged renewals, leavers."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client

from accounts import services as accounts
from accounts.auth.sessions import end_all_sessions
from accounts.models import Membership, Organization, User
from dispatch.console import health
from dispatch.core import clock, events
from dispatch.core.models import Event
from notifications import checks, loops, metrics
from notifications.models import Channel, Delivery, PushMessage, PushSubscription
from notifications.services import (
    push_deliveries,
    push_health,
    push_keys,
    push_messages,
    push_renewal,
    push_subscriptions,
)
from tests.notifications.push_service import HOST, PushService
from tests.notifications.test_push import CHROME, escalate, raise_alert, send
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)

PUSH = "/notifications/push/"


def subscribe(
    push_service: PushService, office: Organization, owner: Any, name: str = "laptop"
) -> PushSubscription:
    entered = push_service.browser(name).subscription
    return push_subscriptions.subscribe(office, owner, entered, agent=CHROME, actor=events.SYSTEM)


def post(client: Any, body: bytes, path: str = PUSH) -> Any:
    return client.post(path, body, content_type="application/json")


def test_browsers_of_ended_sessions_do_not_count(
    push_service: PushService, office: Organization, dora: User
) -> None:
    for number in range(push_subscriptions.MAX_PER_PERSON):
        subscribe(push_service, office, dora, f"browser-{number}")
    end_all_sessions(dora, actor=events.SYSTEM)
    clock.travel(1)
    row = subscribe(push_service, office, dora, "new")
    assert list(push_subscriptions.subscriptions_of(office.pk, dora)) == [row]


def test_new_password_ends_push_in_the_browsers_of_before(
    push_service: PushService, office: Organization, dora: User
) -> None:
    """A thief's browser would get links that acknowledge alerts as her, and could renew itself."""
    subscribe(push_service, office, dora, "thief")
    dora.set_password("a new one for tests")
    dora.save()
    raise_alert(office)
    escalate()
    send()
    assert push_service.requests == 0
    assert not push_subscriptions.subscriptions_of(office.pk, dora).exists()
    assert renew(push_service, "thief", "renewed").status_code == 404


def test_returning_member_turns_push_on_again(push_service: PushService, office: Organization, dora: User) -> None:
    subscribe(push_service, office, dora)
    membership = Membership.objects.get(user=dora)
    accounts.change_member(membership.pk, actor=events.SYSTEM, is_active=False)
    accounts.change_member(membership.pk, actor=events.SYSTEM, is_active=True)
    raise_alert(office)
    escalate()
    send()
    assert push_service.requests == 0
    assert not PushSubscription.objects.exists()


def test_subscribing_again_ends_the_pause_of_a_failing_browser(
    push_service: PushService, office: Organization, dora: User
) -> None:
    row = subscribe(push_service, office, dora)
    PushSubscription.objects.filter(pk=row.pk).update(
        failures=5, error="failed", paused_until=clock.now() + timedelta(days=1000)
    )
    subscribe(push_service, office, dora)
    raise_alert(office)
    escalate()
    assert send() == [(Delivery.Status.SENT, "")]


@pytest.mark.parametrize(
    "body",
    [
        b'{"do": "off", "browser": "\\ud800"}',
        b'{"do": "test", "browser": "\\udfff"}',
        b'{"do": "on", "subscription": {"endpoint": "https://push.example.com/\\ud800", "keys": {}}}',
        b'{"do": "on", "subscription": {"endpoint": "https://[::1/x", "keys": {}}}',
        b'{"do": "on", "subscription": {"endpoint": "https://\\u0661.example/x", "keys": {}}}',
        b'{"do": "on", "subscription": {"endpoint": "https://push.example.com/x", "keys": []}}',
        b'{"do": "on", "subscription": {"endpoint": "https://push.example.com/x", "keys": {"p256dh": {"a": 1}}}}',
        b'{"do": "on", "subscription": {"endpoint": "https://push.example.com:99999/x", "keys": {}}}',
        b'{"do": "off", "browser": {"a": ["b"]}}',
        b'{"do": "off", "browser": 1e999}',
        b'{"do": ["on"]}',
    ],
)
def test_poisoned_body_is_refused_or_ignored(dora: User, body: bytes) -> None:
    assert post(make.browser(dora), body).status_code in (200, 400, 422, 429)
    assert not PushSubscription.objects.exists()


@pytest.mark.parametrize("point", ["identity", "compressed", "off the curve"])
def test_keys_that_are_no_points_are_refused(
    push_service: PushService, office: Organization, dora: User, point: str
) -> None:
    entered = push_service.browser("laptop").subscription
    raw = {
        "identity": b"\0" * 65,
        "compressed": b"\2" + push_service.browsers["laptop"].point[1:33],
        "off the curve": b"\4" + b"\1" * 64,
    }[point]
    entered["keys"]["p256dh"] = push_keys.to_base64url(raw)
    with pytest.raises(ValidationError):
        push_subscriptions.subscribe(office, dora, entered, agent="", actor=events.SYSTEM)


def test_poisoned_browser_in_the_database_fails_alone(
    push_service: PushService, office: Organization, dora: User
) -> None:
    bad = subscribe(push_service, office, dora, "bad")
    subscribe(push_service, office, dora, "good")
    bad.keys = {"p256dh": "AAAA", "auth": "A"}
    bad.save()
    raise_alert(office)
    escalate()
    assert send() == [(Delivery.Status.SENT, "")]
    assert len(push_service.payloads("good")) == 1
    bad.refresh_from_db()
    assert bad.error == "The notification could not be sent"


def test_too_long_message_fails_without_losing_the_browser(
    push_service: PushService, office: Organization, dora: User
) -> None:
    row = subscribe(push_service, office, dora)
    push_service.answer("laptop", 413)
    raise_alert(office)
    escalate()
    assert send() == [(Delivery.Status.FAILED, f"{HOST} answered 413: the message is too long")]
    row.refresh_from_db()
    assert (row.failures, row.paused_until) == (1, None)


@pytest.mark.parametrize("given", ["-5", "9" * 30, "1e9", "\u00b2", "Thu, 01 Jan 1970 00:00:00 GMT", "soon", ""])
def test_hostile_retry_after_is_bounded(
    push_service: PushService, office: Organization, dora: User, given: str
) -> None:
    subscribe(push_service, office, dora)
    push_service.answer("laptop", 429, Retry_After=given)
    raise_alert(office)
    escalate()
    send()
    message = PushMessage.objects.get()
    assert message.next_attempt_at is not None
    assert 0 < (message.next_attempt_at - clock.now()).total_seconds() <= 901


def test_logs_have_neither_endpoint_nor_keys(
    push_service: PushService, office: Organization, dora: User, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    subscribe(push_service, office, dora, "secret-endpoint")
    for status in (500, 403, 410):
        push_service.answer("secret-endpoint", status)
        raise_alert(office, status)
        escalate()
        send()
    bad = subscribe(push_service, office, dora, "secret-other")
    push_service.requests = 0
    monkeypatch.setattr("notifications.channels.push.encrypt", lambda *args: 1 / 0)
    raise_alert(office, 7)
    escalate()
    send()
    stored = json.dumps([event.data for event in Event.objects.all()])
    for model in (PushMessage, Delivery):
        stored += str(list(model.objects.values_list("error")))
    secret = push_service.browsers["secret-other"].subscription["keys"]
    for text in ("secret-endpoint", "secret-other", secret["auth"], secret["p256dh"]):
        assert text not in caplog.text
        assert text not in stored
    assert "push_send_failed" in caplog.text
    assert PushSubscription.objects.filter(pk=bad.pk).exists()


def test_thousands_of_browsers_of_one_person_delay_nobody_else(
    push_service: PushService, office: Organization, dora: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make.organization("Other")
    dana = make.dispatcher(other, "Dana", on_duty=True)
    first = subscribe(push_service, office, dora)
    PushSubscription.objects.bulk_create(
        PushSubscription(
            organization=office, user=dora, name="Browser", host=HOST, endpoint=first.endpoint,
            endpoint_hash=f"{number:064d}", keys=first.keys, server_key=first.server_key,
        )
        for number in range(2000)
    )  # fmt: skip
    subscribe(push_service, other, dana, "phone")
    raise_alert(office)
    raise_alert(other)
    escalate()
    monkeypatch.setattr(push_deliveries, "BATCH", 10)
    loops.send_push()
    assert "phone" in [pushed.browser for pushed in push_service.pushed[:2]]


def test_browser_of_another_organization_is_neither_listed_nor_used(
    push_service: PushService, office: Organization, dora: User
) -> None:
    other = make.organization("Other")
    Membership.objects.create(organization=other, user=dora, role="dispatcher", joined_at=clock.now())
    subscribe(push_service, other, dora)
    raise_alert(office)
    escalate()
    send()
    assert not Delivery.objects.filter(organization=office, channel=Channel.PUSH, status="sent").exists()
    assert push_service.requests == 0


def test_technician_s_browser_gets_nothing_of_another_technician(
    push_service: PushService, office: Organization
) -> None:
    ann, bob = make.technician(office, "Ann"), make.technician(office, "Bob")
    subscribe(push_service, office, ann, "phone")
    push_messages.write_for_technician(bob.pk, PushMessage.Purpose.JOB, 1, 0, clock.now() + timedelta(days=1000))
    assert not PushMessage.objects.exists()


# --- Renewal -----------------------------------------------------------------------------------------------------
RENEW = "/notifications/push/renew/"


def renew(push_service: PushService, old: str, new: str, **change: Any) -> Any:
    """Ask for a renewal as the service worker does, without a session."""
    before = {**push_service.browsers[old].subscription, **change}
    body = json.dumps({"before": before, "subscription": push_service.browser(new).subscription})
    return post(Client(enforce_csrf_checks=True), body.encode(), RENEW)


def test_renewal_replaces_the_browser_in_each_organization(
    push_service: PushService, office: Organization, dora: User
) -> None:
    other = make.organization("Other")
    ann = make.technician(other, "Ann")
    subscribe(push_service, office, dora)
    shared = push_service.browsers["laptop"].subscription
    push_subscriptions.subscribe(other, ann, shared, agent=CHROME, actor=events.SYSTEM)
    raise_alert(office)
    answer = renew(push_service, "laptop", "renewed")
    assert (answer.status_code, answer.json()) == (200, {"renewed": 2})
    escalate()
    send()
    assert len(push_service.payloads("renewed")) == 1
    assert {row.user or row.technician for row in PushSubscription.objects.all()} == {dora, ann}
    renewed = Event.objects.filter(kind="push_subscription.renewed")
    assert sorted(event.actor_type for event in renewed) == ["technician", "user"]
    assert "renewed" not in json.dumps([event.data for event in renewed])


def test_renewal_whose_answer_was_lost_may_come_again(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    body = {
        "before": push_service.browsers["laptop"].subscription,
        "subscription": push_service.browser("b").subscription,
    }
    for _ in range(2):
        answer = post(Client(), json.dumps(body).encode(), RENEW)
        assert (answer.status_code, answer.json()) == (200, {"renewed": 1})
    assert PushSubscription.objects.count() == 1


def test_renewal_needs_the_secret_of_the_browser(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    other = push_service.browser("other").subscription["keys"]
    forged: list[dict[str, Any]] = [{"keys": other}, {"keys": {}}, {"keys": None}, {"keys": {"auth": "ü"}}]
    for change in (*forged, {"endpoint": None}, {"endpoint": "\ud800"}):
        assert renew(push_service, "laptop", "thief", **change).status_code == 404
    assert PushSubscription.objects.get().endpoint.endswith("/laptop")


def test_guesses_at_renewals_are_limited(push_service: PushService, settings: Any) -> None:
    settings.LINK_GUESS_RATE = "3/min"
    push_service.browser("laptop")
    found = [renew(push_service, "laptop", "thief").status_code for _ in range(5)]
    assert found == [404, 404, 404, 429, 429]


def test_renewals_of_a_browser_are_limited(push_service: PushService, office: Organization, dora: User) -> None:
    subscribe(push_service, office, dora, "browser-0")
    most = push_renewal.RATE.limit
    found = [renew(push_service, f"browser-{n}", f"browser-{n + 1}").status_code for n in range(most + 1)]
    assert found == [200] * most + [429]


def test_renewal_does_not_outlive_the_end_of_all_sessions(
    push_service: PushService, office: Organization, dora: User
) -> None:
    subscribe(push_service, office, dora)
    end_all_sessions(dora, actor=events.SYSTEM)
    assert renew(push_service, "laptop", "renewed").status_code == 404
    subscribe(push_service, office, dora, "laptop")
    office.is_active = False
    office.save()
    assert renew(push_service, "laptop", "renewed").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"x" * 5000, b"[" * 3000, b'{"before": 1, "subscription": {}}', b"\xff",
        b'{"before": {"endpoint": "\\ud800", "keys": {"auth": "\\ud800"}}, "subscription": {"endpoint": "http://x"}}',
        b'{"before": {}, "subscription": {"endpoint": "https://10.0.0.1/x", "keys": {}}}',
    ],
)  # fmt: skip
def test_poisoned_renewal_is_refused(client: Client, body: bytes) -> None:
    assert post(client, body, RENEW).status_code in (400, 422)


# --- State -------------------------------------------------------------------------------------------------------
def test_state_says_whether_push_works(
    push_service: PushService, office: Organization, dora: User, settings: Any
) -> None:
    settings.PUBLIC_BASE_URL = "https://dispatch.example.com"
    state = push_health.read_state
    assert state(office.pk).name == push_health.UNUSED
    subscribe(push_service, office, dora)
    assert (state(office.pk).name, push_health.find_fault(office.pk)) == (push_health.WORKING, "")
    push_service.answer("laptop", 403)
    for number in (1, 2):
        raise_alert(office, number)
        escalate()
        send()
    assert push_health.find_fault(office.pk) == "Push notifications fail: no browser gets them."
    health.reset()
    assert "Push notifications fail" in make.browser(dora).get("/health/").content.decode()
    (((), failing),) = metrics.push_failing()
    assert failing == 1
    settings.PUBLIC_BASE_URL = "http://dispatch.example.com"
    assert state(office.pk).name == push_health.NOT_CONFIGURED


def test_unreadable_key_is_reported(office: Organization) -> None:
    push_keys.load_keys()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE notifications_pushkey SET private_key = 'fernet:nonsense'")
    assert push_health.read_state(office.pk).problem == push_health.NO_KEY
    assert [problem.id for problem in checks.stored_push_key(None, databases=["default"])] == ["dispatch.E076"]


def test_admin_lists_browsers_without_secrets_and_removes_them(
    push_service: PushService, office: Organization, dora: User
) -> None:
    alma = make.admin(office, "Alma")
    row = subscribe(push_service, office, dora)
    push_service.answer("laptop", 403)
    raise_alert(office)
    escalate()
    send()
    client = make.browser(alma)
    for path in ("", f"{row.pk}/change/"):
        page = client.get(f"/admin/notifications/pushsubscription/{path}").content.decode()
        assert "Dora" in page
        assert "answered 403" in page
        secret = push_service.browsers["laptop"].subscription
        for text in (secret["endpoint"], secret["keys"]["auth"], secret["keys"]["p256dh"], row.endpoint_hash):
            assert text not in page
    assert client.get("/admin/notifications/pushsubscription/add/").status_code == 403
    client.post(f"/admin/notifications/pushsubscription/{row.pk}/delete/", {"post": "yes"})
    assert not PushSubscription.objects.exists()
    assert Event.objects.get(kind="push_subscription.removed").actor_id == alma.pk
    assert make.browser(dora).get("/admin/notifications/pushsubscription/").status_code == 403
