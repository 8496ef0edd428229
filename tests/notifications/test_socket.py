"""The socket over real HTTP: who may listen, what they receive, and when they are disconnected."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Max
from django.test import Client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from accounts import limits
from accounts import services as accounts
from accounts.auth import sessions
from accounts.models import Membership, OrganizationLimits, User
from dispatch.core import clock, events
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.redis.client import client
from notifications import consumers, live_updates, services
from notifications.models import Alert, Notification
from tests.api.client import Api
from tests.notifications.test_alerts import notify, turns_pending
from tests.support import factories as make
from tests.support.redis_requests import note_redis_requests
from tests.support.tenants import Tenant, tenant
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ours() -> Tenant:
    made = tenant("Alphaville")
    Notification.objects.all().delete()
    return made


def session_of(user: User) -> str:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client.cookies["sessionid"].value


@contextmanager
def listening(
    app_url: str, user: User | None, query: str = "", origin: str = "", session: str = ""
) -> Iterator[ClientConnection]:
    headers = {"Cookie": f"sessionid={session or session_of(user)}"} if user else {}
    address = app_url.replace("http", "ws") + "/ws/" + query
    with connect(
        address,
        additional_headers=headers,
        origin=origin or app_url,
        open_timeout=PATIENCE,
        ping_interval=None,
        proxy=None,
    ) as socket:
        yield socket


def newest_event_id(organization_id: int) -> int:
    newest: int = Event.objects.filter(organization_id=organization_id).aggregate(id=Max("id"))["id"] or 0
    return newest


def hear(socket: ClientConnection, *kinds: str) -> dict[str, Any]:
    """Return the next message of one of these kinds, or the next one that is not a live update."""
    while True:
        message = json.loads(socket.recv(timeout=PATIENCE))
        if message["type"] in kinds or (not kinds and message["type"] not in ("events", "beat")):
            return message


def closed_with(socket: ClientConnection) -> int:
    ends_at = time.monotonic() + PATIENCE  # an open socket receives beats all the time
    with pytest.raises(ConnectionClosed) as closed:
        while time.monotonic() < ends_at:
            socket.recv(timeout=PATIENCE)
    return closed.value.rcvd.code


def refused(app_url: str, user: User | None, **how: str) -> bool:
    with pytest.raises(InvalidStatus) as answer, listening(app_url, user, **how):
        pass
    return answer.value.response.status_code == 403


def test_a_dispatcher_hears_of_an_alert_as_it_happens(app_url, ours):
    with listening(app_url, ours.dispatcher) as socket:
        welcome = hear(socket)
        del welcome["now"], welcome["floor"]
        assert welcome == {
            "type": "welcome", "organization": "alphaville", "unread": 0, "alerts": [], "last_event_id": 0,
        }  # fmt: skip
        turns_pending(ours)
        notify()
        heard = hear(socket)
        assert (heard["type"], heard["level"], heard["kind"]) == ("notification", "critical", "job.pending")
        assert heard["id"] == Notification.objects.get().pk


def test_missed_events_come_first_and_once(app_url, ours):
    for _ in range(3):
        turns_pending(ours)
    notify()
    ids = list(Notification.objects.order_by("pk").values_list("pk", flat=True))
    with listening(app_url, ours.dispatcher, f"?last_event_id={ids[0]}") as socket:
        assert [alert["id"] for alert in hear(socket)["alerts"]] == ids[::-1]
        assert [hear(socket)["id"] for _ in range(2)] == ids[1:]
        for _ in range(3):  # duplicate updates change nothing
            live_updates.notify_written(ours.organization.pk, ids)
        turns_pending(ours)
        notify()
        assert hear(socket)["id"] == Notification.objects.order_by("-pk").first().pk


def test_a_page_hears_of_alerts_after_the_database_lost_its_last_commits(app_url, ours, monkeypatch, settings):
    """The ids that the page knows are used again, so it hears them as new ones, also if pushes are lost."""
    settings.SOCKET_RECHECK_S = 0.2
    with listening(app_url, ours.dispatcher, "?last_event_id=1000000&since=1000000") as socket:
        assert hear(socket)["last_event_id"] < 1000000
        monkeypatch.setattr(live_updates, "_publish", lambda *args: None)
        turns_pending(ours)
        notify()
        missing = {"events", "notification"}
        while missing:
            missing.discard(hear(socket, "events", "notification")["type"])


def test_an_alert_that_a_colleague_acknowledged_ends_although_the_message_was_lost(
    app_url, ours, monkeypatch, settings
):
    settings.SOCKET_RECHECK_S = 0.2
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket)
        turns_pending(ours)
        notify()
        shown = hear(socket)
        monkeypatch.setattr(live_updates, "_publish", lambda *args: None)
        alert = Alert.objects.get(notifications=shown["id"])
        services.acknowledge_alert(alert.pk, user=ours.dispatcher, actor=SYSTEM, via="call")
        changed = hear(socket)
        assert (changed["type"], changed["id"]) == ("changed", shown["id"])
        assert changed["settled_at"] or changed["acknowledged_at"]
        kinds = [json.loads(socket.recv(timeout=PATIENCE))["type"] for _ in range(3)]
        assert "changed" not in kinds, "it is said once"


def test_lost_live_update_is_caught_up(app_url, ours, monkeypatch, settings):
    settings.SOCKET_RECHECK_S = 0.2
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket)
        monkeypatch.setattr(live_updates, "_publish", lambda *args: None)
        turns_pending(ours)
        notify()
        assert hear(socket)["type"] == "notification"


def test_a_socket_leaves_the_browser_signed_in_after_another_secret_key(app_url, ours, settings):
    browser = Client()
    browser.force_login(ours.dispatcher, backend="django.contrib.auth.backends.ModelBackend")
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "a new secret key that is long enough to be one"
    with listening(app_url, ours.dispatcher, session=browser.cookies["sessionid"].value) as socket:
        hear(socket)
    assert browser.get("/api/v1/me/").status_code == 200


def test_a_push_that_fails_does_not_fail_the_work(ours, monkeypatch):
    def gone() -> None:
        raise OSError("Redis is gone")

    monkeypatch.setattr(live_updates, "get_channel_layer", gone)
    turns_pending(ours)
    notify()
    assert Notification.objects.count() == 1


def test_colleagues_see_who_acknowledged(app_url, ours):
    second = make.dispatcher(ours.organization, "Bob")
    turns_pending(ours)
    notify()
    with listening(app_url, second) as socket:
        hear(socket)
        mine = Notification.objects.get(user=ours.dispatcher)
        Api(user=ours.dispatcher).post(f"notifications/{mine.pk}/acknowledge/")
        heard = hear(socket)
        assert (heard["type"], heard["acknowledged_by"]) == ("changed", "Alphaville dispatcher")
        assert heard["id"] == Notification.objects.get(user=second).pk


def test_other_organizations_events_are_not_sent(app_url, ours):
    theirs = tenant("Bravotown")
    Notification.objects.all().delete()
    with listening(app_url, theirs.dispatcher) as socket:
        assert hear(socket)["organization"] == "bravotown"
        turns_pending(ours)
        notify()
        live_updates.notify_changed(
            theirs.organization.pk, list(Notification.objects.values_list("pk", flat=True))
        )
        turns_pending(theirs)
        notify()
        assert "Bravotown" in hear(socket)["body"]


def test_outsiders_are_refused(app_url, ours):
    assert refused(app_url, None)
    assert refused(app_url, make.user("Nowhere"))
    theirs = tenant("Bravotown")
    assert refused(app_url, theirs.admin, query="?organization=alphaville")
    assert refused(app_url, ours.dispatcher, origin="https://evil.example")
    with listening(app_url, ours.dispatcher, "?organization=alphaville") as socket:
        assert hear(socket)["type"] == "welcome"


def test_sockets_beyond_the_organizations_limit_are_refused(app_url, ours):
    OrganizationLimits.objects.update_or_create(organization=ours.organization, defaults={"sockets": 1})
    limits.reset()
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket)
        assert refused(app_url, ours.admin)
    wait_until(lambda: not client().zcard(limits._sockets_key(ours.organization.pk)))
    with listening(app_url, ours.admin) as socket:
        assert hear(socket)["type"] == "welcome"


def test_a_membership_that_ends_closes_the_socket_at_once(app_url, ours):
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket)
        accounts.change_member(ours.dispatcher.memberships.get().pk, actor=SYSTEM, is_active=False)
        notify()
        assert closed_with(socket) == 4403


def test_a_second_membership_does_not_keep_the_socket_of_the_first(app_url, ours):
    Membership.objects.create(organization=make.organization(), user=ours.dispatcher, role="dispatcher")
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket)
        accounts.remove_member(ours.dispatcher.memberships.first().pk, actor=SYSTEM)
        notify()
        assert closed_with(socket) == 4403


def test_signing_out_closes_the_socket(app_url, ours, settings):
    settings.SOCKET_RECHECK_S = 0.2
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket)
        ours.dispatcher.set_password("another one")  # ends every session
        ours.dispatcher.save()
        assert closed_with(socket) == 4401


def test_ending_the_sessions_closes_the_socket_at_once(app_url, ours):
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket)
        sessions.end_all_sessions(ours.dispatcher, actor=SYSTEM)
        notify()
        assert closed_with(socket) == 4401


def test_a_new_password_closes_the_sockets_at_once(app_url, ours, settings):
    settings.SOCKET_RECHECK_S = 3600
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket)
        ours.dispatcher.set_password("another one")
        ours.dispatcher.save()
        notify()
        assert closed_with(socket) == 4401


def test_session_without_the_required_second_factor_gets_no_socket(app_url, ours):
    accounts.change_organization(ours.organization.pk, {"requires_second_factor": True}, actor=SYSTEM)
    assert refused(app_url, ours.dispatcher)


def test_session_that_has_not_passed_the_second_factor_gets_no_socket(app_url, ours, settings):
    settings.SOCKET_RECHECK_S = 0.2
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket)
        User.objects.filter(pk=ours.dispatcher.pk).update(second_factor_at=clock.now())  # set up elsewhere
        assert closed_with(socket) == 4401
    assert refused(app_url, ours.dispatcher)


@pytest.mark.parametrize("sent", ["{", "[]", '{"type": "shout"}', "null"])
def test_nonsense_is_ignored(app_url, ours, sent):
    with listening(app_url, ours.dispatcher, "?last_event_id=9x") as socket:
        hear(socket)
        socket.send(sent)
        socket.send('{"type": "ping"}')
        assert hear(socket) == {"type": "pong"}
    assert services.unread_of(ours.dispatcher, ours.organization.pk).count() == 0


def hints_heard(socket: ClientConnection, count: int = 1) -> list[dict[str, Any]]:
    """Return the next live updates, at least `count`; those close together may share a message."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += hear(socket, "events")["items"]
    return found


