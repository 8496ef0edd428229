"""The receivers' portal: links, sessions, what a receiver sees and does, and what it must not reach."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connections, transaction
from django.test import Client
from django.urls import reverse

from accounts.auth.throttling import parse_rate
from dispatch.console.portal import session
from dispatch.core import clock, events
from dispatch.core.models import Event
from dispatch.outbox.models import Endpoint, Message, PortalLink
from dispatch.outbox.services import portal, target_health
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.harness.outbox import World
from tests.support import factories
from tests.support.factories import browser

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api(world: World) -> Api:
    return Api(key=factories.api_key(world.organization))


def create(api: Api, **fields: Any) -> dict[str, Any]:
    answer = api.post("portal-links/", fields)
    assert answer.status_code == 201, answer.content
    return answer.json()


def path_of(made: dict[str, Any]) -> str:
    return "/portal/" + made["url"].partition("/portal/")[2]


class Visitor:
    """A receiver's browser, which checks CSRF as real ones are checked."""

    def __init__(self, made: dict[str, Any]) -> None:
        self.client = Client(enforce_csrf_checks=True)
        self.path = path_of(made)
        self.home = self.path.partition("open/")[0]
        page = self.client.get(self.path)
        assert page.status_code == 200, page.content
        assert self.submit(self.path).status_code == 302

    def get(self, path: str = "", **query: Any) -> Any:
        return self.client.get(self.home + path, query, follow=True)

    def submit(self, path: str, **fields: Any) -> Any:
        token = self.client.cookies["csrftoken"].value
        return self.client.post(path, {"csrfmiddlewaretoken": token, **fields})

    def act(self, endpoint: Endpoint, action: str, **fields: Any) -> Any:
        return self.submit(f"{self.home}endpoints/{endpoint.pk}/act/", action=action, **fields)


# --- The link -------------------------------------------------------------------------------------------------
def test_link_opens_once_and_its_page_alone_does_not_use_it(world: World, api: Api) -> None:
    made = create(api, endpoint=world.endpoint().name, label="Acme")
    scanner = Client()
    for _ in range(3):
        assert scanner.get(path_of(made)).status_code == 200
        assert scanner.head(path_of(made)).status_code == 200
    assert PortalLink.objects.get().opened_at is None
    visitor = Visitor(made)
    assert "ERP" in visitor.get().content.decode()
    assert Client().get(path_of(made)).status_code == 403
    assert Client().post(path_of(made)).status_code == 403
    assert visitor.get().status_code == 200, "the session goes on"
    assert [link["state"] for link in api.get("portal-links/").json()["results"]] == ["open"]
    kinds = Event.objects.filter(subject_type="portal_link").order_by("id").values_list("kind", "actor_label")
    assert list(kinds)[1] == ("portal_link.opened", "Receiver: Acme")


def test_of_many_exchanges_at_once_one_succeeds(world: World, api: Api) -> None:
    path = path_of(create(api, endpoint=world.endpoint().name))

    def exchange(_: int) -> int:
        try:
            return int(Client().post(path).status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(exchange, range(4))) == [302, 403, 403, 403]


def test_codes_are_stored_as_digests_and_shown_once(world: World, api: Api) -> None:
    made = create(api, endpoint=world.endpoint().name)
    code = path_of(made).split("/")[-2]
    visitor = Visitor(made)
    key = visitor.client.cookies[session.COOKIE].value
    stored = str(PortalLink.objects.values().get())
    assert code.rpartition(".")[0] not in stored
    assert key not in stored
    assert "url" not in api.get(f"portal-links/{made['id']}/").json()
    assert code not in str(list(Event.objects.values_list("data", flat=True)))


@pytest.mark.parametrize("change", ["expired", "revoked", "inactive", "tampered", "other uid"])
def test_link_that_is_not_valid_opens_nothing(world: World, api: Api, change: str) -> None:
    made = create(api, endpoint=world.endpoint().name, link_s=60)
    path = path_of(made)
    match change:
        case "expired":
            clock.travel(61)
        case "revoked":
            assert api.post(f"portal-links/{made['id']}/revoke/").json()["state"] == "revoked"
        case "inactive":
            world.organization.is_active = False
            world.organization.save()
        case "tampered":
            path = path[:-3] + ("aa/" if path[-3:-1] != "aa" else "bb/")
        case "other uid":
            other = create(api, endpoint=world.endpoint("Other").name)
            path = f"/portal/{path_of(other).split('/')[2]}/open/{path.split('/')[-2]}/"
    for answer in (Client().get(path), Client().post(path)):
        assert answer.status_code == 403
        assert b"This link is not valid" in answer.content
    assert not PortalLink.objects.exclude(opened_at=None).exists()


