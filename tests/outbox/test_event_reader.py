"""Events become messages, and the reason why a message waits is shown.

Each event becomes one message per endpoint, by wildcard, in the group of its subject.
"""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import requests
import standardwebhooks
from django.db import transaction
from standardwebhooks.webhooks import WebhookVerificationError

from dispatch.core import clock, events
from dispatch.core.models import EventCursor
from dispatch.outbox import event_reader, loops
from dispatch.outbox.event_reader import READER, create_messages
from dispatch.outbox.explain import why_stuck
from dispatch.outbox.models import Endpoint, Message, MessageGroup
from dispatch.outbox.rules import conditions
from dispatch.outbox.services import endpoints
from dispatch.outbox.services.intake import NewMessage, accept_messages
from dispatch.outbox.services.scheduling import lock_groups
from tests.core.horizon import all_readable
from tests.core.threads import Elsewhere
from tests.harness.outbox import World
from tests.support import factories
from tests.support.row_locks import held


def read_all() -> None:
    all_readable()
    while READER.step():
        pass


def test_subscribed_events_are_delivered_once_in_their_subjects_order(world: World) -> None:
    world.endpoint("all", event_types=["*"])
    world.endpoint("assigned", event_types=["job.assigned", "lead.*"], url=world.receiver.url + "/assigned")
    world.endpoint("nothing", event_types=[])
    organization = world.organization.pk
    for kind, subject, data in [
        ("job.created", 1, {}),
        ("offer.made", 9, {"job_id": 1}),
        ("job.assigned", 1, {}),
        ("job.created", 2, {}),
    ]:
        events.append(organization, kind, subject, **data)
    read_all()
    world.start()
    world.all_end()
    read_all()  # what the deliveries themselves wrote makes no message
    got = [(v.path, v.name, v.group) for v in world.receiver.visits]
    assert [(n, g) for p, n, g in got if p == "/hook" and g == "job:1"] == [
        ("job.created", "job:1"),
        ("offer.made", "job:1"),
        ("job.assigned", "job:1"),
    ]
    assert [n for p, n, _ in got if p == "/hook/assigned"] == ["job.assigned"]
    assert Message.objects.filter(endpoint__name="all", event_id__isnull=False).count() == 4
    assert not Message.objects.filter(endpoint__name="nothing").exists()
    body = json.loads(world.receiver.visits[0].body)
    assert set(body) == {"type", "timestamp", "data"}
    assert body["data"]["subject"]["type"] == "job"


def test_an_event_read_twice_makes_one_message(world: World) -> None:
    world.endpoint("all", event_types=["job.*"])
    event = events.append(world.organization.pk, "job.created", 1)
    create_messages([event])
    create_messages([event])
    EventCursor.objects.filter(name="outbox").delete()
    read_all()
    assert Message.objects.filter(event_id=event.pk).count() == 1


def test_the_locks_of_groups_are_taken_in_one_order_whosever_they_are(world: World) -> None:
    """Otherwise the reader and the end of an attempt, which lock groups of many organizations, could deadlock."""
    mine, theirs = world.endpoint("mine", event_types=["job.*"]), factories.organization()
    world.endpoint("theirs", event_types=["job.*"], organization=theirs)
    assert mine.organization_id < theirs.pk
    for organization in (theirs.pk, mine.organization_id):  # theirs has the lower id
        create_messages([events.append(organization, "job.created", 1)])
    low, high = MessageGroup.objects.order_by("pk")
    news = [events.append(organization, "job.assigned", 1) for organization in (mine.organization_id, theirs.pk)]
    with transaction.atomic():
        lock_groups([low.pk])
        reading = Elsewhere(lambda: create_messages(news))
        reading.wait_for_lock()
        MessageGroup.objects.select_for_update(nowait=True).get(pk=high.pk)
    reading.finish()
    assert Message.objects.filter(event_id__in=[event.pk for event in news]).count() == 2


def test_the_reader_does_not_wait_for_a_locked_group(world: World) -> None:
    world.endpoint("all", event_types=["job.*"])
    organization = world.organization.pk
    create_messages([events.append(organization, "job.created", 1)])
    EventCursor.objects.filter(name="outbox").delete()
    read_all()
    first = events.append(organization, "job.assigned", 1)
    other = events.append(organization, "job.created", 2)
    second = events.append(organization, "job.completed", 1)
    with held(MessageGroup.objects.get()):
        read_all()
        assert Message.objects.filter(event_id=other.pk).exists()
        assert not Message.objects.filter(event_id__in=[first.pk, second.pk]).exists()
    clock.travel(10)
    read_all()
    of_job = Message.objects.filter(event_id__in=[first.pk, second.pk]).order_by("pk")
    assert list(of_job.values_list("event_id", flat=True)) == [first.pk, second.pk]


@pytest.mark.parametrize("first_mode", ["BLOCK_ON_ERROR", "IMMEDIATE"])
def test_batch_locks_groups_in_order_regardless_of_mode(world: World, first_mode: str) -> None:
    erp = world.endpoint()
    for group in ("low", "high"):
        world.send_one(erp, "a", group=group)
    low, high = (world.group(name) for name in ("low", "high"))
    second_mode = {"BLOCK_ON_ERROR": "IMMEDIATE", "IMMEDIATE": "BLOCK_ON_ERROR"}[first_mode]
    batch = [
        NewMessage(type="t", payload="{}", endpoint=erp, group=group, mode=mode)
        for group, mode in (("low", first_mode), ("high", second_mode))
    ]
    with transaction.atomic():
        lock_groups([low.pk])
        taking_in = Elsewhere(lambda: accept_messages(erp.organization_id, batch))
        taking_in.wait_for_lock()
        MessageGroup.objects.select_for_update(nowait=True).get(pk=high.pk)
    taking_in.finish()


