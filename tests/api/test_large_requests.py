"""Large and malformed bodies are rejected at a bounded cost."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator
from rest_framework import serializers

from dispatch.core.api import parsers
from dispatch.core.api.schema_view import SchemaView
from dispatch.core.api.serializers import (
    MAX_ITEM_ERRORS,
    MAX_ITEMS,
    BoundedListField,
    BoundedListSerializer,
    StrictSerializer,
)
from dispatch.openapi import examples
from tests.api.client import Api
from tests.support.tenants import Tenant, ours, world  # noqa: F401

pytestmark = pytest.mark.django_db

MANY = 20_000
MAX_ANSWER = 64 * 1024
# Generous: 20,000 items took more than a second before their number was checked first.
MAX_CPU_S = 0.5


@pytest.fixture(autouse=True)
def _unlimited(settings: Any) -> None:
    rates = dict.fromkeys(settings.REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"], "1000000/s")
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": rates}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(json.dumps(SchemaGenerator().get_schema(request=None, public=True), default=str))


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], Any]]:
    """Yield (method, path, schema of the body, example) of every operation with a JSON body."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                example = examples.BODIES.get(examples.component_of(media), {})
                yield method.upper(), path, media["schema"], example


def paths_of(schema: dict[str, Any], document: dict[str, Any], depth: int = 4) -> Iterator[tuple[str, ...]]:
    """Yield the places of lists and open objects in the body, as keys from its root; "*" is an item."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for part in (*schema.get("allOf", ()), *schema.get("oneOf", ()), *schema.get("anyOf", ())):
        yield from paths_of(part, document, depth)
    if schema.get("type") == "array":
        yield ()
        if depth:
            yield from (("*", *rest) for rest in paths_of(schema["items"], document, depth - 1))
    for name, value in schema.get("properties", {}).items():
        if depth and not value.get("readOnly"):
            yield from ((name, *rest) for rest in paths_of(value, document, depth - 1))
    if schema.get("additionalProperties"):
        yield ()


def placed(example: Any, where: tuple[str, ...], value: Any) -> Any:
    """Return the example with this value in that place."""
    if not where:
        return value
    if where[0] == "*":
        return [placed({}, where[1:], value)]
    holder = copy.deepcopy(example) if isinstance(example, dict) else {}
    return {**holder, where[0]: placed(holder.get(where[0]), where[1:], value)}


def address_of(path: str, tenant: Tenant) -> str:
    """Return the path of one of the tenant's rows."""
    address = re.sub(r"\{[^}]+\}", "1", path)
    view = resolve(address).func
    queryset = getattr(getattr(view, "cls", None), "queryset", None)
    if queryset is None or address == path:
        return address
    return re.sub(r"\{[^}]+\}", str(tenant.row(queryset.model).pk), path)


def least_cost(send: Callable[[], Any], limit: float) -> tuple[Any, float]:
    """Send a request, and again if it took longer than the limit. Return the response and the least CPU time in s.

    On a busy machine, the same work takes up to three times as much CPU time.
    """
    costs = []
    while not costs or (costs[-1] >= limit and len(costs) < 5):
        begun = time.process_time()
        answer = send()
        costs.append(time.process_time() - begun)
    return answer, min(costs)


def refused_cheaply(api: Api, method: str, address: str, body: Any, what: Any) -> None:
    text = json.dumps(body)
    answer, spent = least_cost(lambda: api.send(method, address, text), MAX_CPU_S)
    assert 400 <= answer.status_code < 500, (what, answer.status_code, answer.content[:200])
    assert len(answer.content) < MAX_ANSWER, what
    assert spent < MAX_CPU_S, f"{what}: {spent:.1f} s"


def test_every_list_of_the_api_refuses_20000_items_cheaply(document, ours):  # noqa: F811
    api = Api(user=ours.admin)
    tried = set()
    for method, path, schema, example in operations(document):
        address = address_of(path, ours)
        for where in {(), *paths_of(schema, document)}:
            tried.add((path, where))
            refused_cheaply(api, method, address, placed(example, where, [[]] * MANY), (method, path, where))
    lists_tried = {where[-1] for _, where in tried if where}
    assert {"schedules", "retry_schedule_s", "event_types", "permanent_codes", "shifts", "skills"} <= lists_tried
    assert {"leads", "steps", "retry_rules", "scopes", "allowed_countries", "required_skills"} <= lists_tried
    assert len(tried) > 60