@pytest.mark.parametrize("change", ["expired", "revoked", "inactive", "left"])
def test_session_ends(world: World, api: Api, change: str) -> None:
    endpoint = world.endpoint()
    made = create(api, endpoint=endpoint.name, session_s=3600)
    visitor = Visitor(made)
    clock.travel(3500)
    assert visitor.get().status_code == 200
    key = visitor.client.cookies[session.COOKIE].value
    match change:
        case "expired":
            clock.travel(101)
        case "revoked":
            api.post(f"portal-links/{made['id']}/revoke/")
        case "inactive":
            world.organization.is_active = False
            world.organization.save()
        case "left":
            assert b"The portal is closed" in visitor.submit(f"{visitor.home}leave/").content
    visitor.client.cookies.load({session.COOKIE: key})
    assert visitor.get().status_code == 403
    assert visitor.act(endpoint, "test").status_code == 403
    assert not Message.objects.exists()


def test_links_need_a_scope_that_exists_and_belongs_to_the_organization(world: World, api: Api) -> None:
    world.endpoint()
    World(world.receiver).endpoint("Foreign", receiver="Acme")
    for field, given in [
        ("endpoint", {}),
        ("endpoint", {"endpoint": "ERP", "receiver": "Acme"}),
        ("receiver", {"receiver": "Acme"}),
        ("endpoint", {"endpoint": "Foreign"}),
        ("link_s", {"endpoint": "ERP", "link_s": 8 * 86400}),
        ("session_s", {"endpoint": "ERP", "session_s": 31 * 86400}),
        ("event_types.0", {"endpoint": "ERP", "event_types": ["nonsense"]}),
    ]:
        answer = api.post("portal-links/", given)
        assert answer.status_code == 400, given
        assert [error["field"] for error in answer.json()["errors"]] == [field]
    read_only = Api(key=factories.api_key(world.organization, "read"))
    assert read_only.post("portal-links/", {"endpoint": "ERP"}).status_code == 403


def test_nul_in_the_address_is_refused(db: None) -> None:
    for path in ("/portal/%00/", "/portal/%00/open/code/", "/portal/%00/catalog/"):
        assert Client().get(path).status_code == 404


# --- What a receiver must not reach ---------------------------------------------------------------------------
def test_receiver_reaches_no_other_endpoint_organization_or_portal(world: World, api: Api) -> None:
    own, other = world.endpoint("Own"), world.endpoint("Other endpoint")
    foreign_world = World(world.receiver)
    foreign = foreign_world.endpoint("Foreign endpoint")
    messages = {endpoint.pk: world.send_one(endpoint, endpoint.name) for endpoint in (own, other, foreign)}
    visitor = Visitor(create(api, endpoint="Own"))
    neighbor = Visitor(create(api, endpoint="Other endpoint"))
    for endpoint in (other, foreign):
        at = f"endpoints/{endpoint.pk}/"
        assert visitor.get(at).status_code == 404
        assert visitor.get(f"{at}messages/{messages[endpoint.pk]}/").status_code == 404
        assert visitor.get(f"endpoints/{own.pk}/messages/{messages[endpoint.pk]}/").status_code == 404
        for action in ("test", "pause", "resume", "subscribe", "many", "rotate"):
            assert visitor.act(endpoint, action, since="2026-01-01T00:00").status_code == 404
        assert visitor.act(own, "again", message=messages[endpoint.pk]).status_code == 404
        assert endpoint.name not in visitor.get().content.decode()
    # The cookie of one portal does not open another one, and the console and the API know neither.
    key = visitor.client.cookies[session.COOKIE].value
    stranger = Client()
    stranger.cookies.load({session.COOKIE: key})
    assert stranger.get(neighbor.home).status_code == 403
    assert visitor.client.cookies[session.COOKIE]["path"] == visitor.home
    assert visitor.client.get("/api/v1/endpoints/").status_code == 401
    assert visitor.client.get(reverse("console:outbox")).status_code == 302
    assert Message.objects.count() == 3


