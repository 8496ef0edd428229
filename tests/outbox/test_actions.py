"""Contract 14 (docs/guides/outbox.md): cancel, retry, ignore and resolve, by service and by API, one and many."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
import requests

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.api.serializers import MAX_LATEST
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.privacy.personal_data import DataSubject, erase_person
from dispatch.outbox.models import Attempt, Endpoint, Message
from dispatch.outbox.services import actions
from dispatch.outbox.services.actions import Action
from tests.harness.outbox import World
from tests.support import factories
from tests.support.waiting import wait_until

MARIA = Actor("user", 7, "Maria")
DIRECT = {"type": "t", "payload": {}, "target_url": "https://x.example/"}
LATER = (datetime.now(UTC) + timedelta(days=300)).isoformat()


@pytest.fixture
def api(world: World, app_url: str) -> Any:
    key = factories.api_key(world.organization)

    def call(method: str, path: str, body: object = None, **headers: str) -> requests.Response:
        return requests.request(
            method,
            f"{app_url}/api/v1/{path}",
            json=body,
            headers={"Authorization": f"Bearer {key}", **headers},
            timeout=60,
        )

    return call


def test_cancelled_pending_message_is_never_sent(world: World) -> None:
    # Contract 14
    erp = world.endpoint()
    a, b, c = world.send(erp, "a", "b", "c")
    world.act("cancel", b)
    world.poll()
    world.act("cancel", a)  # it is QUEUED, its pointer on the way
    world.start()
    world.all_end()
    assert world.receiver.names == ["c"]
    assert world.statuses([a, b, c]) == ["CANCELLED", "CANCELLED", "COMPLETED"]


@pytest.mark.parametrize("answer", [200, 500, 422, 429])
def test_cancel_in_flight_records_result_and_holds_group(world: World, answer: int) -> None:
    # Contract 14
    erp = world.endpoint()
    world.receiver.hold("a")
    world.receiver.answer("a", answer)
    a, b = world.send(erp, "a", "b")
    world.start()
    world.receiver.got("a")
    world.act("cancel", a)
    world.poll()
    assert (world.status(a), world.status(b)) == ("CANCELLED", "PENDING")
    assert world.message(a).in_flight is True
    world.receiver.let_go("a")
    world.receiver.got("a", "b")
    world.all_end()
    assert world.status(a) == "CANCELLED"
    assert Attempt.objects.get(message=a).status_code == answer
    assert world.receiver.overlaps() == []


def test_cancelled_attempt_without_end_unblocks_its_group_by_lease(world: World) -> None:
    # Contract 14
    from dispatch.outbox.services import attempts

    erp = world.endpoint()
    a, _ = world.send(erp, "a", "b")
    world.poll()
    assert isinstance(attempts.start_attempts([(a, 1)])[0][0], attempts.DeliveryAttempt)
    world.act("cancel", a)
    world.start()
    world.travel(30)
    world.recover()
    assert world.receiver.names == []
    world.travel(31)
    world.start_recovery()
    world.receiver.got("b")
    assert world.status(a) == "CANCELLED"


def test_retry_resets_the_budget_keeps_history_and_goes_first(world: World) -> None:
    # Contract 14
    erp = world.endpoint(retry_schedule_s=[600])
    world.receiver.answer("a", 500, times=3)
    a, _ = world.send(erp, "a", "b")
    world.start()
    world.receiver.count(1)
    world.rests()
    world.travel(601)
    world.becomes(a, "ERROR")
    actions.act_on_messages(Action.RETRY, [a], actor=MARIA, note="they fixed it")
    world.receiver.count(3)
    world.rests()
    assert world.status(a) == "PENDING"  # the third failure is the first of the new budget
    assert world.message(a).attempts == 1
    world.travel(601)
    world.all_end()
    assert world.receiver.names == ["a"] * 4 + ["b"]
    assert [x.number for x in Attempt.objects.filter(message=a)] == [1, 2, 3, 4]
    told = Event.objects.get(subject_type="message", subject_id=a, kind="message.retried")
    assert (told.actor_label, told.data["note"]) == ("Maria", "they fixed it")


@pytest.mark.parametrize(
    ("word", "status", "resolution"), [("ignore", "CANCELLED", "ignored"), ("resolve", "COMPLETED", "resolved")]
)
def test_ignore_and_resolve_unblock_at_once_audited_only_from_error(
    world: World, word: str, status: str, resolution: str
) -> None:
    # Contract 14
    erp = world.endpoint()
    world.receiver.answer("a", 422)
    a, b = world.send(erp, "a", "b")
    world.start()
    world.becomes(a, "ERROR")
    actions.act_on_one(Action.of(word), Message.objects.get(pk=a), actor=MARIA)
    world.becomes(b, "COMPLETED")
    found = world.message(a)
    assert (found.status, found.resolution) == (status, resolution)
    assert Event.objects.get(subject_id=a, kind=f"message.{resolution}").actor_id == 7
    with pytest.raises(Conflict) as refused:
        actions.act_on_one(Action.of(word), found, actor=MARIA)
    assert refused.value.conflict["by"]["label"] == "Maria"


def test_group_is_unblocked_only_with_its_last_error(world: World) -> None:
    phone = "+16025550123"
    world.receiver.answer(phone, 422)
    world.receiver.answer("b", 422)
    erp = world.endpoint()
    world.start()
    later = world.send_one(erp, "b")
    world.becomes(later, "ERROR")
    first = world.send_one(erp, phone, sequence=1)
    world.becomes(first, "ERROR")
    erase_person(DataSubject(world.organization.pk, phone=phone), actor=MARIA)
    world.receiver.heal()
    done = world.act("retry", first, later)
    assert (done.changed, done.refused) == ([later], {first: "ERROR"}), "what was erased can't be sent"
    unblocked = Event.objects.filter(kind="group.unblocked")
    assert not unblocked.exists()
    world.act("ignore", first)
    world.becomes(later, "COMPLETED")
    assert unblocked.count() == 1


@pytest.mark.parametrize("word", ["retry", "ignore", "resolve"])
def test_actions_from_other_states_return_409(world: World, api: Any, word: str) -> None:
    # Contract 14
    erp = world.endpoint()
    message = world.send_one(erp, "a")
    answer = api("POST", f"messages/{message}/{word}/")
    assert answer.status_code == 409
    assert "PENDING" in answer.json()["detail"]
    assert world.status(message) == "PENDING"
    Message.objects.filter(pk=message).update(status="ERROR")
    assert api("POST", f"messages/{message}/{word}/", {"note": "seen"}).status_code == 200
    assert api("POST", f"messages/{message}/{word}/").status_code == 409


def test_action_on_many_by_filter(world: World, api: Any) -> None:
    # Contract 14
    erp, crm = world.endpoint("ERP"), world.endpoint("CRM")
    failed = [world.send_one(erp, f"{n}", group=f"{n}") for n in range(5)]
    other = world.send_one(crm, "other")
    Message.objects.filter(pk__in=[*failed, other]).update(status="ERROR")
    waiting = world.send_one(erp, "waiting", group="w")
    answer = api("POST", "messages/actions/", {"action": "retry", "filter": {"endpoint": "ERP"}})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["changed"], answer.json()["refused"]) == (5, 1)
    assert world.statuses([*failed, waiting, other]) == ["PENDING"] * 6 + ["ERROR"]
    assert api("POST", "messages/actions/", {"action": "retry", "filter": {"nonsense": "1"}}).status_code == 400
    assert api("POST", "messages/actions/", {"action": "retry", "filter": {}}).status_code == 400
    wrong = api("POST", "messages/actions/", {"action": "retry", "filter": {"id": "7,x"}})
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (400, "filter.id")
    assert api("GET", "messages/?id=x").status_code == 400
    assert [one["id"] for one in api("GET", f"messages/?id={failed[0]},{other}").json()["results"]] == [
        other,
        failed[0],
    ]


def test_many_ended_messages_do_not_hide_open_ones(
    world: World, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Contract 14
    monkeypatch.setattr(import_module("dispatch.outbox.api.messages"), "MAX_BY_FILTER", 2)
    erp = world.endpoint()
    ids = [world.send_one(erp, f"{n}", group=f"{n}") for n in range(6)]
    Message.objects.filter(pk__in=ids[:3]).update(status="COMPLETED")
    Message.objects.filter(pk__in=ids[3:]).update(status="ERROR")
    asked = {"action": "retry", "filter": {"endpoint": "ERP"}}
    assert api("POST", "messages/actions/", asked).json() == {
        "changed": 2,
        "refused": 2,
        "ids": ids[3:5],
        "next_after_id": ids[4],
    }
    assert api("POST", "messages/actions/", asked).json()["ids"] == ids[5:]


def test_send_one_or_many_and_same_key_returns_same_message(world: World, api: Any) -> None:
    world.endpoint("ERP")
    world.start()
    one = {"endpoint": "ERP", "type": "order.changed", "payload": {"name": "a", "é": [1.50, None]}, "group": "o:1"}
    first = api("POST", "messages/", {**one, "idempotency_key": "k-1"})
    again = api("POST", "messages/", {**one, "idempotency_key": "k-1"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json() == {"id": first.json()["id"], "is_new": False}
    with_header = [api("POST", "messages/", one, **{"Idempotency-Key": "h-1"}).json() for _ in range(2)]
    assert with_header[0] == with_header[1]
    direct = {"target_url": world.receiver.url + "/direct", "type": "t", "payload": {"name": "d"}}
    many = api("POST", "messages/", [{**one, "payload": {"name": f"m{n}"}} for n in range(3)] + [direct])
    assert many.status_code == 202, many.text
    assert len(many.json()["messages"]) == 4
    world.all_end()
    assert world.receiver.of("o:1") == ["a", "a", "m0", "m1", "m2"]
    detail = api("GET", f"messages/{first.json()['id']}/").json()
    assert (detail["status"], detail["why"]) == ("COMPLETED", "Delivered.")
    assert detail["payload"] == one["payload"]
    assert detail["attempts_made"][0]["status_code"] == 200


def test_endpoints_of_an_organization_are_limited(world: World, api: Any, settings: Any) -> None:
    """Each event of an organization is compared with each of them."""
    settings.OUTBOX_MAX_ENDPOINTS = 2
    for name in ("ERP", "CRM"):
        assert api("POST", "endpoints/", {"name": name, "url": world.receiver.url}).status_code == 201
    refused = api("POST", "endpoints/", {"name": "BI", "url": world.receiver.url})
    assert refused.status_code == 409
    assert refused.json()["type"] == "urn:dispatch:problem:too_many"
    assert refused.json()["detail"] == "An organization has at most 2 endpoints."
    world.endpoint("theirs", organization=factories.organization())
    assert Endpoint.objects.of(world.organization).count() == 2


def test_message_with_very_many_attempts_shows_the_last_ones(world: World, api: Any) -> None:
    """A message may be replayed any number of times, and each attempt keeps up to 4 KB of its response."""
    message = Message.objects.get(pk=world.send_one(world.endpoint("ERP"), "a"))
    Attempt.objects.bulk_create(
        Attempt(
            organization=message.organization, message=message, number=number, epoch=number, outcome="failed",
            ended_at=clock.now(),
        )
        for number in range(1, MAX_LATEST + 6)
    )  # fmt: skip
    shown = api("GET", f"messages/{message.pk}/").json()["attempts_made"]
    assert [attempt["number"] for attempt in shown] == list(range(6, MAX_LATEST + 6))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"type": "t", "payload": {}}, "endpoint"),
        ({"type": "t", "payload": {}, "endpoint": "nobody"}, "endpoint"),
        ({"type": "t", "payload": {}, "target_url": "ftp://x.example/"}, "target_url"),
        ({"type": "t", "payload": {}, "target_url": "https://a:b@x.example/"}, "target_url"),
        ({"type": "t", "payload": {}, "target_url": "http://169.254.169.254/latest/meta-data/"}, "target_url"),
        ({"type": "t", "payload": {}, "target_url": "http://10.0.0.7/hook"}, "target_url"),
        ({"type": "t", "payload": {}, "target_url": "http://x.example:6379/"}, "target_url"),
        ({"type": "t", "payload": {"half": "\ud800"}, "target_url": "https://x.example/"}, "payload.half"),
        ({"type": "t", "payload": {"nul": "\x00"}, "target_url": "https://x.example/"}, "payload.nul"),
        ({"type": "spaces are not", "payload": {}, "target_url": "https://x.example/"}, "type"),
        ({"type": "t", "target_url": "https://x.example/"}, "payload"),
        ({"type": "t", "payload": {}, "target_url": "https://x.example/", "mode": "LATER"}, "mode"),
        ({"type": "t", "payload": {}, "target_url": "https://x.example/", "gruop": "job:7"}, "gruop"),
        ({**DIRECT, "scheduled_for": "9999-12-31T23:59:59Z"}, "scheduled_for"),
        ({**DIRECT, "scheduled_for": "2050-01-02T00:00:00Z"}, "scheduled_for"),
        ({**DIRECT, "scheduled_for": LATER, "expires_at": LATER}, "expires_at"),
        ([{**DIRECT}, {**DIRECT, "sequence": "first"}], "1.sequence"),
        ([], None),
    ],
)
def test_invalid_messages_are_rejected_by_field(world: World, api: Any, body: object, field: str | None) -> None:
    answer = api("POST", "messages/", body)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == field
    assert not Message.objects.exists()


def test_messages_and_endpoints_of_others_do_not_exist(world: World, api: Any) -> None:
    stranger = factories.organization()
    theirs = world.endpoint("Theirs", organization=stranger)
    message = world.send_one(theirs, "a")
    assert api("GET", f"messages/{message}/").status_code == 404
    assert api("POST", f"messages/{message}/cancel/").status_code == 404
    assert api("GET", "messages/").json()["results"] == []
    assert api("GET", "message-groups/").json()["results"] == []
    sent = api("POST", "messages/", {"endpoint": "Theirs", "type": "t", "payload": {}})
    assert sent.status_code == 400
    many = api("POST", "messages/actions/", {"action": "cancel", "filter": {"status": "PENDING"}})
    assert many.json()["changed"] == 0
    assert world.status(message) == "PENDING"


def test_undelivered_message_expires_and_unblocks_its_group(world: World) -> None:
    from datetime import timedelta

    from dispatch.core import clock

    erp = world.endpoint()
    world.receiver.hold("a")
    _, late = world.send_one(erp, "a"), world.send_one(erp, "b", expires_at=clock.now() + timedelta(seconds=60))
    last = world.send_one(erp, "c")
    world.start()
    world.receiver.got("a")
    world.travel(61)
    world.receiver.let_go("a")
    world.becomes(last, "COMPLETED")
    world.start_recovery()
    world.becomes(late, "EXPIRED")
    assert world.receiver.names == ["a", "c"]
    assert wait_until(lambda: world.told(late)[-1] == "expired")


def test_a_retry_by_hand_after_the_expiry_is_sent(world: World) -> None:
    # Contract 14
    erp = world.endpoint(expire_after_s=600, retry_schedule_s=[])
    world.receiver.answer("a", 500, times=1)
    message = world.send_one(erp, "a")
    world.start()
    world.becomes(message, "ERROR")
    world.travel(3600)
    world.act("retry", message)
    expires_at = world.message(message).expires_at
    assert expires_at is not None
    assert 590 < (expires_at - clock.now()).total_seconds() <= 600
    world.becomes(message, "COMPLETED")
