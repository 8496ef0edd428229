"""Replay: messages that ended are sent again, in order, under the same id, and recorded with who did it."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module

import pytest
from django.db import transaction

from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.privacy.personal_data import DataSubject, StillNeeded, erase_person
from dispatch.outbox.models import Attempt, Message
from dispatch.outbox.services.actions import Action, act_on_messages
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.harness.outbox import World
from tests.support import factories

MARIA = Actor("user", 7, "Maria")


@pytest.fixture
def api(world: World) -> Api:
    return Api(key=factories.api_key(world.organization))


def test_replayed_messages_keep_their_order_id_and_history(world: World) -> None:
    erp = world.endpoint()
    ids = world.send(erp, "a", "b", "c")
    world.start()
    world.all_end()
    world.stop()
    waiting = world.send_one(erp, "d")
    act_on_messages(Action.REPLAY, [ids[2], ids[0]], actor=MARIA, note="they lost it")
    assert world.statuses([*ids, waiting]) == ["PENDING", "COMPLETED", "PENDING", "PENDING"]
    world.start()
    world.all_end()
    assert world.receiver.names == ["a", "b", "c", "a", "c", "d"]
    first, again = (world.receiver.visits[at] for at in (0, 3))
    assert first.headers["webhook-id"] == again.headers["webhook-id"]
    assert first.body == again.body
    assert "dispatch-replay" not in first.headers
    assert again.headers["dispatch-replay"] == "1"
    assert "dispatch-replay" not in world.receiver.visits[-1].headers
    assert list(Attempt.objects.filter(message=ids[0]).values_list("number", flat=True)) == [1, 2]
    event = Event.objects.get(subject_type="message", subject_id=ids[0], kind="message.replayed")
    assert (event.actor_label, event.data["note"]) == ("Maria", "they lost it")


def test_a_replay_waits_for_the_message_in_flight_and_blocks_by_its_mode(world: World) -> None:
    erp = world.endpoint()
    old = world.send_one(erp, "old")
    world.start()
    world.becomes(old, "COMPLETED")
    world.receiver.hold("now")
    now = world.send_one(erp, "now")
    world.receiver.count(2)
    world.receiver.answer("old", 422)
    world.act("replay", old)
    later = world.send_one(erp, "later")
    assert world.status(now) == "PROCESSING"
    world.receiver.let_go("now")
    world.becomes(old, "ERROR")
    assert world.receiver.names == ["old", "now", "old"]
    assert world.status(later) == "PENDING"
    world.receiver.heal()
    world.act("retry", old)
    world.all_end()
    assert world.receiver.names == ["old", "now", "old", "old", "later"]


def test_only_what_has_ended_and_still_has_content_is_replayed(world: World, api: Api) -> None:
    erp = world.endpoint(is_paused=True)
    waiting, erased, canceled = world.send(erp, "waiting", "erased", "canceled", mode="IMMEDIATE")
    world.act("cancel", erased, canceled)
    Message.objects.filter(pk=erased).update(payload="{}", erased_at=clock.now())
    done = world.act("replay", waiting, erased, canceled)
    assert (done.changed, done.refused) == ([canceled], {waiting: "PENDING", erased: "CANCELLED"})
    refused = api.post(f"messages/{erased}/replay/")
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (409, "conflict")
    assert "erased" in refused.json()["errors"][0]["detail"]


def test_an_erased_message_is_not_retried(world: World, api: Api) -> None:
    phone = "+16025550123"
    failed, empty = world.send(world.endpoint(is_paused=True), phone, "empty", mode="IMMEDIATE")
    Message.objects.filter(pk=empty).update(payload="{}")
    Message.objects.update(status="ERROR", last_error="HTTP 500", ended_at=clock.now())
    erase_person(DataSubject(world.organization.pk, phone=phone), actor=MARIA)
    refused = api.post(f"messages/{failed}/retry/")
    assert refused.status_code == 409
    assert refused.json()["errors"][0]["detail"].startswith(
        "Only an ERROR whose content was not erased can be retried"
    )
    assert world.act("retry", failed, empty).changed == [empty]  # a client may send an empty object
    assert world.act("ignore", failed).changed == [failed]


def test_a_canceled_message_in_flight_is_not_replayed(world: World) -> None:
    message = world.send_one(world.endpoint(), "a")
    world.receiver.hold("a")
    world.start()
    world.receiver.got("a")
    world.act("cancel", message)
    assert world.act("replay", message).refused == {message: "CANCELLED"}
    world.receiver.let_go("a")
    world.rests()
    world.act("replay", message)
    world.becomes(message, "COMPLETED")


def test_an_expired_message_gets_a_new_expiry(world: World) -> None:
    erp = world.endpoint(expire_after_s=60, is_paused=True)
    message = world.send_one(erp, "a")
    world.travel(61)
    world.start_recovery()
    world.becomes(message, "EXPIRED")
    world.act("replay", message)
    erp.is_paused = False
    erp.save()
    world.start()
    world.becomes(message, "COMPLETED")


@pytest.mark.parametrize(("word", "status"), [("replay", "CANCELLED"), ("retry", "ERROR")])
def test_a_message_gets_the_same_lifetime_each_time(world: World, word: str, status: str) -> None:
    message = world.send_one(world.endpoint(expire_after_s=60, is_paused=True), "a")
    for _ in range(3):
        world.travel(1000)
        Message.objects.filter(pk=message).update(status=status, ended_at=clock.now())
        begun = clock.now()
        assert world.act(word, message).changed == [message]
        expires_at = world.message(message).expires_at
        assert expires_at is not None
        assert begun + timedelta(seconds=60) <= expires_at <= clock.now() + timedelta(seconds=60)


def test_what_is_replayed_during_an_erasure_keeps_its_content(world: World) -> None:
    phone = "+16025550123"
    message = world.send_one(world.endpoint(is_paused=True), phone)
    world.act("cancel", message)
    person = DataSubject(world.organization.pk, phone=phone)
    with transaction.atomic():
        world.act("replay", message)
        erasure = Elsewhere(lambda: erase_person(person, actor=MARIA))
        erasure.wait_for_lock()
    with pytest.raises(StillNeeded, match=f"Message {message} is not delivered yet"):
        erasure.finish()
    assert phone in world.message(message).payload
    world.act("cancel", message)
    assert erase_person(person, actor=MARIA)["outbox"] == 1
    assert world.act("replay", message).refused == {message: "CANCELLED"}


def test_everything_of_an_endpoint_since_a_moment_in_parts(
    world: World, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    erp, other = world.endpoint("ERP", is_paused=True), world.endpoint("CRM", is_paused=True)
    before = world.send(erp, "early", group="g")
    world.travel(3600)
    since = clock.now()
    ours = world.send(erp, *"abc", group="g")
    theirs = world.send(other, "x", group="g")
    world.travel(3600)
    until = clock.now()
    late = world.send(erp, "late", group="h")
    world.act("cancel", *before, *ours, *theirs, *late)
    monkeypatch.setattr(import_module("dispatch.outbox.api.messages"), "MAX_BY_FILTER", 2)
    asked = {"since": since.isoformat(), "until": until.isoformat(), "group": "g", "note": "restored a backup"}
    answer = api.post(f"endpoints/{erp.pk}/replay/", asked).json()
    assert (answer["changed"], answer["ids"], answer["next_after_id"]) == (2, ours[:2], ours[1])
    answer = api.post(f"endpoints/{erp.pk}/replay/", {**asked, "after_id": answer["next_after_id"]}).json()
    assert (answer["ids"], answer["next_after_id"]) == (ours[2:], None)
    assert world.statuses([*before, *theirs, *late]) == ["CANCELLED"] * 3
    assert set(Message.objects.filter(pk__in=ours).values_list("replays", flat=True)) == {1}
    wrong = api.post(f"endpoints/{erp.pk}/replay/", {**asked, "until": since.isoformat()})
    assert [error["field"] for error in wrong.json()["errors"]] == ["until"]


def test_by_a_filter_over_the_api(world: World, api: Api) -> None:
    erp = world.endpoint("ERP", is_paused=True)
    ids = world.send(erp, "a", "b", group="g") + world.send(erp, "c", group="h")
    world.act("cancel", *ids)
    asked = {"action": "replay", "filter": {"endpoint": "ERP", "status": "CANCELLED", "group": "g"}}
    assert api.post("messages/actions/", asked).json()["ids"] == ids[:2]
    shown = api.get(f"messages/{ids[0]}/").json()
    assert (shown["status"], shown["replays"]) == ("PENDING", 1)
    found = api.get(f"messages/?webhook_id={shown['webhook_id']}").json()
    assert [message["id"] for message in found["results"]] == [ids[0]]


def test_times_of_creation_bound_the_search(world: World, api: Api) -> None:
    erp = world.endpoint("ERP", is_paused=True)
    ids = []
    for name in "abcd":
        ids += world.send(erp, name)
        world.travel(7200)
    # A machine whose clock was half an hour behind accepted the last one.
    Message.objects.filter(pk=ids[3]).update(created_at=clock.now() - timedelta(hours=2, minutes=30))
    asked = (clock.now() - timedelta(hours=2, minutes=45)).isoformat().replace("+00:00", "Z")

    def found(query: str) -> list[int]:
        return sorted(message["id"] for message in api.get(f"messages/?{query}").json()["results"])

    assert found(f"created_after={asked}") == ids[3:]
    assert found(f"created_before={asked}") == ids[:3]
    assert found("created_after=0001-01-01T00:00:00Z") == ids
    assert found("created_before=9999-12-31T23:59:59Z") == ids


def test_a_message_of_an_earlier_version_keeps_its_id(world: World) -> None:
    message = world.send_one(world.endpoint(), "a")
    Message.objects.filter(pk=message).update(webhook_id=None)
    fresh = world.send_one(Message.objects.get(pk=message).endpoint, "b")
    world.start()
    world.all_end()
    sent = {visit.name: visit.headers["webhook-id"] for visit in world.receiver.visits}
    assert sent == {"a": f"msg_{message}", "b": world.message(fresh).webhook_id}
    assert len(sent["b"]) == len("msg_") + 32
