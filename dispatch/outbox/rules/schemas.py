"""Check JSON Schemas (draft 2020-12) and validate payloads against them, at a bounded cost.

A schema has a limited size, depth and set of keywords, and refers to nothing outside of itself. Validation stops
after MAX_STEPS steps, whatever the schema and the payload are: a keyword takes one, and more if its value or what
it is applied to is large. Patterns are matched by an engine whose time is linear in the text (that of
`jsonschema-rs`), so no pattern is slow; it has no lookaround and no backreferences.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing.exceptions import Unresolvable

DRAFT = "https://json-schema.org/draft/2020-12/schema"
MAX_LENGTH = 32_768
MAX_DEPTH = 32
MAX_PATTERN_LENGTH = 500
# The size of a compiled pattern in bytes. It also limits repetitions such as (a{1000}){1000}.
MAX_PATTERN_BYTES = 200_000
# Patterns of one schema. All of them stay compiled while they are in use.
MAX_PATTERNS = 100
# About a second.
MAX_STEPS = 100_000
# The parts of an array, an object or a constant, and the characters of a text, that one step covers.
PARTS_PER_STEP, CHARACTERS_PER_STEP = 4, 500
# Steps of matching one name against one pattern.
STEPS_PER_MATCH = 0.1
MAX_ERRORS = 20
MAX_MESSAGE = 200
ANNOTATIONS = frozenset(
    {
        "$comment", "contentEncoding", "contentMediaType", "default", "deprecated", "description", "examples",
        "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
# Keywords whose value is one schema, a list of schemas, or an object of schemas.
ONE = frozenset({"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"})
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
OBJECTS = frozenset({"$defs", "dependentSchemas", "patternProperties", "properties"})
PLAIN = frozenset(
    {
        "$ref", "$schema", "const", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "format",
        "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength",
        "minProperties", "minimum", "multipleOf", "pattern", "required", "type", "uniqueItems",
    }
)  # fmt: skip
FORMATS = FormatChecker(formats=("date", "email", "ipv4", "ipv6", "uuid"))


class InvalidSchema(ValueError):
    """The schema is malformed or uses a part that is not allowed. The message is for users."""


class TooExpensive(Exception):
    """The validation took more than MAX_STEPS."""


# Counts steps. Raises TooExpensive.
Spend = Callable[[float], None]


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
        raise InvalidSchema(_shorten(f"{error.json_path}: {error.message}")) from None
    _check_references(schema, checked)


def validate_payload(schema: Mapping[str, Any], payload: Any) -> dict[str, str]:
    """Return what is wrong with the payload, at most MAX_ERRORS: the path of a field ("a.b.0") → a message.

    The path of the payload itself is "". Raises TooExpensive.
    """
    found: dict[str, str] = {}
    try:
        for error in itertools.islice(_validator(schema).iter_errors(payload), MAX_ERRORS):
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
        if name in ONE:
            _check_keywords(value, here, checked)
        elif name in LISTS and isinstance(value, list):
            for place, child in enumerate(value):
                _check_keywords(child, f"{here}/{place}", checked)
        elif name in OBJECTS and isinstance(value, dict):
            for key, child in value.items():
                _check_keywords(child, f"{here}/{key}", checked)
                if name == "patternProperties":
                    _check_pattern(key, here)
        elif name == "pattern":
            _check_pattern(value, here)
        elif name == "$ref" and not str(value).startswith("#/"):
            raise InvalidSchema(f"{here}: Only references within the schema are allowed, such as #/$defs/address.")
        elif name not in PLAIN | ANNOTATIONS and not name.startswith("x-"):
            raise InvalidSchema(_shorten(f"{here}: This keyword is not supported."))


def _check_pattern(pattern: Any, path: str) -> None:
    if not isinstance(pattern, str):
        return
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidSchema(f"{path}: A pattern has at most {MAX_PATTERN_LENGTH} characters.")
    try:
        _pattern(pattern)
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
            raise InvalidSchema(_shorten(f"The reference {reference} leads nowhere."))


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
@functools.lru_cache(maxsize=1000)
def _pattern(pattern: str) -> Any:
    """Return a validator of texts that contain the pattern."""
    options = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES, dfa_size_limit=MAX_PATTERN_BYTES)
    return jsonschema_rs.Draft202012Validator({"type": "string", "pattern": pattern}, pattern_options=options)


def _match_pattern(
    spend: Spend, validator: Any, pattern: str, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _pattern(pattern).is_valid(instance):
        yield ValidationError(f"Must match the pattern {pattern}.")


def _match_properties(
    spend: Spend, validator: Any, patterns: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                spend(STEPS_PER_MATCH + _size(name))
                if _pattern(pattern).is_valid(name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _check_additional(
    spend: Spend, validator: Any, allowed: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        spend(len(patterns) * (STEPS_PER_MATCH + _size(name)))
        if name in known or any(_pattern(pattern).is_valid(name) for pattern in patterns):
            continue
        if allowed is False:
            error = ValidationError("Unknown field.")
            error.path.appendleft(name)
            yield error
        elif isinstance(allowed, dict):
            yield from validator.descend(value, allowed, path=name)


def _check_unique(
    spend: Spend, validator: Any, is_unique: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """Compare the items' canonical texts: the library compares each pair of items."""
    if is_unique and isinstance(instance, list):
        spend(_size_of_all(instance))
        texts = [json.dumps(_canonical(item), sort_keys=True) for item in instance]
        if len(set(texts)) < len(texts):
            yield ValidationError("Must not contain the same item twice.")


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1.0 and 1 are the same number
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    return value


