"""Check JSON Schemas (draft 2020-12) and validate payloads against them, at a bounded cost.

A schema has a limited size, depth and set of keywords, and refers to nothing outside of itself. Validation stops
after MAX_STEPS steps, whatever the schema and the payload are: a keyword takes one, and more if its value or what
it is applied to is large. An error is formatted and stored only if it is returned. Patterns are matched by an
engine whose time is linear in the text (that of `jsonschema-rs`), so no pattern is slow; it has no lookaround and
no backreferences.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing.exceptions import Unresolvable

from dispatch.outbox.rules import schema_keywords as keywords

DRAFT = "https://json-schema.org/draft/2020-12/schema"
MAX_LENGTH = 32_768
MAX_DEPTH = 32
MAX_PATTERN_LENGTH = 500
# Patterns of one schema. All of them stay compiled while they are in use.
MAX_PATTERNS = 100
# About a second.
MAX_STEPS = 100_000
MAX_ERRORS = 20
ANNOTATIONS = frozenset(
    {
        "$comment", "contentEncoding", "contentMediaType", "default", "deprecated", "description", "examples",
        "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
PLAIN = frozenset(
    {
        "$ref", "$schema", "const", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "format",
        "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength",
        "minProperties", "minimum", "multipleOf", "pattern", "required", "type", "uniqueItems",
    }
)  # fmt: skip


class InvalidSchema(ValueError):
    """The schema is malformed or uses a part that is not allowed. The message is for users."""


class TooExpensive(Exception):
    """The validation took more than MAX_STEPS."""


def check_schema(schema: Any) -> None:
    """Raise InvalidSchema unless payloads can be validated against the schema."""
    if not isinstance(schema, dict):
        raise InvalidSchema("A schema is a JSON object.")
    _check_depth(schema)
    if len(json.dumps(schema)) > MAX_LENGTH:
        raise InvalidSchema(f"Must have at most {MAX_LENGTH:,} characters.")
    if schema.get("$schema", DRAFT) != DRAFT:
        raise InvalidSchema(f"$schema must be {DRAFT}.")
    checked: dict[int, Any] = {}
    _check_keywords(schema, "", checked)
    if sum(_count_patterns(one) for one in checked.values()) > MAX_PATTERNS:
        raise InvalidSchema(f"Must have at most {MAX_PATTERNS} patterns.")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InvalidSchema(keywords.shorten(f"{error.json_path}: {error.message}")) from None
    _check_references(schema, checked)


def validate_payload(schema: Mapping[str, Any], payload: Any) -> dict[str, str]:
    """Return what is wrong with the payload, at most MAX_ERRORS: the path of a field ("a.b.0") → a message.

    The path of the payload itself is "". Raises TooExpensive.
    """
    found: dict[str, str] = {}
    validator = keywords.build_validator(schema, _count_steps())
    try:
        for error in itertools.islice(validator.iter_errors(payload), MAX_ERRORS):
            for path, message in _describe(error):
                found.setdefault(path, message)
    except (RecursionError, Unresolvable):
        raise TooExpensive from None
    return dict(itertools.islice(found.items(), MAX_ERRORS))


def build_example(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """Return a value of the schema's types, for documentation: its examples and constants where it has some."""
    root = schema if root is None else root
    if depth > MAX_DEPTH or not isinstance(schema, dict):
        return None
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    kind = schema.get("type")
    kind = next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        names = schema.get("properties", {})
        return {name: build_example(one, root, depth + 1) for name, one in names.items()}
    if kind == "array":
        items = schema.get("items")
        return [build_example(items, root, depth + 1)] if isinstance(items, dict) else []
    if kind == "string" and schema.get("format") == "date-time":
        return "2026-01-05T17:03:11.412000+00:00"
    return {"string": "text", "integer": 1, "number": 1.5, "boolean": True}.get(str(kind))


# --- Checks of a schema ---------------------------------------------------------------------------------------
def _check_depth(schema: Any) -> None:
    level, depth = [schema], 0
    while level:
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"Must be nested at most {MAX_DEPTH} levels deep.")
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, (dict, list))
        ]
        depth += 1


def _check_keywords(schema: Any, path: str, checked: dict[int, Any]) -> None:
    """Check a schema and those within it; add each to `checked`, by its identity."""
    if not isinstance(schema, dict):  # true, false, or an error that the meta-schema finds
        return
    checked[id(schema)] = schema
    for name, value in schema.items():
        here = f"{path}/{name}"
        if name in keywords.ONE:
            _check_keywords(value, here, checked)
        elif name in keywords.LISTS and isinstance(value, list):
            for place, child in enumerate(value):
                _check_keywords(child, f"{here}/{place}", checked)
        elif name in keywords.OBJECTS and isinstance(value, dict):
            for key, child in value.items():
                _check_keywords(child, f"{here}/{key}", checked)
                if name == "patternProperties":
                    _check_pattern(key, here)
        elif name == "pattern":
            _check_pattern(value, here)
        elif name == "$ref" and not str(value).startswith("#/"):
            raise InvalidSchema(f"{here}: Only references within the schema are allowed, such as #/$defs/address.")
        elif name not in PLAIN | ANNOTATIONS and not name.startswith("x-"):
            raise InvalidSchema(keywords.shorten(f"{here}: This keyword is not supported."))


def _check_pattern(pattern: Any, path: str) -> None:
    if not isinstance(pattern, str):
        return
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidSchema(f"{path}: A pattern has at most {MAX_PATTERN_LENGTH} characters.")
    try:
        keywords.compile_pattern(pattern)
    except (ValueError, jsonschema_rs.ValidationError):
        text = "The pattern is malformed, too large, or uses lookaround or backreferences."
        raise InvalidSchema(f"{path}: {text}") from None


def _count_patterns(schema: Mapping[str, Any]) -> int:
    named = schema.get("patternProperties")
    return ("pattern" in schema) + (len(named) if isinstance(named, dict) else 0)


def _check_references(schema: Mapping[str, Any], checked: Mapping[int, Any]) -> None:
    """Raise InvalidSchema if a reference does not lead to one of the checked schemas.

    Constants and annotations may contain anything, so a reference must not lead into them.
    """
    for reference in _references(schema):
        target: Any = schema
        for part in reference.removeprefix("#/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, dict) else None
        # Validation decodes percent signs, which could lead elsewhere.
        if "%" in reference or not (isinstance(target, bool) or id(target) in checked):
            raise InvalidSchema(keywords.shorten(f"The reference {reference} leads nowhere."))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for child in value.values():
            yield from _references(child)
    elif isinstance(value, list):
        for child in value:
            yield from _references(child)


# --- Validation -----------------------------------------------------------------------------------------------
def _count_steps() -> keywords.Spend:
    taken = 0.0

    def spend(steps: float) -> None:
        nonlocal taken
        taken += steps
        if taken > MAX_STEPS:
            raise TooExpensive

    return spend


def _describe(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield the field and the message of an error; a missing field is named itself."""
    path = [str(part) for part in error.absolute_path]
    if error.validator == "required" and isinstance(error.instance, dict):
        for name in error.validator_value:
            if name not in error.instance:
                yield ".".join([*path, name]), "This field is required."
        return
    yield ".".join(path), keywords.describe_error(error)
