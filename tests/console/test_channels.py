"""A user's own chat channels on the settings page, and the team's in the admin."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from accounts.models import Organization, User
from notifications import loops
from notifications.channels import kinds
from notifications.models import AlertChannel, Channel, Delivery, Notification
from notifications.services import chat_channels
from tests.notifications.chat_services import SLACK_URL, Answers
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)

CHOICES = "/notifications/choices/"
INVOKE = "/workflows/a/triggers/manual/paths/invoke?sig=x"


@pytest.fixture
def office() -> Organization:
    return make.organization("Desert Air")


@pytest.fixture
def dora(office: Organization) -> User:
    return make.dispatcher(office, "Dora")


def page(browser: Client) -> str:
    answer = browser.get(CHOICES)
    assert answer.status_code == 200
    return answer.content.decode()


def test_channel_is_added_tested_and_removed(chat_services: Answers, office: Organization, dora: User) -> None:
    browser = make.browser(dora)
    assert "/notifications/channels/new/slack/" in page(browser)
    answer = browser.post("/notifications/channels/new/slack/", {"name": "Night shift", "url": SLACK_URL})
    assert answer.status_code == 302
    channel = AlertChannel.objects.get()
    assert (channel.user, channel.name, channel.config["tokens"][0]) == (dora, "Night shift", "T0001")
    assert "Sending a test message" in page(browser)
    chat_services.answer("slack", 404, b"no_service")
    loops.send_chat()
    shown = page(browser)
    assert "Slack answered 404: the webhook was deleted" in shown
    assert "abcdefghijklmnopqrst" not in shown
    chat_services.answers.clear()
    browser.post(f"/notifications/channels/{channel.pk}/test/")
    by_htmx = {"HX-Request": "true"}
    assert 'hx-trigger="every 1s"' in browser.get("/notifications/channels/", headers=by_htmx).content.decode()
    loops.send_chat()
    shown = browser.get("/notifications/channels/", headers=by_htmx).content.decode()
    assert "Works." in shown
    assert "hx-trigger" not in shown
    opened = browser.get("/notifications/channels/")  # the page with the list, not a part of it
    assert (opened.status_code, opened["Location"]) == (302, "/notifications/choices/#channels")
    assert "Test message to Night shift" in chat_services.requests[-1].body.decode()
    assert Notification.objects.filter(user=dora, read_at=None).count() == 0
    browser.post(f"/notifications/channels/{channel.pk}/remove/")
    assert "Night shift" not in page(browser).partition('id="channels"')[2]
    assert AlertChannel.objects.get().config == {}


def test_test_message_is_in_the_language_of_its_user(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    dora.language = "es"
    dora.save()
    browser = make.browser(dora)
    browser.post("/notifications/channels/new/slack/", {"name": "Noche", "url": SLACK_URL})
    loops.send_chat()
    title, body = "Mensaje de prueba para Noche", "Si puede leer esto, el canal funciona."
    sent = json.dumps(chat_services.requests[-1].json, ensure_ascii=False)
    assert f"Desert Air: {title}" in sent
    assert body in sent
    assert title in browser.get("/notifications/").content.decode()
    spanish = {"X-Organization": office.slug, "Accept-Language": "es"}
    (row,) = browser.get("/api/v1/notifications/", headers=spanish).json()["results"]
    assert (row["title"], row["body"]) == (title, body)


def test_failed_test_is_not_repeated(chat_services: Answers, office: Organization, dora: User) -> None:
    chat_services.answer("slack", 503)
    make.browser(dora).post("/notifications/channels/new/slack/", {"url": SLACK_URL})
    loops.send_chat()
    assert [row.status for row in Delivery.objects.filter(channel=Channel.CHAT)] == ["failed"]
    assert "Slack answered 503: the service has a problem" in page(make.browser(dora))


def test_test_messages_are_limited(chat_services: Answers, office: Organization, dora: User) -> None:
    browser = make.browser(dora)
    browser.post("/notifications/channels/new/slack/", {"url": SLACK_URL})
    channel = AlertChannel.objects.get()
    for _ in range(chat_channels.TEST_RATE.limit + 2):
        answer = browser.post(f"/notifications/channels/{channel.pk}/test/", follow=True)
    assert "Too many test messages" in answer.content.decode()
    assert Notification.objects.count() == chat_channels.TEST_RATE.limit


def test_error_keeps_what_was_entered_except_secrets(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    entered = {"server": "https://matrix.example.org", "token": "s3cret", "room": "#ops:example.org"}
    answer = make.browser(dora).post("/notifications/channels/new/matrix/", entered)
    assert answer.status_code == 422
    shown = answer.content.decode()
    assert "Must be the internal ID of a room" in shown
    assert 'value="https://matrix.example.org"' in shown
    assert "s3cret" not in shown


def test_nobody_reaches_the_channel_of_another_user(
    chat_services: Answers, office: Organization, dora: User
) -> None:
    make.browser(dora).post("/notifications/channels/new/slack/", {"url": SLACK_URL})
    channel = AlertChannel.objects.get()
    other_place = make.organization("Other")
    for other in (make.dispatcher(office, "Dan"), make.admin(office, "Ada"), make.admin(other_place, "Eve")):
        browser = make.browser(other)
        for action in ("test", "remove"):
            assert browser.post(f"/notifications/channels/{channel.pk}/{action}/").status_code == 404
        address = reverse("admin:notifications_alertchannel_change", args=[channel.pk])
        assert browser.get(address).status_code in (302, 403, 404)
        assert channel.name not in page(browser).partition('id="channels"')[2].partition("Add a channel")[0]
    channel.refresh_from_db()
    assert channel.removed_at is None


@pytest.mark.parametrize(
    ("kind", "entered", "field"),
    [
        ("slack", {"url": "https://hooks.slack.com.evil.example/services/T1/B1/abc"}, "url"),
        ("slack", {"url": "http://hooks.slack.com/services/T1/B1/abc"}, "url"),
        ("slack", {"url": "exec://hooks.slack.com/services/T1/B1/abc"}, "url"),
        (
            "teams",
            {"url": "https://logic.azure.com.evil.example" + INVOKE},
            "url",
        ),
        ("teams", {"url": "https://x.logic.azure.com:8443" + INVOKE}, "url"),
        ("teams", {"url": "https://u:p@x.logic.azure.com@evil.example/workflows/a?sig=x"}, "url"),
        ("teams", {"url": "https://[/workflows/a?sig=x"}, "url"),
        (
            "google_chat",
            {"url": "https://chat.googleapis.com@evil.example/v1/spaces/A/messages?key=k"},
            "url",
        ),
        ("google_chat", {"url": "https://chat.googleapis.com/v1/spaces/A/messages?key=k"}, "url"),
        ("telegram", {"token": "1/../../x", "chat": "1"}, "token"),
        ("telegram", {"token": "123456789:AAE-secret_token", "chat": "@news"}, "chat"),
        ("matrix", {"server": "http://169.254.169.254", "token": "t", "room": "!a:b"}, "server"),
        ("matrix", {"server": "https://m.example.org/x", "token": "t", "room": "!a:b"}, "server"),
        ("matrix", {"server": "https://m.example.org", "token": "t\r\nX: y", "room": "!a:b"}, "token"),
        ("matrix", {"server": "https://m.example.org", "token": "t", "room": "!a/../b"}, "room"),
        ("ntfy", {"server": "http://10.0.0.1", "topic": "a"}, "server"),
        ("ntfy", {"server": "https://ntfy.sh", "topic": "a/b"}, "topic"),
        ("ntfy", {"server": "file:///etc/passwd", "topic": "a"}, "server"),
        ("webhook", {"url": "http://[::1]/"}, "url"),
        ("webhook", {"url": "syslog://localhost"}, "url"),
        ("webhook", {"url": "https://user:pass@example.org/"}, "url"),
        ("webhook", {"url": "https://example.org:22/"}, "url"),
        ("webhook", {"url": ""}, "url"),
        ("webhook", {"url": "https://example.org/" + "a" * 3000}, "url"),
        ("exec", {"url": "exec:///bin/sh"}, "kind"),
        ("dbus", {}, "kind"),
    ],
)
def test_what_is_no_address_of_the_service_is_refused(
    kind: str, entered: dict[str, str], field: str, settings: Any
) -> None:
    settings.HTTP_ALLOWED_NETWORKS = []
    with pytest.raises(ValidationError) as refused:
        kinds.read_entered(kind, entered)
    assert set(refused.value.message_dict) == {field}


def test_kind_that_is_turned_off_cannot_be_added_or_used(
    chat_services: Answers, office: Organization, dora: User, settings: Any
) -> None:
    browser = make.browser(dora)
    browser.post("/notifications/channels/new/webhook/", chat_services.entered("webhook"))
    settings.ALERT_CHANNEL_KINDS = ["slack"]
    assert browser.get("/notifications/channels/new/webhook/").status_code == 404
    assert "/channels/new/webhook/" not in page(browser)
    loops.send_chat()
    assert Delivery.objects.get().error == "Webhook is turned off in this installation"
    assert chat_services.requests == []


# --- The team's channels in the admin ----------------------------------------------------------------------------
def test_admin_adds_tests_and_removes_a_team_channel(chat_services: Answers, office: Organization) -> None:
    browser = make.browser(make.admin(office, "Ada"))
    new = reverse("admin:notifications_alertchannel_add")
    assert "?kind=ntfy" in browser.get(new).content.decode()
    assert browser.get(f"{new}?kind=ntfy").status_code == 200
    entered = {f"entry_{name}": value for name, value in chat_services.entered("ntfy").items()}
    given = {"organization": office.pk, "name": "Desk", "scope": "alerts", "audience": "dispatchers"}
    answer = browser.post(f"{new}?kind=ntfy", {**given, **entered, "entry_topic": "no/topic"})
    assert "Must have 1 to 64 letters" in answer.content.decode()
    answer = browser.post(f"{new}?kind=ntfy", {**given, **entered})
    assert answer.status_code == 302, answer.content.decode()[-3000:]
    channel = AlertChannel.objects.get()
    assert (channel.user, channel.kind, channel.config["topic"]) == (None, "ntfy", "secret-topic")
    loops.send_chat()
    assert "Test message to Desk" in chat_services.requests[0].body.decode()
    listed = browser.get(reverse("admin:notifications_alertchannel_changelist")).content.decode()
    assert "Works" in listed
    change = reverse("admin:notifications_alertchannel_change", args=[channel.pk])
    shown = browser.get(change).content.decode()
    assert "tk_secret" not in shown
    assert "secret-topic" not in shown
    assert browser.post(change, {**given, "scope": "shown", "name": "Front desk"}).status_code == 302
    channel.refresh_from_db()
    assert (channel.name, channel.scope, channel.config["token"]) == ("Front desk", "shown", "tk_secret")
    delete = reverse("admin:notifications_alertchannel_delete", args=[channel.pk])
    assert browser.post(delete, {"post": "yes"}).status_code == 302
    channel.refresh_from_db()
    assert (channel.removed_at is not None, channel.config) == (True, {})


def test_dispatcher_cannot_change_team_channels(chat_services: Answers, office: Organization, dora: User) -> None:
    browser = make.browser(dora)
    new = reverse("admin:notifications_alertchannel_add")
    for address in (new, f"{new}?kind=slack", reverse("admin:notifications_alertchannel_changelist")):
        assert browser.get(address).status_code == 403
    given = {"organization": office.pk, "name": "Desk", "entry_url": SLACK_URL}
    assert browser.post(f"{new}?kind=slack", given).status_code == 403
    assert not AlertChannel.objects.exists()


def test_admin_adds_no_channel_to_another_organization(chat_services: Answers, office: Organization) -> None:
    other = make.organization("Other")
    browser = make.browser(make.admin(office, "Ada"))
    given = {
        "organization": other.pk,
        "name": "Spy",
        "scope": "shown",
        "audience": "admins",
        "entry_url": SLACK_URL,
    }
    browser.post(reverse("admin:notifications_alertchannel_add") + "?kind=slack", given)
    assert not AlertChannel.objects.filter(organization=other).exists()
