"""The event catalog: types and versions, validation of messages, publishing, and the events of Dispatch."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db.models.signals import post_init
from django.test import Client
from django.urls import reverse
from drf_spectacular.validation import validate_schema

from accounts.models import User
from dispatch.core import events
from dispatch.core.models import Event
from dispatch.outbox import catalog
from dispatch.outbox.event_reader import READER
from dispatch.outbox.http_delivery import REPLAY_HEADER
from dispatch.outbox.models import EventType, EventTypeVersion, Message
from dispatch.outbox.rules import schemas
from dispatch.outbox.services import endpoints, target_health
from dispatch.schedules.rules import states as run_states
from dispatch.telephony.models import Call, Text
from tests.api.client import Api
from tests.core.horizon import all_readable
from tests.harness.outbox import World
from tests.support import factories
from tests.support.event_sources import find_sources
from tests.support.factories import browser

pytestmark = pytest.mark.django_db(transaction=True)
# Events of messages, and of the installation.
NOT_DELIVERED = ("message.", "installation.", "user.")
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "customer": {"type": "object", "required": ["email"]}},
    "required": ["id"],
}


@pytest.fixture
def api(world: World) -> Api:
    return Api(key=factories.api_key(world.organization))


def add(api: Api, name: str = "order.changed", **fields: Any) -> dict[str, Any]:
    answer = api.post("event-types/", {"name": name, **fields})
    assert answer.status_code == 201, answer.content
    return answer.json()


def errors(answer: Any) -> dict[str, str]:
    assert answer.status_code == 400, answer.content
    return {error["field"]: error["detail"] for error in answer.json()["errors"]}


def test_another_schema_makes_a_version_and_keeps_the_earlier_one(api: Api) -> None:
    made = add(api, description="An order was changed.", schema=SCHEMA, example={"id": 17})
    assert (made["version"], made["schema"], made["example"]) == (1, SCHEMA, {"id": 17})
    at = f"event-types/{made['id']}/"
    assert api.patch(at, {"description": "Changed."}).json()["version"] == 1
    assert api.patch(at, {"schema": {"type": "object"}}).json()["version"] == 2
    assert api.patch(at, {"schema": {"type": "object"}}).json()["version"] == 2, "nothing changed"
    versions = api.get(f"{at}versions/").json()
    assert [(version["number"], version["schema"]) for version in versions] == [
        (2, {"type": "object"}),
        (1, SCHEMA),
    ]
    kinds = Event.objects.filter(subject_type="event_type").order_by("id").values_list("kind", flat=True)
    assert list(kinds) == ["event_type.added", "event_type.changed", "event_type.changed"]


def test_the_catalog_reads_only_current_versions(api: Api, world: World) -> None:
    for name in ("order.changed", "order.sent"):
        made = add(api, name, schema={"title": "0"})
        for number in range(1, 4):
            api.patch(f"event-types/{made['id']}/", {"schema": {"title": str(number)}})
    read: list[int] = []

    def count(instance: EventTypeVersion, **given: Any) -> None:
        read.append(instance.number)

    post_init.connect(count, EventTypeVersion)
    try:
        own = [entry for entry in catalog.catalog_of(world.organization.pk) if not entry.is_built_in]
    finally:
        post_init.disconnect(count, EventTypeVersion)
    assert [(entry.version, entry.schema) for entry in own] == [(4, {"title": "3"})] * 2
    assert read == [4, 4]


def test_another_json_type_of_an_equal_value_makes_a_version(api: Api) -> None:
    made = add(api, schema={"const": 1, "title": "One"}, example=1)
    at = f"event-types/{made['id']}/"
    assert api.patch(at, {"schema": {"title": "One", "const": 1}, "example": 1}).json()["version"] == 1
    found = api.patch(at, {"schema": {"const": True}, "example": True}).json()
    assert (found["version"], found["schema"], found["example"]) == (2, {"const": True}, True)
    assert api.patch(at, {"schema": {"const": 1}, "example": 1}).json()["version"] == 3


@pytest.mark.parametrize("number", [1e16, 1.5e300, -0.0, 1e-7])
def test_a_number_that_is_stored_in_another_form_makes_no_version(api: Api, number: float) -> None:
    content = {"schema": {"const": number}, "example": number}
    at = f"event-types/{add(api, **content)['id']}/"
    assert api.patch(at, content).json()["version"] == 1
    assert api.patch(at, {"schema": {"const": 2}, "example": 2}).json()["version"] == 2


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("name", {"name": "Order.changed"}),
        ("name", {"name": "order"}),
        ("name", {"name": "job.assigned"}),
        ("name", {"name": "message.failed"}),
        ("schema", {"schema": {"$ref": "https://example.com/"}}),
        ("schema", {"schema": {"type": "text"}}),
        ("schema", {"schema": [1]}),
        ("schema", {"schema": {"pattern": "(?=a)"}}),
        ("example", {"schema": SCHEMA, "example": {"id": "x"}}),
        ("example", {"example": "x" * 33_000}),
    ],
)
def test_invalid_types_are_rejected_by_field(api: Api, field: str, given: dict[str, Any]) -> None:
    assert set(errors(api.post("event-types/", {"name": "order.changed", **given}))) == {field}


def test_name_is_taken_once_and_never_changed(api: Api) -> None:
    made = add(api)
    assert api.post("event-types/", {"name": "order.changed"}).status_code in (400, 409)
    assert set(errors(api.patch(f"event-types/{made['id']}/", {"name": "order.new"}))) == {"name"}
    other = Api(key=factories.api_key(factories.organization()))
    add(other)
    assert other.get(f"event-types/{made['id']}/").status_code == 404


def test_messages_of_an_enforced_type_are_validated_with_field_names(world: World, api: Api) -> None:
    world.endpoint()
    made = add(api, schema=SCHEMA, is_enforced=True)
    message = {"endpoint": "ERP", "type": "order.changed", "payload": {"id": "x", "customer": {}}}
    assert errors(api.post("messages/", message)) == {
        "payload.id": "Must be of type integer.", "payload.customer.email": "This field is required.",
    }  # fmt: skip
    good = {**message, "payload": {"id": 1}}
    assert api.post("messages/", [good, message]).status_code == 400
    assert not Message.objects.exists()
    assert api.post("messages/", [good, good]).status_code == 202
    # Other types, other organizations and a type that does not ask for it are not validated.
    assert api.post("messages/", {**message, "type": "order.other"}).status_code == 202
    assert api.patch(f"event-types/{made['id']}/", {"is_enforced": False}).status_code == 200
    assert api.post("messages/", message).status_code == 202


def test_expensive_payload_is_refused(world: World, api: Api) -> None:
    world.endpoint()
    number = {"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 1}
    add(api, schema={"items": {"properties": {"p": number}}}, is_enforced=True)
    payload = [{"p": 1}] * 24_000
    answer = api.post("messages/", {"endpoint": "ERP", "type": "order.changed", "payload": payload})
    assert "takes too long" in errors(answer)["payload"]


def test_payload_can_be_checked_without_sending(api: Api) -> None:
    made = add(api, schema=SCHEMA)
    at = f"event-types/{made['id']}/check/"
    assert api.post(at, {"payload": {"id": 1}}).json() == {"matches": True, "problems": {}}
    assert api.post(at, {"payload": {}}).json()["problems"] == {"id": "This field is required."}
    large = api.post(at, {"payload": {"id": 1, "text": "x" * 256 * 1024}})
    assert errors(large) == {"payload": "Must be at most 262144 bytes."}


def test_payload_with_a_huge_number_is_refused_by_its_field(api: Api) -> None:
    made = add(api, schema={"properties": {"price": {"multipleOf": 1.5}}}, is_enforced=True)
    payload = {"price": 10**400}
    checked = api.post(f"event-types/{made['id']}/check/", {"payload": payload})
    assert checked.json() == {"matches": False, "problems": {"price": "Must be a multiple of 1.5."}}
    published = api.post("event-types/publish/", {"type": "order.changed", "payload": payload})
    assert errors(published) == {"payload.price": "Must be a multiple of 1.5."}


def test_published_message_goes_to_the_endpoints_that_subscribe(world: World, api: Api) -> None:
    add(api, schema=SCHEMA, is_enforced=True)
    one = world.endpoint("One", event_types=["order.changed"])
    world.endpoint("Two", event_types=["order.*"], condition="id > `5`")
    world.endpoint("Three", event_types=["job.*"])
    target_health.disable_endpoint(world.endpoint("Four", event_types=["*"]).pk, "", actor=events.SYSTEM)
    other = World(world.receiver)
    other.endpoint("Foreign", event_types=["*"])
    given = {"type": "order.changed", "payload": {"id": 1}, "group": "order:1"}
    sent = api.post("event-types/publish/", given, Idempotency_Key="a")
    assert sent.status_code == 202, sent.content
    assert [message["endpoint"] for message in sent.json()["messages"]] == ["One"]
    again = api.post("event-types/publish/", given, Idempotency_Key="a")
    assert again.json() == sent.json()
    message = Message.objects.select_related("group").get()
    assert (message.endpoint_id, message.group.name, message.payload) == (one.pk, "order:1", '{"id":1}')
    sent = api.post("event-types/publish/", {**given, "payload": {"id": 9}})
    assert [message["endpoint"] for message in sent.json()["messages"]] == ["One", "Two"]
    assert errors(api.post("event-types/publish/", {**given, "payload": {}})) == {
        "payload.id": "This field is required."
    }
    assert set(errors(api.post("event-types/publish/", {**given, "type": "job.assigned"}))) == {"type"}


def test_archived_type_leaves_the_catalog_and_returns(api: Api) -> None:
    made = add(api)
    names = [entry["name"] for entry in api.get("event-types/catalog/").json()]
    assert names[0] == "order.changed"
    assert "job.assigned" in names
    assert api.post(f"event-types/{made['id']}/archive/").json()["archived_at"]
    assert "order.changed" not in [entry["name"] for entry in api.get("event-types/catalog/").json()]
    assert api.post(f"event-types/{made['id']}/restore/").json()["archived_at"] is None


def test_every_type_of_dispatch_has_a_usable_schema_and_example() -> None:
    for place, entry in enumerate(catalog.built_in().values()):
        assert entry.schema is not None
        if place % 20 == 0:  # they are built alike, and the check is slow
            schemas.check_schema(entry.schema)
        assert not schemas.validate_payload(entry.schema, entry.example), entry.name
        assert entry.description.endswith(".")


def test_each_event_that_the_code_appends_is_in_the_catalog_with_its_fields() -> None:
    """Add new kinds and fields to event_types.json. Events of messages and of the installation go to nobody."""
    found = {kind: fields for kind, fields in find_sources().items() if not kind.startswith(NOT_DELIVERED)}
    assert len(found) > 150
    assert sorted(set(found) - set(catalog.built_in())) == []
    missing = {}
    for kind, fields in found.items():
        schema: Any = catalog.built_in()[kind].schema
        if lacking := fields - schema["properties"]["data"]["properties"].keys():
            missing[kind] = sorted(lacking)
    assert missing == {}


def test_each_status_that_is_an_event_is_in_the_catalog() -> None:
    kinds = {f"run.{verb}" for verb in run_states.LEGAL} | {f"text.{status}" for status in Text.Status.values}
    kinds |= {f"call.{status}" for status in Call.Status.values}
    assert sorted(kinds - set(catalog.built_in())) == []


def test_the_scan_of_the_code_finds_literals_helpers_and_conditions() -> None:
    found = find_sources()
    assert {"name", "fields"} <= found["exclusioncalendar.changed"]
    assert {"endpoint.paused", "endpoint.resumed"} <= set(found)
    assert found["schedule.backfilled"] >= {"runs", "since", "until"}


def test_webhooks_are_an_openapi_document_with_the_schemas_of_the_catalog() -> None:
    client = Client()
    answer = client.get("/api/v1/schema/webhooks/?format=json")
    found = answer.json()
    some = dict(list(found["webhooks"].items())[::50])
    validate_schema({**found, "webhooks": some, "components": {}})  # they are built alike, and the check is slow
    assert found["openapi"].startswith("3.1")
    assert list(found["webhooks"]) == list(catalog.built_in())
    parameters = found["components"]["parameters"]
    assert {name for name in parameters if not parameters[name]["required"]} == {"Dispatch-Group", REPLAY_HEADER}
    operations = [webhook["post"] for webhook in found["webhooks"].values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert len(found["components"]["schemas"]) == len(operations), "two types have one component"
    for operation in operations[::20]:
        content = operation["requestBody"]["content"]["application/json"]
        schema = found["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        assert not schemas.validate_payload(schema, content["example"])
    again = client.get("/api/v1/schema/webhooks/?format=json", headers={"If-None-Match": answer["ETag"]})
    assert again.status_code == 304
    assert "paths" in client.get("/api/v1/schema/?format=json").json(), "the documents are kept apart"


def test_delivered_events_match_their_schemas(world: World, api: Api) -> None:
    endpoint = world.endpoint(event_types=["*"])
    other = world.endpoint("Other")
    for act in (target_health.pause_endpoint, target_health.disable_endpoint):
        act(other.pk, "a reason", actor=events.SYSTEM)
    for undo in (target_health.resume_endpoint, target_health.enable_endpoint):
        undo(other.pk, actor=events.SYSTEM)
    endpoints.rotate_secret(other.pk, actor=events.SYSTEM)
    endpoints.change_endpoint(other.pk, {"name": "New"}, actor=events.SYSTEM)
    all_readable()
    while READER.step():
        pass
    world.start()
    world.receiver.count(Message.objects.filter(endpoint=endpoint).count())
    bodies = [json.loads(visit.body) for visit in world.receiver.visits]
    assert len(bodies) >= 6
    for body in bodies:
        entry = catalog.built_in()[body["type"]]
        assert entry.schema is not None
        assert schemas.validate_payload(entry.schema, body) == {}, body


def test_catalog_page_and_admin_show_types_of_this_organization_only(world: World, api: Api) -> None:
    add(api, schema=SCHEMA, description="An order was changed.")
    foreign = Api(key=factories.api_key(factories.organization()))
    add(foreign, "secret.thing")
    world.endpoint(event_types=["order.*"])
    admin = browser(factories.admin(world.organization))
    page = admin.get(reverse("console:outbox_catalog"), {"type": "order.changed"}).content.decode()
    assert "An order was changed." in page
    assert "&quot;customer&quot;" in page
    assert "job.assigned" in page
    assert "secret.thing" not in page
    assert "No results match" in admin.get(reverse("console:outbox_catalog"), {"q": "nonsense"}).content.decode()
    offered = admin.get(reverse("admin:outbox_endpoint_add")).content.decode()
    assert 'value="order.changed"' in offered
    assert 'value="job.assigned"' in offered
    assert "secret.thing" not in offered
    row = EventType.objects.get(name="order.changed")
    at = reverse("admin:outbox_eventtype_change", args=[row.pk])
    given = {"description": "New.", "is_enforced": "on", "schema": '{"type": "object"}', "example": ""}
    assert admin.post(at, {**given, "schema": '{"$ref": "https://x"}'}).status_code == 200
    assert admin.post(at, given).status_code == 302
    row.refresh_from_db()
    assert (row.description, row.is_enforced, row.version) == ("New.", True, 2)
    added = {**given, "name": "order.paid", "organization": world.organization.pk}
    assert admin.post(reverse("admin:outbox_eventtype_add"), added).status_code == 302
    assert EventType.objects.get(name="order.paid").version == 1


def test_descriptions_follow_the_reader_and_stay_english_in_the_api(world: World, api: Api) -> None:
    add(api, description="An order was changed.")
    admin = factories.admin(world.organization)
    english = "A job was assigned to a technician."
    for language, words in (("en", english), ("es", "Se asignó un trabajo a un técnico.")):
        User.objects.filter(pk=admin.pk).update(language=language)
        client = browser(admin)
        page = client.get(reverse("console:outbox_catalog"), {"q": words.upper()}).content.decode()
        assert words in page
        assert "job.created" not in page
        opened = client.get(reverse("console:outbox_catalog"), {"type": "job.assigned"}).content.decode()
        assert f"<p>{words}</p>" in opened
        assert "An order was changed." in opened, "an organization's own words"
        assert f"job.assigned: {words}" in client.get(reverse("admin:outbox_endpoint_add")).content.decode()
    for caller in (api, Api(user=User.objects.get(pk=admin.pk))):
        entries = {entry["name"]: entry for entry in caller.get("event-types/catalog/").json()}
        assert entries["job.assigned"]["description"] == english
        assert entries["job.assigned"]["schema"]["description"] == english