def test_unrelated_events_are_ignored_and_disabled_endpoints_catch_up(
    world: World,
) -> None:
    waiting = world.endpoint("waiting", event_types=["*"], disabled_at=clock.now())
    events.append(factories.organization().pk, "job.created", 1)
    events.append(world.organization.pk, "message.completed", 1)
    kept = events.append(world.organization.pk, "job.created", 2)
    read_all()
    assert list(Message.objects.values_list("event_id", flat=True)) == [kept.pk]
    world.poll()
    assert Message.objects.get().status == "PENDING"
    assert "disabled" in why_stuck(Message.objects.get(endpoint=waiting))


def test_reasons_for_waiting_are_described(world: World, app_url: str) -> None:
    erp = world.endpoint()
    world.receiver.answer("bad", 422)
    bad, held = world.send(erp, "bad", "held")
    now = world.send_one(erp, "later", group="h", scheduled_for=clock.now() + timedelta(hours=1))
    assert "next poll" in why_stuck(world.message(bad))
    assert f"Message {bad}" in why_stuck(world.message(held))
    assert "Scheduled" in why_stuck(world.message(now))
    world.start()
    world.becomes(bad, "ERROR")
    assert "The receiver answered 422." in why_stuck(world.message(bad))
    assert f"blocked by the error of message {bad}" in why_stuck(world.message(held))
    key = factories.api_key(world.organization)
    answer = requests.get(
        f"{app_url}/api/v1/message-groups/?blocked=true", headers={"Authorization": f"Bearer {key}"}, timeout=60
    )
    assert [(g["name"], g["blocked_by"]) for g in answer.json()["results"]] == [("g", bad)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"is_paused": True}, "paused"),
        ({"disabled_at": "now"}, "disabled"),
    ],
)
def test_disabled_parts_are_named_as_the_reason(world: World, change: dict, words: str) -> None:
    erp = world.endpoint()
    message = world.send_one(erp, "a")
    for name, value in change.items():
        setattr(erp, name, clock.now() if value == "now" else value)
    erp.save()
    assert words in why_stuck(world.message(message))


def test_a_content_type_of_the_endpoints_own_is_sent_however_it_is_written(world: World) -> None:
    world.send(world.endpoint("own", headers={"content-type": "application/vnd.acme+json"}), "a")
    world.send(world.endpoint("plain"), "b", group="h")
    world.start()
    world.all_end()
    sent = {visit.name: visit.headers["content-type"] for visit in world.receiver.visits}
    assert sent == {"a": "application/vnd.acme+json", "b": "application/json"}


def test_received_message_passes_the_reference_library(world: World) -> None:
    erp = world.endpoint()
    before = erp.secret
    _, after, _ = endpoints.rotate_secret(erp.pk, actor=events.SYSTEM)
    payload = {"name": "a", "customer": "Müller \u2603 عربي", "amount": 1.50}
    accept_messages(world.organization.pk, [NewMessage(type="t", payload=json.dumps(payload), endpoint=erp)])
    world.start()
    world.all_end()
    (visit,) = world.receiver.visits
    for secret in (before, after):
        assert standardwebhooks.Webhook(secret).verify(visit.body, visit.headers) == payload
    with pytest.raises(WebhookVerificationError):
        standardwebhooks.Webhook(after).verify(visit.body.replace(b"1.5", b"9.5"), visit.headers)


def test_organization_with_very_many_endpoints_gets_its_messages_in_several_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction with all of them would use all memory. The events of others do not wait for them."""
    monkeypatch.setattr(event_reader.READER, "most", 6)
    for number in range(4):
        world.endpoint(f"all {number}", event_types=["*"])
    theirs = factories.organization()
    world.endpoint("theirs", event_types=["*"], organization=theirs)
    for subject in range(5):
        events.append(world.organization.pk, "job.created", subject)
    events.append(theirs.pk, "job.created", 9)
    all_readable()
    of_theirs = Message.objects.filter(organization=theirs)
    again = [(loops.read_events(), Message.objects.count(), of_theirs.count()) for _ in range(5)]
    assert again == [(0.0, 5, 1), (0.0, 9, 1), (0.0, 13, 1), (0.0, 17, 1), (None, 21, 1)], "at once"
    events.append(world.organization.pk, "job.created", 7)  # nothing was passed over
    read_all()
    assert Message.objects.count() == 25


def test_condition_of_an_endpoint_is_parsed_once_for_all_events_of_a_batch(world: World) -> None:
    parsed = conditions.parse_condition
    remembered = parsed.cache_info().maxsize
    assert remembered
    endpoint = world.endpoint("0", event_types=["*"], condition="data.place == 'x0'")
    Endpoint.objects.bulk_create(
        Endpoint(
            organization=endpoint.organization, pool=endpoint.pool, name=str(number), url=endpoint.url, secret="x",
            event_types=["*"], condition=f"data.place == 'x{number}'",
        )
        for number in range(1, remembered + 10)
    )  # fmt: skip
    news = [events.append(world.organization.pk, "job.created", place, place=str(place)) for place in range(3)]
    parsed.cache_clear()
    create_messages(news)
    assert parsed.cache_info().misses == remembered + 10
    assert not Message.objects.exists()