def test_every_object_of_the_api_refuses_20000_members_cheaply(document, ours):  # noqa: F811
    api = Api(user=ours.admin)
    members = json.dumps({f"m{number}": [] for number in range(MANY)})
    for method, path, schema, example in operations(document):
        if (path, method) == ("/api/v1/schedule-imports/", "POST"):
            continue  # its defaults may have any members; a worker checks each schedule later
        for where in {(), *paths_of(schema, document)}:
            text = json.dumps(placed(example, where, "MEMBERS")).replace('"MEMBERS"', members)
            address = address_of(path, ours)
            send = partial(api.send, method, address, text)
            answer, spent = least_cost(send, 2 * MAX_CPU_S)
            assert answer.status_code < 500, (method, path, where)
            assert len(answer.content) < MAX_ANSWER or answer.status_code < 400, (method, path, where)
            assert spent < 2 * MAX_CPU_S, (method, path, where)


def test_a_list_is_refused_by_length_before_any_item_is_validated(monkeypatch):
    validated = []

    class Item(serializers.IntegerField):
        def run_validation(self, data: Any = None) -> Any:
            validated.append(data)
            return super().run_validation(data)

    class Part(StrictSerializer):
        numbers = serializers.ListField(child=Item(), max_length=3, required=False)

    class Whole(StrictSerializer):
        numbers = BoundedListField(child=Item(), max_length=3)
        unlimited = serializers.ListField(child=Item(), required=False)
        parts = Part(many=True, required=False)

    form = Whole(data={"numbers": [1, 2, 3, 4]})
    assert not form.is_valid()
    assert form.errors["numbers"][0].code == "max_length"
    assert not Whole(data={"numbers": [1], "unlimited": [1] * (MAX_ITEMS + 1)}).is_valid()
    assert not Whole(data={"numbers": [1], "parts": [{}] * (MAX_ITEMS + 1)}).is_valid()
    assert validated == []
    assert not Whole(data={"numbers": [1], "parts": [{"numbers": [1, 2, 3, 4]}]}).is_valid()
    assert validated == [1]
    assert Whole(data={"numbers": [1, 2, 3], "parts": [{"numbers": [1]}]}).is_valid()


def test_a_list_of_bad_items_is_given_up_after_the_first_errors():
    validated = []

    class Item(serializers.Serializer):
        number = serializers.IntegerField()

        class Meta:
            list_serializer_class = BoundedListSerializer

        def run_validation(self, data: Any = None) -> Any:
            validated.append(data)
            return super().run_validation(data)

    assert not Item(data=[{}] * 900, many=True).is_valid()
    assert len(validated) == MAX_ITEM_ERRORS
    assert Item(data=[{"number": 1}] * 900, many=True).is_valid()


def test_a_problem_lists_50_errors_and_counts_the_rest(ours):  # noqa: F811
    api = Api(user=ours.admin)
    shifts = [{"weekday": 9, "starts": "x", "ends": "y"}] * 100
    problem = api.post("technicians/", {"shifts": shifts}).json()
    assert len(problem["errors"]) == 50
    assert problem["more_errors"] > 200
    assert f"(and {problem['more_errors'] + 49} more)" in problem["detail"]
    assert "more_errors" not in api.post("technicians/", {}).json()


def test_a_problem_does_not_repeat_a_long_value(ours):  # noqa: F811
    api = Api(user=ours.admin)
    answer = api.post("schedules/", {"x" * 500_000: 1, "missed": "y" * 500_000})
    assert (answer.status_code, len(answer.content) < MAX_ANSWER) == (400, True)
    answer = api.post("schedules/", {"name": "a", "kind": "http", "payload": {}, "missed": "y" * 500_000})
    assert (answer.status_code, len(answer.content) < MAX_ANSWER) == (400, True)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [parsers.MAX_DEPTH + 1, 500, 900, 5000, 100_000])
