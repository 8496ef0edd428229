"""The outbox in the admin, as an Admin and a Dispatcher use it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from dispatch.core import clock
from dispatch.core.http import webhook_signing as signing
from dispatch.core.models import Event
from dispatch.outbox.models import Attempt, Endpoint, Message, MessageGroup, QuarantinedPointer, Target
from dispatch.outbox.services import endpoints
from tests.harness.outbox import World
from tests.support import factories
from tests.support.certificates import Authority
from tests.support.factories import browser

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def organization(world: World) -> Any:
    return world.organization


@pytest.fixture
def admin(organization: Any) -> Client:
    return browser(factories.admin(organization))


@pytest.fixture
def dispatcher(organization: Any) -> Client:
    return browser(factories.dispatcher(organization))


def page(model: str, *args: Any) -> str:
    return reverse(f"admin:outbox_{model}_{'change' if args else 'changelist'}", args=args)


def press(client: Client, model: str, name: str, row: Any, **fields: Any) -> Any:
    """Confirm the dialog of a detail action."""
    at = reverse(f"admin:outbox_{model}_{name}", args=[row.pk])
    assert client.get(at, headers={"HX-Request": "true"}).status_code == 200
    return client.post(at, {"_form_submitted": "True", **fields})


def run(client: Client, model: str, name: str, *rows: Any, everywhere: bool = False, query: str = "") -> str:
    """Run an action on the selected rows, or on all that match the filter; return the message shown."""
    sent = {
        "action": name,
        "confirmed": "1",
        "_selected_action": [row.pk for row in rows],
        "select_across": str(int(everywhere)),
    }
    answer = client.post(page(model) + query, sent, follow=True)
    assert answer.status_code == 200
    return " ".join(str(message) for message in answer.context["messages"])


def fields(**changed: Any) -> dict[str, Any]:
    return {
        "name": "ERP", "url": "https://erp.example/hook", "event_types": ["job.*", "lead.finished"],
        "new_headers": "",
        "mode": "BLOCK_ON_ERROR", "pool": "", "timeout_s": "15", "retry_schedule_s": "5,30", "retry_jitter": "0.2",
        "permanent_codes": "400,401", "expire_after_s": "", **changed,
    }  # fmt: skip


def test_an_endpoint_is_added_with_a_secret_that_is_shown_once(admin: Client, organization: Any) -> None:
    given = fields(organization=organization.pk, new_headers="Authorization: Bearer open sesame\r\n")
    answer = admin.post(reverse("admin:outbox_endpoint_add"), given)
    assert answer.status_code == 200, "the page that shows the secret"
    assert "no-store" in answer["Cache-Control"]
    row = Endpoint.objects.get()
    signing.check_secret(row.secret)
    assert row.secret in answer.content.decode()
    assert (row.event_types, row.headers, row.pool.code) == (
        ["job.*", "lead.finished"],
        {"Authorization": "Bearer open sesame"},
        "DISPATCH-POOL",
    )
    for at in (page("endpoint"), page("endpoint", row.pk)):
        shown = admin.get(at).content.decode()
        assert row.secret not in shown
        assert "open sesame" not in shown
    assert "Authorization" in shown
    assert Event.objects.filter(kind="endpoint.added").count() == 1


def test_credentials_are_entered_and_never_shown(
    admin: Client, organization: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("ERP")
    given = {
        "oauth_token_url": "https://tokens.example/", "oauth_client_id": "dispatch", "new_client_secret": "s3cret",
        "client_certificate": certificate.replace("\n", "\r\n"), "new_client_key": key,
    }  # fmt: skip
    add = reverse("admin:outbox_endpoint_add")
    refused = admin.post(add, fields(organization=organization.pk, **{**given, "new_client_key": ""}))
    assert list(refused.context["adminform"].form.errors) == ["new_client_key"]
    assert (
        "won&#x27;t be shown again"
        in admin.post(add, fields(organization=organization.pk, **given)).content.decode()
    )
    row = Endpoint.objects.get()
    assert (row.oauth_client_secret, row.client_key) == ("s3cret", key)
    assert row.client_certificate_until is not None
    shown = admin.get(page("endpoint", row.pk)).content.decode()
    assert "s3cret" not in shown
    assert "PRIVATE KEY" not in shown
    # Saving the page without a change keeps everything, although browsers send other line breaks.
    kept = {**given, "new_client_secret": "", "new_client_key": "", "oauth_client_auth": "body"}
    answer = admin.post(page("endpoint", row.pk), fields(pool=row.pool_id, **kept))
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    row.refresh_from_db()
    assert (row.oauth_client_secret, row.client_key, row.oauth_client_auth) == ("s3cret", key, "body")
    # Removing the certificate and the token URL removes the credentials.
    gone = dict.fromkeys(given, "")
    assert admin.post(page("endpoint", row.pk), fields(pool=row.pool_id, **gone)).status_code == 302
    row.refresh_from_db()
    assert (row.oauth_client_secret, row.client_key, row.client_certificate_until) == ("", "", None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("url", "http://169.254.169.254/"), ("url", "ftp://x.example/"),
     ("event_types", ["job.assigned", "nonsense"]),
     ("new_headers", "Host: x"), ("new_headers", "no colon"), ("new_headers", '{"A": 1}'), ("new_headers", "A:"),
     ("new_headers", "A: 1\na: 2"), ("timeout_s", "99"),
     ("permanent_codes", "400,429"), ("retry_jitter", "2")],
)  # fmt: skip
def test_invalid_settings_are_rejected_at_their_field(
    admin: Client, organization: Any, field: str, value: str
) -> None:
    answer = admin.post(
        reverse("admin:outbox_endpoint_add"), fields(organization=organization.pk, **{field: value})
    )
    assert answer.status_code == 200
    assert field in answer.context["adminform"].form.errors
    assert not Endpoint.objects.exists()


def test_an_endpoint_is_changed_and_keeps_the_headers_that_are_not_given(admin: Client, world: World) -> None:
    row = world.endpoint(headers={"X-Key": "1"})
    before = row.secret
    answer = admin.post(page("endpoint", row.pk), fields(name="New name", pool=row.pool_id))
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    row.refresh_from_db()
    assert (row.name, row.headers, row.secret) == ("New name", {"X-Key": "1"}, before)
    both = {"new_headers": "X-Key: 2\nAccept: text/html; q=0.5, */*", "remove_headers": "on"}
    refused = admin.post(page("endpoint", row.pk), fields(name="New name", pool=row.pool_id, **both))
    assert refused.context["adminform"].form.errors["remove_headers"] == [
        "Enter new headers or remove all, not both."
    ]
    del both["remove_headers"]
    admin.post(page("endpoint", row.pk), fields(name="New name", pool=row.pool_id, **both))
    row.refresh_from_db()
    assert row.headers == {"X-Key": "2", "Accept": "text/html; q=0.5, */*"}
    admin.post(page("endpoint", row.pk), fields(name="New name", pool=row.pool_id, remove_headers="on"))
    row.refresh_from_db()
    assert row.headers == {}
    assert "Remove all headers" not in admin.get(page("endpoint", row.pk)).content.decode()
    assert "headers" in Event.objects.filter(kind="endpoint.changed").latest("id").data["fields"]


def test_the_secret_is_replaced_and_shown_in_the_answer_alone(admin: Client, world: World) -> None:
    row = world.endpoint()
    before = row.secret
    answer = press(admin, "endpoint", "rotate_secret", row, overlap_h="2")
    row.refresh_from_db()
    assert row.secret in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    assert (row.previous_secret, row.secret != before) == (before, True)
    press(admin, "endpoint", "rotate_secret", row, overlap_h="0")
    row.refresh_from_db()
    assert row.previous_secret == ""


def test_each_endpoint_is_listed_under_the_health_that_its_badge_shows(dispatcher: Client, world: World) -> None:
    now = clock.now()
    in_a_while = now + timedelta(minutes=5)
    conditions: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        ({}, None), ({}, {}), ({}, {"failures": 2, "failing_since": now}), ({}, {"failing_since": now}),
        ({}, {"failures": 9, "open_until": in_a_while}), ({}, {"failures": 9, "open_until": now}),
        ({}, {"deferring_since": now}), ({"is_paused": True}, {"failing_since": now}),
        ({"disabled_at": now}, {"failures": 9, "failing_since": now}),
        ({"disabled_at": now, "is_paused": True}, {}),
    ]  # fmt: skip
    for number, (settings, failures) in enumerate(conditions):
        row = world.endpoint(f"ERP {number}", **settings)
        if failures is not None:
            Target.objects.create(organization=world.organization, endpoint=row, **failures)
    listed = [
        (row.pk, name)
        for name in ("ok", "failing", "paused", "off")
        for row in dispatcher.get(page("endpoint") + f"?health={name}").context["cl"].queryset
    ]
    names = {"healthy": "ok", "paused": "paused", "disabled": "off"}
    badges = [
        (row.pk, names.get(endpoints.health_of(row).state, "failing"))
        for row in Endpoint.objects.select_related("target")
    ]
    assert sorted(listed) == sorted(badges)


def test_a_dispatcher_pauses_and_tries_out_but_does_not_set_up(dispatcher: Client, world: World) -> None:
    row = world.endpoint()
    press(dispatcher, "endpoint", "pause_this", row, reason="maintenance tonight")
    shown = dispatcher.get(page("endpoint", row.pk)).content.decode()
    assert "maintenance tonight" in shown
    press(dispatcher, "endpoint", "resume_this", row)
    press(dispatcher, "endpoint", "resume_this", row)
    said = LogEntry.objects.filter(object_id=str(row.pk)).order_by("pk").values_list("change_message", flat=True)
    assert list(said) == ["Paused.", "Resumed."]
    press(dispatcher, "endpoint", "test", row)
    assert Message.objects.get().type == "endpoint.test"
    assert dispatcher.get(reverse("admin:outbox_endpoint_add")).status_code == 403
    for name in ("rotate_secret", "disable", "enable"):
        at = reverse(f"admin:outbox_endpoint_{name}", args=[row.pk])
        assert dispatcher.post(at, {"_form_submitted": "True"}).status_code == 403
    dispatcher.post(page("endpoint", row.pk), fields(name="Mine"))
    assert Endpoint.objects.get().name == row.name
    assert "1 paused" in run(dispatcher, "endpoint", "pause", row)
    assert "1 resumed" in run(dispatcher, "endpoint", "resume", row)


def test_disabled_endpoint_is_enabled_again(admin: Client, world: World) -> None:
    row = world.endpoint()
    Target.objects.create(organization=row.organization, endpoint=row, failures=9, last_error="It answered 500.")
    assert "It answered 500." in admin.get(page("endpoint", row.pk)).content.decode()
    press(admin, "endpoint", "disable", row, reason="moved away")
    assert "moved away" in admin.get(page("endpoint", row.pk)).content.decode()
    assert row.name in admin.get(page("endpoint") + "?health=off").content.decode()
    press(admin, "endpoint", "enable", row)
    assert endpoints.health_of(Endpoint.objects.get()).state == "healthy"


def test_endpoint_with_messages_cannot_be_deleted(admin: Client, world: World) -> None:
    row, unused = world.endpoint(), world.endpoint("unused")
    world.send_one(row, "a")
    for endpoint in (row, unused):
        at = reverse("admin:outbox_endpoint_delete", args=[endpoint.pk])
        answer = admin.post(at, {"post": "yes"}, follow=True)
        told = " ".join(str(message) for message in answer.context["messages"])
        assert ("Disable it instead" in told) == (endpoint == row)
    assert [endpoint.name for endpoint in Endpoint.objects.all()] == [row.name]


class TestMessages:
    @pytest.fixture
    def failed(self, world: World) -> list[Message]:
        """Create three messages of one group: the first in ERROR after one attempt, the others held by it."""
        endpoint = world.endpoint(permanent_codes=[400])
        world.receiver.answer("a", 400, "no such <order>")
        ids = world.send(endpoint, "a", "b", "c", group="order:7")
        world.start()
        world.becomes(ids[0], "ERROR")
        world.stop()
        return [world.message(message_id) for message_id in ids]

    def test_page_shows_attempts_and_why_the_message_waits(
        self, dispatcher: Client, failed: list[Message]
    ) -> None:
        shown = dispatcher.get(page("message", failed[0].pk)).content.decode()
        assert "no such &lt;order&gt;" in shown, "the receiver's words, escaped"
        assert Attempt.objects.get().url in shown
        assert "Failed after one attempt: The receiver answered 400." in shown
        held = dispatcher.get(page("message", failed[1].pk)).content.decode()
        assert f"blocked by the error of message {failed[0].pk}" in held
        assert "&quot;name&quot;: &quot;b&quot;" in held, "the payload"

    def test_filters_find_messages_that_need_attention(self, dispatcher: Client, failed: list[Message]) -> None:
        blocking = dispatcher.get(page("message") + "?needs=blocking").context["cl"].queryset
        assert [row.pk for row in blocking] == [failed[0].pk]
        waiting = dispatcher.get(page("message") + "?needs=open").context["cl"].queryset
        assert {row.pk for row in waiting} == {failed[1].pk, failed[2].pk}
        found = dispatcher.get(page("message") + "?q=order:7").context["cl"].queryset
        assert len(found) == 3

    def test_group_shows_its_messages_and_what_blocks_it(self, dispatcher: Client, failed: list[Message]) -> None:
        group = MessageGroup.objects.get()
        listed = dispatcher.get(page("messagegroup") + "?blocked_by__isempty=0").content.decode()
        assert f"blocked by the ERROR of message {failed[0].pk}" in listed
        shown = dispatcher.get(page("messagegroup", group.pk)).content.decode()
        assert all(page("message", message.pk) in shown for message in failed)

    def test_a_message_is_found_by_its_webhook_id_and_replayed(
        self, dispatcher: Client, failed: list[Message], world: World
    ) -> None:
        world.act("resolve", failed[0].pk)
        world.act("cancel", failed[1].pk, failed[2].pk)
        found = dispatcher.get(page("message") + f"?q={failed[0].webhook_id}").context["cl"].queryset
        assert [row.pk for row in found] == [failed[0].pk]
        assert "1 replayed." in run(dispatcher, "message", "replay", failed[0])
        assert world.message(failed[0].pk).replays == 1
        world.receiver.heal()
        world.start()
        world.becomes(failed[0].pk, "COMPLETED")

    def test_retry_sends_the_message_and_the_group_continues(
        self, dispatcher: Client, failed: list[Message], world: World
    ) -> None:
        world.receiver.heal()
        press(dispatcher, "message", "retry_this", failed[0])
        world.start()
        world.becomes(failed[2].pk, "COMPLETED")
        assert world.receiver.names == ["a", "a", "b", "c"]
        assert Attempt.objects.filter(message=failed[0]).count() == 2
        told = Event.objects.filter(kind="message.retried").get()
        assert told.actor_type == "user"

    @pytest.mark.parametrize(("name", "status"), [("ignore", "CANCELLED"), ("resolve", "COMPLETED")])
    def test_group_continues_after_ignore_or_resolve(
        self, dispatcher: Client, failed: list[Message], world: World, name: str, status: str
    ) -> None:
        assert "1 " in run(dispatcher, "message", name, failed[0])
        world.start()
        world.becomes(failed[2].pk, "COMPLETED")
        assert world.status(failed[0].pk) == status
        assert world.receiver.names == ["a", "b", "c"]

    def test_from_the_groups_page_too(self, dispatcher: Client, failed: list[Message], world: World) -> None:
        run(dispatcher, "messagegroup", "resolve_blockers", MessageGroup.objects.get())
        world.start()
        world.becomes(failed[2].pk, "COMPLETED")

    def test_all_that_a_filter_finds_are_cancelled_at_once(
        self, dispatcher: Client, failed: list[Message], world: World
    ) -> None:
        told = run(dispatcher, "message", "cancel", failed[1], everywhere=True, query="?status__exact=PENDING")
        assert "2 canceled" in told
        assert world.statuses([message.pk for message in failed]) == ["ERROR", "CANCELLED", "CANCELLED"]

    def test_impossible_actions_are_reported_and_change_nothing(
        self, dispatcher: Client, failed: list[Message], world: World
    ) -> None:
        told = run(dispatcher, "message", "retry", *failed)
        assert "1 retried" in told
        assert "2 not retried: only messages in ERROR can be; these are: Pending" in told

    def test_nobody_edits_or_deletes_a_message(self, admin: Client, failed: list[Message]) -> None:
        admin.post(page("message", failed[0].pk), {"status": "COMPLETED", "payload": "{}"})
        assert admin.post(
            reverse("admin:outbox_message_delete", args=[failed[0].pk]), {"post": "yes"}
        ).status_code in (302, 403)
        row = Message.objects.get(pk=failed[0].pk)
        assert (row.status, json.loads(row.payload)) == ("ERROR", {"name": "a"})


def test_quarantined_pointers_are_for_superusers(admin: Client, dispatcher: Client) -> None:
    row = QuarantinedPointer.objects.create(reason="not JSON", content="<script>")
    for client in (admin, dispatcher):
        assert client.get(page("quarantinedpointer")).status_code == 403
        assert client.get(page("quarantinedpointer", row.pk)).status_code in (302, 403, 404)
    root = browser(factories.user(is_superuser=True))
    assert "not JSON" in root.get(page("quarantinedpointer")).content.decode()
    assert "&lt;script&gt;" in root.get(page("quarantinedpointer", row.pk)).content.decode()
    root.post(reverse("admin:outbox_quarantinedpointer_delete", args=[row.pk]), {"post": "yes"})
    assert not QuarantinedPointer.objects.exists()
