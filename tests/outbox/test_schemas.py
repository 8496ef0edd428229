"""JSON Schemas of the event catalog: what is accepted, what is refused, and that no schema can be expensive."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from dispatch.outbox.rules import schemas
from dispatch.outbox.rules.schemas import InvalidSchema, TooExpensive

ORDER = {
    "$schema": schemas.DRAFT,
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "email": {"type": "string", "format": "email"},
        "at": {"type": "string", "format": "date-time"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "uniqueItems": True},
    },
    "required": ["id"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}},
}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("payload", "problems"),
    [
        ({"id": 1, "lines": [{"price": 2.5}, {"price": 3}]}, []),
        ({"id": 1, "email": "ann@example.com", "at": "2026-01-05T17:03:11Z", "code": "AZ-17"}, []),
        ({}, ["id"]),
        ([], [""]),
        ({"id": "1"}, ["id"]),
        ({"id": 1, "other": 2}, ["other"]),
        ({"id": 1, "lines": [{"price": 1}, {"cost": 1}]}, ["lines.1.price"]),
        ({"id": 1, "lines": [{"price": 1}, {"price": 1.0}]}, ["lines"]),
        ({"id": 1, "email": "ann"}, ["email"]),
        ({"id": 1, "at": "tomorrow"}, ["at"]),
        ({"id": 1, "at": "2026-01-05T17:03:11"}, ["at"]),
        ({"id": 1, "code": "az-17"}, ["code"]),
        ({"code": "az", "lines": 3}, ["code", "id", "lines"]),
    ],
)
def test_problems_name_the_fields(payload: Any, problems: list[str]) -> None:
    schemas.check_schema(ORDER)
    assert sorted(schemas.validate_payload(ORDER, payload)) == problems


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ([], "JSON object"),
        ({"type": "text"}, "type"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "must be"),
        ({"$ref": "https://example.com/schema.json"}, "within the schema"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "within the schema"),
        ({"$ref": "#"}, "within the schema"),
        ({"$ref": "#/$defs/missing"}, "leads nowhere"),
        ({"$ref": "#/x-part", "x-part": {"pattern": "(?=a)"}}, "leads nowhere"),
        ({"$ref": "#/properties/a/const", "properties": {"a": {"const": {"type": "text"}}}}, "leads nowhere"),
        ({"$ref": "#/$defs/a%2Fb", "$defs": {"a%2Fb": {}, "a": {"const": {}}}}, "leads nowhere"),
        ({"$id": "https://example.com/", "type": "object"}, "not supported"),
        ({"$dynamicRef": "#/$defs/a"}, "not supported"),
        ({"unevaluatedProperties": False}, "not supported"),
        ({"proprties": {}}, "not supported"),
        ({"pattern": "(?=a)b"}, "pattern"),
        ({"pattern": "(a)\\1"}, "pattern"),
        ({"pattern": "["}, "pattern"),
        ({"pattern": "((a{1000}){1000}){1000}"}, "pattern"),
        ({"pattern": "a" * 501}, "pattern"),
        ({"patternProperties": {"(?<!a)b": {}}}, "pattern"),
        ({"patternProperties": {f"a{n}": {} for n in range(101)}}, "at most 100 patterns"),
        ({"description": "x" * 33_000}, "at most"),
        (nested(40), "levels"),
        ({"items": {"required": "a"}}, "required"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(schema: Any, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why.replace("(", "\\(")):
        schemas.check_schema(schema)


def test_no_pattern_is_slow() -> None:
    """Python's `re` needs years for these."""
    text = "a" * 200_000 + "!"
    for pattern in ("^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "a*a*a*a*a*b", "(.*)*x"):
        schema = {"type": "string", "pattern": pattern}
        schemas.check_schema(schema)
        assert list(schemas.validate_payload(schema, text)) == [""]
        named = {"patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
        schemas.check_schema(named)
        assert list(schemas.validate_payload(named, {text: "b"})) == [text]


def test_exponential_schema_is_stopped() -> None:
    definitions: dict[str, Any] = {"a0": {"type": "string"}}
    for place in range(1, 30):
        definitions[f"a{place}"] = {"allOf": [{"$ref": f"#/$defs/a{place - 1}"}] * 2}
    schema = {"$ref": "#/$defs/a29", "$defs": definitions}
    schemas.check_schema(schema)
    with pytest.raises(TooExpensive):
        schemas.validate_payload(schema, "text")


def test_circular_schema_is_stopped() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}
    schemas.check_schema(schema)
    with pytest.raises(TooExpensive):
        schemas.validate_payload(schema, 1)


def test_large_payload_is_stopped() -> None:
    item = {"properties": {f"p{n}": {"type": "integer", "minimum": 0, "maximum": 9} for n in range(100)}}
    payload = [{f"p{n}": 1 for n in range(100)}] * 1000
    with pytest.raises(TooExpensive):
        schemas.validate_payload({"items": item}, payload)


NAMES = [f"n{n}" for n in range(1500)]
MANY: dict[str, Any] = {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/c"}] * 100}}


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"items": {"enum": NAMES}}, ["n1499"] * 60_000),
        ({"items": {"not": {"required": NAMES}}}, [{}] * 60_000),
        ({"items": {"properties": dict.fromkeys(NAMES, True)}}, [{}] * 60_000),
        ({"patternProperties": {f"^{n}x": {} for n in range(100)}}, {f"name{n}": 1 for n in range(20_000)}),
        ({"$ref": "#/$defs/a", "$defs": {**MANY, "c": {"uniqueItems": True}}}, [[[1]]] * 10_000),
        ({"$ref": "#/$defs/a", "$defs": {**MANY, "c": {"contains": False}}}, [1] * 60_000),
        ({"$ref": "#/$defs/a", "$defs": {**MANY, "c": {"const": [0] * 8000}}}, [0] * 8000),
        ({"$ref": "#/$defs/a", "$defs": {**MANY, "c": {"pattern": "^(a+)+$"}}}, "a" * 600_000),
    ],
)
def test_large_values_take_more_steps(schema: Any, payload: Any) -> None:
    """Each of these has few keywords to check, and each check takes long."""
    schemas.check_schema(schema)
    with pytest.raises(TooExpensive):
        schemas.validate_payload(schema, payload)


