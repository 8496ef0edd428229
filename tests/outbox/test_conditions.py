"""Conditions decide which events an endpoint gets; their cost is bounded; they are tried before they are saved."""

from __future__ import annotations

import pytest

from dispatch.core import clock, events
from dispatch.outbox.event_reader import READER
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.rules import conditions
from dispatch.outbox.rules.conditions import ConditionFailed, InvalidCondition
from dispatch.outbox.services import missed_events
from tests.api.client import Api
from tests.core.horizon import all_readable
from tests.harness.outbox import World
from tests.support import factories

BODY = {"type": "job.created", "data": {"priority": "emergency", "n": 3, "tags": ["a", "b"], "empty": []}}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("data.priority == 'emergency'", True),
        ("data.priority != 'emergency'", False),
        ("data.n > `2` && contains(data.tags, 'a')", True),
        ("data.n > `3`", False),
        ("data.absent", False),
        ("data.empty", False),
        ("!(data.absent)", True),
        ("data.n", True),
        ("`0`", True),
        ("data.tags[?@ == 'b']", True),
        ("data.tags[?@ == 'c']", False),
        ("data.tags[0:1] | length(@) == `1`", True),
        ("starts_with(data.priority, 'emer')", True),
        ('contains(`["emergency", "urgent"]`, data.priority)', True),
        ('data.tags == `["a"]`', False),
    ],
)
def test_condition_holds_as_in_jmespath(text: str, holds: bool) -> None:
    assert conditions.evaluate_condition(text, BODY) is holds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("data.", "Not a JMESPath expression"),
        ("data.priority = 'x'", "Not a JMESPath expression"),
        ("'", "Not a JMESPath expression"),
        ("!" * 400 + "a", "parts"),
        ("(" * 250 + "a" + ")" * 250, ""),
        ("a" * 501, "at most 500 characters"),
        ("[@,@]" + "|[@,@]" * 20, "multi select list"),
        ("{a: @}", "multi select dict"),
        ("a[]", "flatten"),
        ("sort_by(a, &b)", "sort_by"),
        ("to_string(@)", "to_string"),
        ("join('', a)", "join"),
        ("nonsense(@)", "nonsense"),
        (" || ".join(f"a{n}" for n in range(60)), "at most 100 parts"),
        ("data.tags[?`[1, 1, 1]`[?`[1, 1, 1]`[?@]]]", "literal list"),
        ("data.tags[*].not_null(`[1, 1, 1]`)[*].not_null(`[1, 1, 1]`)", "literal list"),
        ('`{"a": 1, "b": 1}`.*', "literal list"),
    ],
)
def test_condition_is_refused_when_it_is_saved(text: str, why: str) -> None:
    if not why:  # parentheses are no parts: whether they nest too deeply is the parser's decision
        try:
            conditions.parse_condition(text)
        except InvalidCondition:
            return
        assert conditions.evaluate_condition(text, {"a": 1})
        return
    with pytest.raises(InvalidCondition, match=why):
        conditions.parse_condition(text)


def test_condition_that_does_not_fit_a_payload_fails() -> None:
    for text in ("starts_with(data.absent, 'a')", "length(data.n)", "abs(data.priority)"):
        with pytest.raises(ConditionFailed):
            conditions.evaluate_condition(text, BODY)


def happens(world: World, *names: str) -> None:
    for number, name in enumerate(names):
        events.append(world.organization.pk, "job.created", number + 1, name=name)
    all_readable()
    while READER.step():
        pass


def test_only_events_for_which_the_condition_holds_become_messages(world: World) -> None:
    since = clock.now()
    some = world.endpoint("Some", event_types=["job.*"], condition="starts_with(data.name, 'a')")
    broken = world.endpoint("Broken", event_types=["job.*"], condition="length(data.absent)")
    everything = world.endpoint("All", event_types=["job.*"])
    happens(world, "a1", "b1", "a2")
    counts = {
        endpoint.name: Message.objects.filter(endpoint=endpoint).count() for endpoint in Endpoint.objects.all()
    }
    assert counts == {"Some": 2, "Broken": 0, "All": 3}
    assert missed_events.find_missed(some, since).events == []
    some.condition = ""
    some.save()
    assert [event.data["name"] for event in missed_events.find_missed(some, since).events] == ["b1"]
    world.send_one(broken, "addressed by name")
    assert Message.objects.filter(endpoint=broken).count() == 1
    assert Message.objects.filter(endpoint=everything).count() == 3


def test_condition_is_tried_and_saved_with_the_api(world: World) -> None:
    api = Api(key=factories.api_key(world.organization))
    erp = world.endpoint(event_types=["job.*"])
    happens(world, "a1", "b1")
    events.append(factories.organization("Other").pk, "job.created", 1, name="theirs")
    tried = api.post(f"endpoints/{erp.pk}/try-condition/", {"condition": "data.name == 'a1'"})
    assert [(one["type"], one["holds"]) for one in tried.json()] == [("job.created", False), ("job.created", True)]
    failing = api.post(f"endpoints/{erp.pk}/try-condition/", {"condition": "length(data.absent)"}).json()
    assert not failing[0]["holds"]
    assert "length()" in failing[0]["error"]
    refused = api.patch(f"endpoints/{erp.pk}/", {"condition": "data."})
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["field"] == "condition"
    saved = api.patch(f"endpoints/{erp.pk}/", {"condition": "data.name == 'a1'"})
    assert (saved.status_code, saved.json()["condition"]) == (200, "data.name == 'a1'")
