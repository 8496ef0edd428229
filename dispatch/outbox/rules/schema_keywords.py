"""Check values against single keywords of JSON Schema (draft 2020-12), at a cost that is counted.

The library's checks write the value, and often the keyword, into the message of each error, and `anyOf` holds the
errors of all branches. Most errors are only counted or discarded. So the checks here yield errors without a
message, and `anyOf`, `oneOf` and `not` hold none. `describe_error` writes the message of an error that is shown.

Keywords that only apply schemas to parts, such as `properties` and `allOf`, are the library's.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from functools import partial
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

# The size of a compiled pattern in bytes. It also limits repetitions such as (a{1000}){1000}.
MAX_PATTERN_BYTES = 200_000
# The parts of an array, an object or a constant, the characters of a text, and the bits of an integer, that one
# step covers.
PARTS_PER_STEP, CHARACTERS_PER_STEP, BITS_PER_STEP = 4, 500, 1000
# Steps of matching one name against one pattern.
STEPS_PER_MATCH = 0.1
MAX_MESSAGE = 200
# Keywords whose value is one schema, a list of schemas, or an object of schemas.
ONE = frozenset({"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"})
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
OBJECTS = frozenset({"$defs", "dependentSchemas", "patternProperties", "properties"})
FORMATS = FormatChecker(formats=("date", "email", "ipv4", "ipv6", "uuid"))

# Counts steps. Raises an exception if there were too many.
Spend = Callable[[float], None]
Errors = Iterator[ValidationError]


def build_validator(schema: Mapping[str, Any], spend: Spend) -> Any:
    """Return a validator of the library that counts its steps."""
    constants: dict[int, float] = {}

    def counted(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
        def run(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            if name in ("const", "enum"):  # parts of both may be compared
                if id(value) not in constants:
                    constants[id(value)] = size_of_all(value)
                spend(1 + constants[id(value)])
            else:
                spend(1 + size(value) + size(instance))
            return check(validator, value, instance, schema)

        return run

    known = {**Draft202012Validator.VALIDATORS, **_CHECKS}
    known |= {name: partial(check, spend) for name, check in _COUNTING_CHECKS.items()}
    checks = {name: counted(name, check) for name, check in known.items()}
    return extend(Draft202012Validator, checks)(_simplify(schema), format_checker=FORMATS)


def describe_error(error: ValidationError) -> str:
    """Return what is wrong, in at most MAX_MESSAGE characters."""
    if error.message:
        return shorten(error.message)
    value = error.validator_value
    if error.validator == "not" and value is True:
        return "No value is allowed here."
    if error.validator == "type":
        return shorten(f"Must be of type {' or '.join(value if isinstance(value, list) else [value])}.")
    text = value if error.validator in ("format", "pattern") else json.dumps(value, ensure_ascii=False)
    words = _WORDS[str(error.validator)]
    return words.format(value=shorten(text, MAX_MESSAGE - len(words)))


def shorten(text: str, most: int = MAX_MESSAGE) -> str:
    """Return the beginning of a text, with an ellipsis if it is longer than `most`."""
    return text if len(text) <= most else f"{text[: most - 2]} …"


@functools.lru_cache(maxsize=1000)
def compile_pattern(pattern: str) -> Any:
    """Return a validator of texts that contain the pattern. Raises an exception if there can be none."""
    options = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES, dfa_size_limit=MAX_PATTERN_BYTES)
    return jsonschema_rs.Draft202012Validator({"type": "string", "pattern": pattern}, pattern_options=options)


def size(value: Any) -> float:
    """Return the steps that one pass over the parts of a value takes."""
    if isinstance(value, (dict, list)):
        return len(value) / PARTS_PER_STEP
    if isinstance(value, int):
        return value.bit_length() // BITS_PER_STEP
    return len(value) / CHARACTERS_PER_STEP if isinstance(value, str) else 0.0


def size_of_all(value: Any) -> float:
    """Return the steps that one pass over a value takes, with all that it contains."""
    total, level = 0.0, [value]
    while level:
        total += sum(map(size, level))
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
        ]
    return total


def _simplify(schema: Any) -> Any:
    """Return an equivalent schema without the parts that the library handles itself, past the checks here.

    It formats the value where a schema is `false`, and leaves this validator where a schema has `$schema`.
    """
    if schema is False:
        return {"not": True}
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for name, value in schema.items():
        if name in ONE and not (name == "additionalProperties" and value is False):
            result[name] = _simplify(value)
        elif name in LISTS:
            result[name] = [_simplify(child) for child in value]
        elif name in OBJECTS:
            result[name] = {key: _simplify(child) for key, child in value.items()}
        elif name != "$schema":
            result[name] = value
    return result


# --- Checks of one keyword --------------------------------------------------------------------------------------
def _error() -> ValidationError:
    return ValidationError("")


def _fail_unless(holds: Callable[[Any, Any], bool]) -> Callable[..., Errors]:
    """Return a check that compares the keyword's value with the instance."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
        if not holds(value, instance):
            yield _error()

    return check


def _limit(kind: str, holds: Callable[[Any, Any], bool]) -> Callable[..., Errors]:
    """Return a check that applies to one type only."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
        if validator.is_type(instance, kind) and not holds(value, instance):
            yield _error()

    return check


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: 1.0 is 1, and neither is true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def _is_multiple(divisor: Any, number: Any) -> bool:
    if math.inf in (abs(number), divisor):  # what 1e400 is read as
        return False
    return (_exact(number) / _exact(divisor)).denominator == 1


def _exact(number: float) -> Fraction:
    """Return a number as its decimal digits say: 19.99 is a multiple of 0.01, but not as a binary fraction."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _check_format(validator: Any, name: str, instance: Any, schema: Any) -> Errors:
    if not validator.format_checker.conforms(instance, name):
        yield _error()