class Fields(dict):
    def __repr__(self) -> str:
        raise AssertionError("the payload is formatted")


class Items(list):
    __repr__ = Fields.__repr__


class Words(str):
    __repr__ = Fields.__repr__


@pytest.mark.parametrize(
    ("payload", "schema"),
    [
        (Fields(a=1), False),
        (Fields(a=1), {"not": {}}),
        (Fields(a=1), {"anyOf": [False, {"type": "string"}]}),
        (Fields(a=1), {"oneOf": [{}, {}]}),
        (Fields(a=1), {"oneOf": [False]}),
        (Fields(a=1), {"enum": [1, {"a": 2}]}),
        (Fields(a=1), {"const": {}}),
        (Fields(a=1), {"type": "array"}),
        (Fields(a=1), {"minProperties": 2}),
        (Fields(a=1), {"maxProperties": 0}),
        (Fields(a=1), {"dependentRequired": {"a": ["b"]}}),
        (Items("a"), {"items": False}),
        (Items("ab"), {"contains": False}),
        (Items("ab"), {"contains": {}, "minContains": 3}),
        (Items("ab"), {"contains": {}, "maxContains": 1}),
        (Items("ab"), {"minItems": 3}),
        (Items("ab"), {"maxItems": 1}),
        (Items("aa"), {"uniqueItems": True}),
        (Words("ab"), {"minLength": 3}),
        (Words("ab"), {"maxLength": 1}),
    ],
)
def test_errors_do_not_format_the_payload(payload: Any, schema: Any) -> None:
    """A payload may have 256 kB, and a schema may find 100,000 errors in it."""
    whole = {"properties": {"a": schema}}
    schemas.check_schema(whole)
    (text,) = schemas.validate_payload(whole, {"a": payload}).values()
    assert text.endswith(".")