def kinds_heard(socket: ClientConnection) -> list[str]:
    return [hint["kind"] for hint in hints_heard(socket)]


def test_a_change_is_hinted_at_once_and_only_to_its_organization(app_url, ours):
    theirs = tenant("Bravotown")
    start = newest_event_id(ours.organization.pk)
    with (
        listening(app_url, ours.dispatcher, f"?since={start}") as socket,
        listening(app_url, theirs.dispatcher, f"?since={newest_event_id(theirs.organization.pk)}") as stranger,
    ):
        hear(socket), hear(stranger)
        with transaction.atomic():
            events.append(ours.organization.pk, "job.paused", 7)
            events.append(ours.organization.pk, "offer.rescinded", 70, job_id=7)
            events.append(ours.organization.pk, "message.sent", 9)  # a busy kind: not pushed
        events.append(theirs.organization.pk, "job.resumed", 8)
        items = hints_heard(socket, 2)
        assert [(one["kind"], one["job"]) for one in items] == [("job.paused", 7), ("offer.rescinded", 7)]
        assert kinds_heard(stranger) == ["job.resumed"]


def test_rolled_back_event_is_not_sent(app_url, ours):
    with listening(app_url, ours.dispatcher, f"?since={newest_event_id(ours.organization.pk)}") as socket:
        hear(socket)
        with pytest.raises(RuntimeError), transaction.atomic():
            events.append(ours.organization.pk, "job.paused", 7)
            raise RuntimeError
        events.append(ours.organization.pk, "job.resumed", 7)
        assert kinds_heard(socket) == ["job.resumed"]