@FORMATS.checks("date-time", raises=ValueError)
def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


def _size(value: Any) -> float:
    """Return the steps that one pass over the parts of a value takes."""
    if isinstance(value, (dict, list)):
        return len(value) / PARTS_PER_STEP
    return len(value) / CHARACTERS_PER_STEP if isinstance(value, str) else 0.0


def _size_of_all(value: Any) -> float:
    """Return the steps that one pass over a value takes, with all that it contains."""
    size, level = 0.0, [value]
    while level:
        size += sum(map(_size, level))
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
        ]
    return size


_OWN: dict[str, Callable[..., Iterator[ValidationError]]] = {
    "pattern": _match_pattern,
    "patternProperties": _match_properties,
    "additionalProperties": _check_additional,
    "uniqueItems": _check_unique,
}


def _validator(schema: Mapping[str, Any]) -> Any:
    """Return a validator that counts its steps."""
    taken = 0.0
    constants: dict[int, float] = {}

    def spend(steps: float) -> None:
        nonlocal taken
        taken += steps
        if taken > MAX_STEPS:
            raise TooExpensive

    def counted(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
        def run(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            if name in ("const", "enum"):  # parts of both may be compared
                if id(value) not in constants:
                    constants[id(value)] = _size_of_all(value)
                spend(1 + constants[id(value)])
            else:
                spend(1 + _size(value) + _size(instance))
            return check(validator, value, instance, schema)

        return run

    known = {**Draft202012Validator.VALIDATORS, **{name: partial(check, spend) for name, check in _OWN.items()}}
    checks = {name: counted(name, check) for name, check in known.items()}
    return extend(Draft202012Validator, checks)(schema, format_checker=FORMATS)


def _describe(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield the field and the message of an error; a missing field is named itself."""
    path = [str(part) for part in error.absolute_path]
    if error.validator == "required" and isinstance(error.instance, dict):
        for name in error.validator_value:
            if name not in error.instance:
                yield ".".join([*path, name]), "This field is required."
        return
    if error.validator == "type":
        kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
        yield ".".join(path), f"Must be of type {' or '.join(map(str, kinds))}."
        return
    yield ".".join(path), _shorten(error.message)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 2]} …"