def test_errors_of_branches_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_STEPS", 10_000)
    leaf = {"anyOf": [{"not": {}}] * 30}
    inner = {"anyOf": [{"$ref": "#/$defs/leaf"}] * 30}
    schema = {"anyOf": [{"$ref": "#/$defs/inner"}] * 30, "$defs": {"inner": inner, "leaf": leaf}}
    schemas.check_schema(schema)
    tracemalloc.start()
    try:
        with pytest.raises(TooExpensive):
            schemas.validate_payload(schema, {"x": 1})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"minimum": 10**4000}, "Must be at least 1000"),
        ({"const": "x" * 30_000}, 'Must be "xxx'),
        ({"enum": ["x" * 30_000]}, 'Must be one of ["xxx'),
        ({"required": ["x" * 30_000]}, "This field is required."),
        ({"format": "ipv4"}, "Must have the format ipv4."),
        ({"type": ["null", "boolean"]}, "Must be of type null or boolean."),
    ],
)
def test_messages_show_the_beginning_of_what_is_expected(value: Any, text: str) -> None:
    schemas.check_schema(value)
    payload: Any = {} if "required" in value else "text" if "format" in value else 1
    (found,) = schemas.validate_payload(value, payload).values()
    assert found.startswith(text)
    assert len(found) <= schemas.keywords.MAX_MESSAGE


def test_inner_schema_with_a_draft_is_counted_too() -> None:
    """The library would validate it with its standard validator, which counts nothing and uses Python's `re`."""
    schema: dict[str, Any] = {"properties": {"a": {"$schema": schemas.DRAFT, "pattern": "^a$"}}}
    schemas.check_schema(schema)
    assert list(schemas.validate_payload(schema, {"a": "a\n"})) == ["a"]  # `re` finds the end before a line feed
    definitions: dict[str, Any] = {"a0": {"type": "string"}}
    for place in range(1, 20):
        again = [{"$ref": f"#/$defs/a{place - 1}"}] * 2
        definitions[f"a{place}"] = {"$schema": schemas.DRAFT, "allOf": again}
    schema = {"$ref": "#/$defs/a19", "$defs": definitions}
    schemas.check_schema(schema)
    with pytest.raises(TooExpensive):
        schemas.validate_payload(schema, "text")


def test_multiples_of_huge_numbers_are_found() -> None:
    huge, infinite = 10**400, float("1e400")
    cases: list[tuple[float, float, bool]] = [
        (0.5, 2.5, True), (0.5, 2.7, False), (0.5, huge, True), (1.5, huge, False), (5e-324, 1.5, True),
        (huge, huge * 3, True), (huge, 1.5, False), (huge, 1e300, False), (huge, 0.0, True),
        (3, infinite, False), (0.1, -infinite, False), (infinite, 1, False),
    ]  # fmt: skip
    for divisor, number, is_multiple in cases:
        schemas.check_schema({"multipleOf": divisor})
        found = schemas.validate_payload({"multipleOf": divisor}, number)
        assert list(found) == ([] if is_multiple else [""]), (divisor, number)


@pytest.mark.parametrize("divisor", [0.01, 0.05, 0.1])
def test_amounts_are_multiples_by_their_digits(divisor: float) -> None:
    """Divided as binary fractions, 19.99 is not a multiple of 0.01."""
    for number in range(1, 3000):
        digits = f"{number * round(divisor * 100) / 100:.2f}"
        assert schemas.validate_payload({"multipleOf": divisor}, float(digits)) == {}, digits
        assert list(schemas.validate_payload({"multipleOf": divisor}, float(f"{digits}1"))) == [""], digits


def test_unique_items_cost_is_linear() -> None:
    items = [{"n": number, "x": [number]} for number in range(20_000)]
    assert schemas.validate_payload({"uniqueItems": True}, items) == {}
    assert list(schemas.validate_payload({"uniqueItems": True}, [*items, items[-1]])) == [""]


def test_problems_are_few_and_short() -> None:
    schema = {"items": {"const": 1}, "maxItems": 3}
    problems = schemas.validate_payload(schema, ["x" * 5000] * 500)
    assert len(problems) <= schemas.MAX_ERRORS
    assert all(len(text) <= schemas.keywords.MAX_MESSAGE for text in problems.values())


def test_examples_match_their_schema() -> None:
    example = schemas.build_example(
        {
            "type": "object",
            "properties": {
                "a": {"type": ["null", "integer"]}, "b": {"type": "array", "items": {"type": "string"}},
                "c": {"const": "x"}, "d": {"enum": [3, 4]}, "e": {"type": "string", "format": "date-time"},
            },
        }
    )  # fmt: skip
    assert example == {"a": 1, "b": ["text"], "c": "x", "d": 3, "e": example["e"]}