def test_events_of_a_transaction_are_sent_together_without_those_rolled_back(app_url, ours, monkeypatch):
    organization_id = ours.organization.pk
    start = newest_event_id(organization_id)
    with listening(app_url, ours.dispatcher, f"?since={start}") as socket:
        hear(socket)
        sent = note_redis_requests(monkeypatch)
        with transaction.atomic():
            events.append(organization_id, "job.paused", 7)
            with pytest.raises(RuntimeError), transaction.atomic():
                events.append(organization_id, "job.completed", 7)
                raise RuntimeError
            with transaction.atomic():
                events.append(organization_id, "job.resumed", 7)
            events.append(organization_id, "offer.made", 70, job_id=7)
            events.append(organization_id, "offer.declined", 70, job_id=7)
            assert sent == []
        assert len(sent) == 1
        assert kinds_heard(socket) == ["job.paused", "job.resumed", "offer.made", "offer.declined"]
        sent.clear()
        events.append(organization_id, "job.assigned", 7)
        assert len(sent) == 1
        assert kinds_heard(socket) == ["job.assigned"]


def test_events_missed_come_after_joining_and_a_lost_hint_is_made_good(app_url, ours, monkeypatch, settings):
    settings.SOCKET_RECHECK_S = 0.2
    monkeypatch.setattr(live_updates, "LOOK_BACK", timedelta(hours=1))  # which a slow machine keeps
    start = newest_event_id(ours.organization.pk)
    events.append(ours.organization.pk, "job.paused", 7)
    with listening(app_url, ours.dispatcher, f"?since={start}") as socket:
        hear(socket)
        assert kinds_heard(socket) == ["job.paused"]
        monkeypatch.setattr(live_updates, "_publish", lambda *args: None)
        events.append(ours.organization.pk, "job.resumed", 7)
        assert kinds_heard(socket) == ["job.resumed"]
        assert hear(socket, "beat")["floor"] <= start


