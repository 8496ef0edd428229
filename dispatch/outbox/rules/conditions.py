"""Evaluate an endpoint's condition, a JMESPath expression, on the payload of a message.

The cost is bounded: an expression has at most MAX_LENGTH characters and MAX_NODES nodes, and is made only of parts
whose result is never larger than their input. Multiselects, flattening, expression references and the other
functions are refused: a few of them in a row grow exponentially. So do filters and projections of literal lists
within each other; a list or an object may only be compared, or searched by `contains`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError, LexerError, ParseError
from jmespath.parser import ParsedResult

from dispatch.core.languages import gettext as _

MAX_LENGTH = 500
MAX_NODES = 100
NODES = frozenset(
    {
        "and_expression", "comparator", "current", "field", "filter_projection", "function_expression", "identity",
        "index", "index_expression", "literal", "not_expression", "or_expression", "pipe", "projection", "slice",
        "subexpression", "value_projection",
    }
)  # fmt: skip
FUNCTIONS = frozenset(
    {
        "abs", "avg", "ceil", "contains", "ends_with", "floor", "keys", "length", "max", "min", "not_null",
        "starts_with", "sum", "to_number", "type", "values",
    }
)  # fmt: skip


class InvalidCondition(ValueError):
    """The expression is malformed or uses a part that is not allowed. The message is for users."""


class ConditionFailed(ValueError):
    """The expression cannot be evaluated on this payload. The message is for users."""


@functools.lru_cache(maxsize=500)
def parse_condition(text: str) -> ParsedResult:
    """Return the parsed expression. Raises InvalidCondition."""
    if len(text) > MAX_LENGTH:
        raise InvalidCondition(_("Must have at most {most} characters.").format(most=MAX_LENGTH))
    try:
        parsed = jmespath.compile(text)
        nodes = list(_nodes_of(parsed.parsed))
    except (LexerError, ParseError) as error:
        raise InvalidCondition(_("Not a JMESPath expression: {error}").format(error=_first_line(error))) from None
    except (RecursionError, JMESPathError, ValueError) as error:
        raise InvalidCondition(
            _("Not a JMESPath expression: {error}").format(error=f"{type(error).__name__}.")
        ) from None
    if len(nodes) > MAX_NODES:
        too_many = _("Must have at most {most} parts; this expression has {count}.")
        raise InvalidCondition(too_many.format(most=MAX_NODES, count=len(nodes)))
    if _has_loose_list(parsed.parsed):
        raise InvalidCondition(
            _("Not allowed in a condition: a literal list or object, except in a comparison or in contains.")
        )
    for node in nodes:
        if node["type"] not in NODES:
            part = node["type"].replace("_", " ")
            raise InvalidCondition(_("Not allowed in a condition: {part}.").format(part=part))
        if node["type"] == "function_expression" and node["value"] not in FUNCTIONS:
            allowed = ", ".join(sorted(FUNCTIONS))
            refused = _("Not allowed in a condition: the function {name}. Allowed: {allowed}.")
            raise InvalidCondition(refused.format(name=node["value"], allowed=allowed))
    return parsed


def evaluate_condition(text: str, body: Mapping[str, Any]) -> bool:
    """Return whether the condition holds for a payload. An empty condition always holds.

    As in JMESPath, null, false and empty strings, lists and objects do not hold; 0 does. Raises InvalidCondition
    and ConditionFailed.
    """
    if not text:
        return True
    try:
        result = parse_condition(text).search(body)
    except InvalidCondition:
        raise
    except (JMESPathError, ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise ConditionFailed(_first_line(error)) from None
    return not (result is None or result is False or (isinstance(result, (str, list, dict)) and not result))


def _nodes_of(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node["children"]:
        if isinstance(child, dict):  # the children of a slice are numbers
            yield from _nodes_of(child)


def _has_loose_list(node: Mapping[str, Any], *, is_used: bool = False) -> bool:
    """Return whether the expression contains a literal list or object that is neither compared nor searched.

    `is_used`: this node itself is compared or searched.
    """
    if node["type"] == "literal":
        return isinstance(node["value"], (list, dict)) and not is_used
    uses = node["type"] == "comparator" or (node["type"], node.get("value")) == ("function_expression", "contains")
    children = (child for child in node["children"] if isinstance(child, dict))
    return any(_has_loose_list(child, is_used=uses) for child in children)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
