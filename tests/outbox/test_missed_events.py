"""Events that an endpoint missed are sent afterwards: counted first, in order, each once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.outbox.event_reader import READER
from dispatch.outbox.models import Message
from dispatch.outbox.services import missed_events
from tests.api.client import Api
from tests.core.horizon import all_readable
from tests.harness.outbox import World
from tests.support import factories

MARIA = Actor("user", 7, "Maria")


@pytest.fixture
def api(world: World) -> Api:
    return Api(key=factories.api_key(world.organization))


def read_all() -> None:
    all_readable()
    while READER.step():
        pass


def happens(world: World, *names: str, kind: str = "job.created") -> None:
    for number, name in enumerate(names):
        events.append(world.organization.pk, kind, number + 1, name=name, job_id=1)


def names_of(found: Any) -> list[str]:
    return [event.data["name"] for event in found.events]


def test_a_new_endpoint_gets_what_happened_before(world: World, api: Api) -> None:
    since = clock.now() - timedelta(minutes=1)
    happens(world, "a", "b")
    happens(world, "other type", kind="lead.created")
    events.append(factories.organization("Other").pk, "job.created", 1, name="theirs")
    read_all()
    erp = world.endpoint(event_types=["job.*"])
    happens(world, "c")
    read_all()
    asked = {"since": since.isoformat()}
    preview = api.post(f"endpoints/{erp.pk}/send-missed/", {**asked, "preview": True}).json()
    assert (preview["count"], preview["types"], preview["next_after_id"]) == (2, {"job.created": 2}, None)
    assert Message.objects.count() == 1
    sent = api.post(f"endpoints/{erp.pk}/send-missed/", {**asked, "note": "new system"})
    assert (sent.status_code, sent.json()["count"]) == (202, 2)
    assert api.post(f"endpoints/{erp.pk}/send-missed/", asked).json()["count"] == 0
    made = Message.objects.order_by("id").values_list("event_id", flat=True)
    by_id = dict(Event.objects.values_list("id", "data"))
    assert [by_id[key]["name"] for key in made] == ["c", "a", "b"]
    event = Event.objects.get(kind="endpoint.missed_sent")
    assert (event.data["messages"], event.data["reason"]) == (2, "new system")
    world.start()
    world.all_end()


def test_an_endpoint_disabled_for_long_gets_no_messages_until_they_are_sent(world: World, settings: Any) -> None:
    settings.OUTBOX_DISABLED_KEEP_S = 3600.0
    erp = world.endpoint(event_types=["*"], disabled_at=clock.now() - timedelta(minutes=30))
    happens(world, "kept")
    read_all()
    erp.disabled_at = clock.now() - timedelta(hours=2)
    erp.save()
    happens(world, "missed")
    read_all()
    assert Message.objects.count() == 1
    with pytest.raises(Conflict, match="disabled"):
        missed_events.send_missed(erp, clock.now() - timedelta(hours=1), actor=MARIA)
    erp.disabled_at = None
    erp.save()
    assert names_of(missed_events.send_missed(erp, clock.now() - timedelta(hours=1), actor=MARIA)) == ["missed"]
    assert Message.objects.count() == 2


def test_missed_events_are_sent_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_events, "MAX_EVENTS", 2)
    since = clock.now() - timedelta(minutes=1)
    happens(world, "a", "b", "c")
    read_all()
    erp = world.endpoint(event_types=["job.created"])
    first = missed_events.send_missed(erp, since, actor=MARIA)
    assert names_of(first) == ["a", "b"]
    assert first.next_after_id == first.events[-1].pk
    rest = missed_events.send_missed(erp, since, after_id=first.next_after_id, actor=MARIA)
    assert (names_of(rest), rest.next_after_id) == (["c"], None)


def test_events_outside_the_range_and_those_not_read_yet_are_not_missed(world: World) -> None:
    happens(world, "before")
    Event.objects.filter(data__name="before").update(at=clock.now() - timedelta(days=2))
    happens(world, "within")
    read_all()
    happens(world, "not read")
    erp = world.endpoint(event_types=["*"])
    assert names_of(missed_events.find_missed(erp, clock.now() - timedelta(days=1))) == ["within"]
    past = missed_events.find_missed(erp, clock.now() - timedelta(days=3), until=clock.now() - timedelta(days=1))
    assert names_of(past) == ["before"]
    read_all()
    assert names_of(missed_events.find_missed(erp, clock.now() - timedelta(days=1))) == ["within"]


def test_failures_are_missed_only_where_they_are_subscribed(world: World) -> None:
    everything, failures = (
        world.endpoint("All", event_types=["*"]),
        world.endpoint("Failures", event_types=["x.y"]),
    )
    events.append(world.organization.pk, "message.failed", 5, endpoint_id=everything.pk, name="failure")
    read_all()
    failures.event_types = ["message.failed"]
    failures.save()
    since = clock.now() - timedelta(minutes=1)
    assert names_of(missed_events.find_missed(everything, since)) == []
    assert names_of(missed_events.find_missed(failures, since)) == ["failure"]