def test_duplicate_live_update_is_sent_once(app_url, ours):
    with listening(app_url, ours.dispatcher, f"?since={newest_event_id(ours.organization.pk)}") as socket:
        hear(socket)
        event = events.append(ours.organization.pk, "job.paused", 7)
        live_updates.push_event(event)
        assert kinds_heard(socket) == ["job.paused"]
        events.append(ours.organization.pk, "job.resumed", 7)
        assert kinds_heard(socket) == ["job.resumed"]


def test_too_many_missed_events_cause_a_refetch(app_url, ours, monkeypatch):
    monkeypatch.setattr(live_updates, "MAX_MISSED", 2)
    start = newest_event_id(ours.organization.pk)
    for _ in range(3):
        events.append(ours.organization.pk, "job.paused", 7)
    with listening(app_url, ours.dispatcher, f"?since={start}") as socket:
        hear(socket)
        assert hear(socket) == {"type": "refetch"}


def test_sent_events_are_not_sent_again_as_missed(app_url, ours, monkeypatch, settings):
    settings.SOCKET_RECHECK_S = 0.2
    monkeypatch.setattr(live_updates, "MAX_MISSED", 2)
    with listening(app_url, ours.dispatcher, f"?since={newest_event_id(ours.organization.pk)}") as socket:
        hear(socket)
        for n in range(3):
            events.append(ours.organization.pk, "job.paused", n)
            assert kinds_heard(socket) == ["job.paused"]
        hear(socket, "beat")
        assert hear(socket, "beat", "refetch", "events")["type"] == "beat"


def test_shared_reads_do_not_hide_events_from_a_new_socket(ours):
    start = newest_event_id(ours.organization.pk)
    earlier = time.monotonic()
    assert live_updates.missed_updates(ours.organization.pk, start, earlier) == ([], True)
    events.append(ours.organization.pk, "job.paused", 7)
    assert live_updates.missed_updates(ours.organization.pk, start, earlier) == ([], True)  # read once for all
    found, complete = live_updates.missed_updates(ours.organization.pk, start, time.monotonic())
    assert ([hint["kind"] for hint in found], complete) == (["job.paused"], True)


@pytest.mark.parametrize("path", ["/", "/ws/x", "/ws", "/api/v1/jobs/"])
def test_unknown_address_is_refused_without_an_error(app_url, caplog, path):
    with pytest.raises(InvalidStatus) as refused:
        connect(app_url.replace("http", "ws") + path, origin=app_url, open_timeout=PATIENCE, proxy=None)
    assert refused.value.response.status_code == 403
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("frame", "code"),
    [("[" * 100_000, 1009), ("[" * 2_000, 1009), ("x" * 1_025, 1009), (b"{}", 1009)],
)
def test_a_frame_that_no_client_sends_ends_the_socket(app_url, ours, frame, code):
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket, "welcome")
        socket.send(frame)
        assert closed_with(socket) == code


def test_a_nested_frame_within_the_limit_is_ignored(app_url, ours, caplog):
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket, "welcome")
        socket.send("[" * 1_000)
        socket.send('{"type": "ping"}')
        assert hear(socket, "pong")
    assert "RecursionError" not in caplog.text


def test_a_client_that_sends_too_many_frames_is_closed(app_url, ours, monkeypatch):
    monkeypatch.setattr(consumers, "FRAMES_S", PATIENCE)
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket, "welcome")
        for _ in range(consumers.MAX_FRAMES):
            socket.send('{"type": "ping"}')
        for _ in range(consumers.MAX_FRAMES):
            hear(socket, "pong")
        socket.send('{"type": "ping"}')
        assert closed_with(socket) == 1008