def test_forms_need_the_csrf_token_and_post(world: World, api: Api) -> None:
    endpoint = world.endpoint()
    visitor = Visitor(create(api, endpoint="ERP"))
    at = f"{visitor.home}endpoints/{endpoint.pk}/act/"
    assert visitor.client.post(at, {"action": "test"}).status_code == 403
    assert visitor.client.get(at, {"action": "test"}).status_code == 405
    assert visitor.client.get(f"{visitor.home}leave/").status_code == 405
    assert visitor.act(endpoint, "delete").status_code == 400
    assert not Message.objects.exists()


def test_read_only_link_changes_nothing(world: World, api: Api) -> None:
    endpoint = world.endpoint(event_types=["job.*"])
    visitor = Visitor(create(api, endpoint="ERP", is_read_only=True))
    for action in ("test", "pause", "subscribe", "many", "rotate"):
        assert visitor.act(endpoint, action, since="2026-01-01T00:00").status_code == 403
    page = visitor.get().content.decode()
    assert page.count("<button") == 1, "only the filter"
    assert not Message.objects.exists()
    assert Endpoint.objects.get().event_types == ["job.*"]


def test_pages_cannot_be_cached_framed_or_scripted(world: World, api: Api) -> None:
    endpoint = world.endpoint(event_types=["job.assigned"])
    message = world.send_one(endpoint, "<script>alert(1)</script>")
    visitor = Visitor(create(api, endpoint="ERP"))
    for path in ("", "catalog/", f"endpoints/{endpoint.pk}/messages/{message}/", "endpoints/999/"):
        answer = visitor.get(path)
        if answer.status_code == 404:
            continue
        assert "no-store" in answer["Cache-Control"]
        assert "script-src" not in answer["Content-Security-Policy"]
        assert "default-src 'none'" in answer["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]
        text = answer.content.decode()
        assert "<script" not in text
        assert not re.search(r"\sstyle=|\son[a-z]+=", text)


def test_rates_are_limited(world: World, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "READS", parse_rate("2/min"))
    monkeypatch.setattr(session, "WRITES", parse_rate("1/min"))
    endpoint = world.endpoint()
    visitor = Visitor(create(api, endpoint="ERP"))
    assert visitor.act(endpoint, "test").status_code == 302
    limited = visitor.act(endpoint, "test")
    assert (limited.status_code, int(limited["Retry-After"]) > 0) == (429, True)
    at = f"{visitor.home}endpoints/{endpoint.pk}/"
    assert [visitor.client.get(at).status_code for _ in range(4)] == [200, 200, 429, 429]
    monkeypatch.setattr(session, "STRANGERS", parse_rate("2/min"))
    stranger = Client(REMOTE_ADDR="203.0.113.9")
    assert [stranger.get(visitor.home).status_code for _ in range(4)] == [403, 403, 429, 429]


# --- What a receiver sees and does ----------------------------------------------------------------------------
def test_receiver_sees_its_deliveries_with_payload_and_responses(world: World, api: Api) -> None:
    endpoint = world.endpoint(retry_schedule_s=[])
    world.receiver.answer("bad", 500, body="out of order <b>")
    world.start()
    good, bad = world.send_one(endpoint, "good", group="a"), world.send_one(endpoint, "bad", group="b")
    world.becomes(good, "COMPLETED")
    world.becomes(bad, "ERROR")
    visitor = Visitor(create(api, endpoint="ERP"))
    page = visitor.get().content.decode()
    assert f"messages/{good}/" in page
    assert f"messages/{bad}/" in page
    page = visitor.get(f"endpoints/{endpoint.pk}/", status="ERROR").content.decode()
    assert f"messages/{good}/" not in page
    page = visitor.get(f"endpoints/{endpoint.pk}/messages/{bad}/").content.decode()
    assert "out of order &lt;b&gt;" in page
    assert "HTTP 500" in page
    assert "&quot;bad&quot;" in page


def test_receiver_of_several_endpoints_sees_them_all_and_later_ones(world: World, api: Api) -> None:
    world.endpoint("One", receiver="Acme")
    world.endpoint("Strange", receiver="Other")
    visitor = Visitor(create(api, receiver="Acme"))
    two = world.endpoint("Two", receiver="Acme")
    page = visitor.get().content.decode()
    assert "One" in page
    assert "Two" in page
    assert "Strange" not in page
    assert visitor.get(f"endpoints/{two.pk}/").status_code == 200
    Endpoint.objects.filter(pk=two.pk).update(receiver="")
    assert visitor.get(f"endpoints/{two.pk}/").status_code == 404


def test_receiver_sends_a_test_and_messages_again(world: World, api: Api) -> None:
    endpoint = world.endpoint(retry_schedule_s=[])
    world.receiver.answer("bad", 500, times=1)
    world.start()
    good, bad = world.send_one(endpoint, "good", group="a"), world.send_one(endpoint, "bad", group="b")
    world.becomes(good, "COMPLETED")
    world.becomes(bad, "ERROR")
    visitor = Visitor(create(api, endpoint="ERP", label="Acme"))
    assert visitor.act(endpoint, "test").status_code == 302
    assert visitor.act(endpoint, "again", message=bad).status_code == 302
    world.becomes(bad, "COMPLETED")
    assert visitor.act(endpoint, "again", message=good).status_code == 302
    world.all_end()
    assert sorted(world.receiver.names) == ["bad", "bad", "endpoint.test", "good", "good"]
    labels = Event.objects.filter(kind="message.replayed").values_list("actor_type", "actor_label")
    assert list(labels) == [("receiver", "Receiver: Acme")]


def test_receiver_replays_failed_messages_or_everything_since_a_moment(world: World, api: Api) -> None:
    endpoint = world.endpoint(retry_schedule_s=[], mode="NEXT_ON_ERROR")
    other = world.endpoint("Other", retry_schedule_s=[])
    world.receiver.answer("b", 500, times=1)
    world.start()
    world.send(endpoint, "a", "b", "c")
    world.send(other, "foreign", group="o")
    world.all_end()
    visitor = Visitor(create(api, endpoint="ERP"))
    # The page's times are in the organization's zone.
    since = f"{clock.now().astimezone(ZoneInfo(world.organization.time_zone)) - timedelta(hours=1):%Y-%m-%dT%H:%M}"
    assert "1 message will be sent again" in visitor.act(endpoint, "many", since=since).content.decode()
    world.all_end()
    answer = visitor.act(endpoint, "many", since=since, which="all").content.decode()
    assert "3 messages will be sent again" in answer
    world.all_end()
    assert world.receiver.names.count("foreign") == 1
    assert world.receiver.of("g")[-3:] == ["a", "b", "c"], "in their order"
    for bad in ("", "yesterday", "1990-01-01T00:00", "9999-12-31T23:59"):
        assert visitor.act(endpoint, "many", since=bad)["Location"].endswith("said=when")


def test_receiver_gets_everything_again_in_order_also_after_a_failure(world: World, api: Api) -> None:
    endpoint = world.endpoint(retry_schedule_s=[])
    world.receiver.answer("d", 500, times=1)
    world.start()
    ids = world.send(endpoint, *"abcd")
    world.becomes(ids[-1], "ERROR")
    visitor = Visitor(create(api, endpoint="ERP"))
    since = f"{clock.now().astimezone(ZoneInfo(world.organization.time_zone)) - timedelta(hours=1):%Y-%m-%dT%H:%M}"
    with transaction.atomic():
        Message.objects.select_for_update(no_key=True).get(pk=ids[0])
        again = Elsewhere(lambda: visitor.act(endpoint, "many", since=since, which="all"))
        again.wait_for_lock()
        assert world.status(ids[-1]) == "ERROR", "it is retried together with the earlier messages"
    again.finish()
    world.all_end()
    assert world.receiver.names == [*"abcd", *"abcd"]


def test_receiver_rotates_secrets_and_sees_their_ages(world: World, api: Api) -> None:
    endpoint = world.endpoint()
    first = endpoint.secret
    clock.travel(3 * 86400)
    visitor = Visitor(create(api, endpoint="ERP"))
    page = visitor.act(endpoint, "rotate", overlap_h="24").content.decode()
    shown = re.search(r"data-secret>(whsec_[^<]+)<", page)
    assert shown
    clock.travel(3600)
    visitor.act(endpoint, "rotate", overlap_h="168")
    endpoint.refresh_from_db()
    page = visitor.get().content.decode()
    secrets = portal.shown_secrets(endpoint)
    assert [secret["end"][-4:] for secret in secrets] == [endpoint.secret[-4:], shown[1][-4:], first[-4:]]
    ages = [round((clock.now() - secret["since"]).total_seconds() / 3600) for secret in secrets]
    assert ages == [0, 1, 73]
    assert all(secret["end"] in page for secret in secrets)
    assert first not in page
    assert shown[1] not in page


def test_receiver_pauses_and_resumes_but_does_not_end_a_pause_of_staff(world: World, api: Api) -> None:
    endpoint = world.endpoint()
    visitor = Visitor(create(api, endpoint="ERP"))
    visitor.act(endpoint, "pause")
    endpoint.refresh_from_db()
    assert endpoint.is_paused
    visitor.act(endpoint, "resume")
    endpoint.refresh_from_db()
    assert not endpoint.is_paused
    target_health.pause_endpoint(endpoint.pk, "They have not paid", actor=events.SYSTEM)
    page = visitor.get().content.decode()
    assert "They have not paid" not in page
    assert visitor.act(endpoint, "resume")["Location"].endswith("said=unchanged")
    endpoint.refresh_from_db()
    assert endpoint.is_paused


def test_receiver_chooses_only_among_the_types_of_its_link(world: World, api: Api) -> None:
    for name in ("order.changed", "order.paid", "secret.thing"):
        assert api.post("event-types/", {"name": name, "schema": {"type": "object"}}).status_code == 201
    endpoint = world.endpoint(event_types=["order.*", "job.assigned"])
    visitor = Visitor(create(api, endpoint="ERP", event_types=["order.*"]))
    assert (
        visitor.act(
            endpoint, "subscribe", types=["order.paid", "secret.thing", "*", "job.*", "membership.added"]
        ).status_code
        == 302
    )
    endpoint.refresh_from_db()
    assert endpoint.event_types == ["job.assigned", "order.paid"], "job.assigned is not the receiver's to remove"
    page = visitor.get("catalog/").content.decode()
    assert "order.changed" in page
    assert "secret.thing" not in page
    assert "membership.added" not in page
    wide = Visitor(create(api, endpoint="ERP", event_types=["job.*", "job.assigned"]))
    for page in ("catalog/", f"endpoints/{endpoint.pk}/"):
        shown = wide.client.get(wide.home + page, headers={"Accept-Language": "es"}).content.decode()
        assert "Se asignó un trabajo a un técnico." in shown
    assert "Todos estos eventos" in shown
    default = create(api, endpoint="ERP")
    assert default["event_types"] == ["job.assigned", "order.paid"]


def test_erased_message_is_not_shown_or_sent_again(world: World, api: Api) -> None:
    endpoint = world.endpoint()
    world.start()
    message = world.send_one(endpoint, "a")
    world.becomes(message, "COMPLETED")
    Message.objects.update(payload="{}", erased_at=clock.now())
    visitor = Visitor(create(api, endpoint="ERP"))
    assert "The content was erased" in visitor.get(f"endpoints/{endpoint.pk}/messages/{message}/").content.decode()
    assert visitor.act(endpoint, "again", message=message)["Location"].endswith("said=not_again")


def test_admin_creates_a_link_that_is_shown_once_and_revokes_it(world: World) -> None:
    endpoint = world.endpoint()
    foreign = World(world.receiver).endpoint("Foreign")
    admin = browser(factories.admin(world.organization))
    add = reverse("admin:outbox_portallink_add")
    given = {"organization": world.organization.pk, "endpoint": endpoint.pk, "link_h": "24", "session_h": "12"}
    assert admin.post(add, {**given, "endpoint": foreign.pk}).status_code == 200
    assert admin.post(add, {**given, "receiver": "Acme"}).status_code == 200
    assert not PortalLink.objects.exists()
    page = admin.post(add, given).content.decode()
    url = re.search(r"data-secret>([^<]+)<", page)
    assert url
    Visitor({"url": url[1]})
    link = PortalLink.objects.get()
    listed = admin.get(reverse("admin:outbox_portallink_changelist")).content.decode()
    assert "open" in listed
    sent = {"action": "revoke", "confirmed": "1", "_selected_action": [link.pk], "select_across": "0"}
    admin.post(reverse("admin:outbox_portallink_changelist"), sent, follow=True)
    assert portal.state_of(PortalLink.objects.get()) == "revoked"
    dispatcher = browser(factories.dispatcher(world.organization))
    assert dispatcher.get(add).status_code == 403


def test_payload_of_any_shape_is_shown(world: World, api: Api) -> None:
    endpoint = world.endpoint()
    visitor = Visitor(create(api, endpoint="ERP"))
    for payload in ("null", "[]", json.dumps("é\u202e"), json.dumps({"a": ["x" * 5000]})):
        message = world.send_one(endpoint, "a")
        Message.objects.filter(pk=message).update(payload=payload)
        assert visitor.get(f"endpoints/{endpoint.pk}/messages/{message}/").status_code == 200