def test_a_deeply_nested_body_is_refused(opening, depth, ours):  # noqa: F811
    closing = "]" if opening == "[" else "}"
    nested = opening * depth + "1" + closing * depth
    api = Api(user=ours.admin)
    for path, body in (
        ("submissions/", f'{{"extra": {{"a": {nested}}}}}'),
        ("messages/", f'{{"type": "a", "endpoint": "x", "payload": {nested}}}'),
        ("schedule-imports/", nested),
    ):
        answer = api.post(path, body)
        if depth > parsers.MAX_CONTAINERS:  # refused unparsed
            assert answer.status_code == 413, path
            continue
        assert answer.status_code == 400, path
        assert "nested too deeply" in answer.json()["detail"]


def test_a_body_of_allowed_depth_is_accepted(ours):  # noqa: F811
    depth = parsers.MAX_DEPTH - 3
    nested: Any = 1
    for _ in range(depth):
        nested = [nested]
    answer = Api(user=ours.admin).post(
        "messages/", {"type": "a.b", "endpoint": "Alphaville ERP", "payload": nested}
    )
    assert answer.status_code == 202, answer.content


def test_an_import_of_millions_of_values_is_refused_unparsed(ours):  # noqa: F811
    api = Api(user=ours.admin)
    body = '{"schedules": [' + "[]," * 4_000_000 + "[]]}"
    answer, spent = least_cost(lambda: api.post("schedule-imports/", body), 3 * MAX_CPU_S)
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (413, "too_large")
    assert spent < 3 * MAX_CPU_S


def test_every_endpoint_refuses_900_kb_of_containers_unparsed(document, ours, monkeypatch):  # noqa: F811
    parsed = []
    monkeypatch.setattr(parsers, "is_too_deep", lambda body: bool(parsed.append(1)))
    api, body = Api(user=ours.admin), f"[{'[],' * 300_000}[]]"
    tried = 0
    for method, path, _, _ in operations(document):
        answer = api.send(method, address_of(path, ours), body)
        assert answer.status_code in (403, 404, 413), (method, path, answer.content[:200])
        tried += answer.status_code == 413
    assert tried > 40
    assert parsed == []


def test_dense_body_of_a_legitimate_import_is_accepted():
    leads = [{"phone": "+16025550100", "data": {"a": 1}}] * 10_000
    parsers.check_size(json.dumps({"leads": leads}, separators=(",", ":")).encode())
    parsers.check_size(json.dumps([[1, 2]] * 50_000, separators=(",", ":")).encode())


# --- the schema -----------------------------------------------------------------------------------------------


@pytest.fixture
def generated(monkeypatch) -> list[int]:
    """Return a list with one entry per generation of the schema."""
    times: list[int] = []
    generate = SchemaGenerator.get_schema

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        times.append(1)
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(SchemaGenerator, "get_schema", counted)
    monkeypatch.setattr(SchemaView, "_schema", None)
    monkeypatch.setattr(SchemaView, "_documents", {})
    return times


def test_the_schema_is_generated_once_and_revalidated(client, generated):
    first = client.get("/api/v1/schema/", headers={"Accept-Language": "es"})
    assert (first.status_code, b"openapi" in first.content) == (200, True)
    assert b"Leave empty to use the organization's" in first.content, (
        "English, even if the first reader is Spanish"
    )
    as_json = client.get("/api/v1/schema/?format=json")
    assert as_json.json()["paths"]
    for _ in range(5):
        assert client.get("/api/v1/schema/").content == first.content
    again = client.get("/api/v1/schema/", headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/api/v1/schema/", headers={"If-None-Match": as_json["ETag"]}).status_code == 200
    assert generated == [1]


def test_a_superuser_without_an_organization_reads_the_schema(client, generated):
    from tests.support import factories as make

    client.force_login(make.user(is_superuser=True), backend="django.contrib.auth.backends.ModelBackend")
    assert client.get("/api/v1/schema/?format=json").json()["paths"]
    assert client.get("/api/v1/docs/").status_code == 200