def _check_type(validator: Any, kinds: str | Sequence[str], instance: Any, schema: Any) -> Errors:
    if not any(validator.is_type(instance, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        yield _error()


def _check_required(validator: Any, names: Sequence[str], instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict) and any(name not in instance for name in names):
        yield _error()


def _check_dependent(validator: Any, names: Mapping[str, Any], instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    for name, needed in names.items():
        for missing in (one for one in needed if name in instance and one not in instance):
            error = ValidationError(f"This field is required where there is {shorten(name, 100)}.")
            error.path.appendleft(missing)
            yield error


def _matches(validator: Any, schema: Any, instance: Any) -> bool:
    return bool(validator.evolve(schema=schema).is_valid(instance))


def _check_any(validator: Any, schemas: Sequence[Any], instance: Any, schema: Any) -> Errors:
    if not any(_matches(validator, one, instance) for one in schemas):
        yield _error()


def _check_one(validator: Any, schemas: Sequence[Any], instance: Any, schema: Any) -> Errors:
    matching = 0
    for one in schemas:
        matching += _matches(validator, one, instance)
        if matching > 1:
            break
    if matching != 1:
        yield _error()


def _check_not(validator: Any, refused: Any, instance: Any, schema: Any) -> Errors:
    if _matches(validator, refused, instance):
        yield _error()


def _check_contains(validator: Any, wanted: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, list):
        return
    least, most, matching = schema.get("minContains", 1), schema.get("maxContains", math.inf), 0
    items = validator.evolve(schema=wanted)
    for item in instance:
        matching += items.is_valid(item)
        if matching > most:
            yield ValidationError("", validator="maxContains", validator_value=most)
            return
    if matching < least:
        yield ValidationError("", validator="minContains", validator_value=least)


def _check_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and not compile_pattern(pattern).is_valid(instance):
        yield _error()


def _check_pattern_properties(spend: Spend, validator: Any, patterns: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                spend(STEPS_PER_MATCH + size(name))
                if compile_pattern(pattern).is_valid(name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _check_additional(spend: Spend, validator: Any, allowed: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        spend(len(patterns) * (STEPS_PER_MATCH + size(name)))
        if name in known or any(compile_pattern(pattern).is_valid(name) for pattern in patterns):
            continue
        if allowed is False:
            error = ValidationError("Unknown field.")
            error.path.appendleft(name)
            yield error
        elif isinstance(allowed, dict):
            yield from validator.descend(value, allowed, path=name)


def _check_unique(spend: Spend, validator: Any, is_unique: Any, instance: Any, schema: Any) -> Errors:
    """Compare the items' canonical texts: the library compares each pair of items."""
    if is_unique and isinstance(instance, list):
        spend(size_of_all(instance))
        texts = [json.dumps(_canonical(item), sort_keys=True) for item in instance]
        if len(set(texts)) < len(texts):
            yield _error()


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


_CHECKS: dict[str, Callable[..., Errors]] = {
    "anyOf": _check_any,
    "const": _fail_unless(_is_same),
    "contains": _check_contains,
    "dependentRequired": _check_dependent,
    "enum": _fail_unless(lambda constants, value: any(_is_same(one, value) for one in constants)),
    "exclusiveMaximum": _limit("number", lambda limit, number: number < limit),
    "exclusiveMinimum": _limit("number", lambda limit, number: number > limit),
    "format": _check_format,
    "maxItems": _limit("array", lambda limit, items: len(items) <= limit),
    "maxLength": _limit("string", lambda limit, text: len(text) <= limit),
    "maxProperties": _limit("object", lambda limit, fields: len(fields) <= limit),
    "maximum": _limit("number", lambda limit, number: number <= limit),
    "minItems": _limit("array", lambda limit, items: len(items) >= limit),
    "minLength": _limit("string", lambda limit, text: len(text) >= limit),
    "minProperties": _limit("object", lambda limit, fields: len(fields) >= limit),
    "minimum": _limit("number", lambda limit, number: number >= limit),
    "multipleOf": _limit("number", _is_multiple),
    "not": _check_not,
    "oneOf": _check_one,
    "pattern": _check_pattern,
    "required": _check_required,
    "type": _check_type,
}
# These count further steps themselves.
_COUNTING_CHECKS: dict[str, Callable[..., Errors]] = {
    "additionalProperties": _check_additional,
    "patternProperties": _check_pattern_properties,
    "uniqueItems": _check_unique,
}
_WORDS = {
    "anyOf": "Must match at least one of the schemas in anyOf.",
    "const": "Must be {value}.",
    "enum": "Must be one of {value}.",
    "exclusiveMaximum": "Must be less than {value}.",
    "exclusiveMinimum": "Must be more than {value}.",
    "format": "Must have the format {value}.",
    "maxContains": "Must have {value} or fewer items that match the schema in contains.",
    "maxItems": "Must have {value} or fewer items.",
    "maxLength": "Must have {value} or fewer characters.",
    "maxProperties": "Must have {value} or fewer fields.",
    "maximum": "Must be at most {value}.",
    "minContains": "Must have {value} or more items that match the schema in contains.",
    "minItems": "Must have {value} or more items.",
    "minLength": "Must have {value} or more characters.",
    "minProperties": "Must have {value} or more fields.",
    "minimum": "Must be at least {value}.",
    "multipleOf": "Must be a multiple of {value}.",
    "not": "Must not match the schema in not.",
    "oneOf": "Must match exactly one of the schemas in oneOf.",
    "pattern": "Must match the pattern {value}.",
    "uniqueItems": "Must not contain the same item twice.",
}
