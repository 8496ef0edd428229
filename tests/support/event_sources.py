"""Find in the source code which events are appended and with which fields, without running it.

Found are kinds that are literals, also as `kind = …`, and those of helpers that prefix a verb:
`_append_event(row, "changed", …)` with `f"calendar.{verb}"` in it. Kinds that are computed otherwise, such as
those in SQL, are not found.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.processes import ROOT

FOLDERS = ("dispatch", "accounts", "notifications")
KIND = re.compile(r"[a-z_]+\.[a-z_]+")
# Functions that append an event besides those with "append" or "event" in their names.
_NAMED = re.compile(r"append|event", re.IGNORECASE)
# Arguments of functions that append events, which are no fields.
NO_FIELDS = {"actor", "at", "url_name"}


class Helper(NamedTuple):
    """A function that appends an event whose verb is its argument at `place`, with these fields."""

    prefix: str
    place: int
    fields: frozenset[str]


@functools.cache
def find_sources() -> dict[str, set[str]]:
    """Return the fields of each kind of event that the code appends, as far as the code names them."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if {"migrations", "dev"} & set(path.parts) or not _NAMED.search(text := path.read_text()):
                continue
            for kind, fields in _find_in(ast.parse(text)):
                found[kind] |= fields
    return dict(found)


def _find_in(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    helpers = {name: helper for function in ast.walk(tree) for name, helper in _helpers_of(function)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Assign) and [_name(target) for target in call.targets] == ["kind"]:
            yield from ((kind, set()) for kind in _texts(call.value) if KIND.fullmatch(kind))
        if not isinstance(call, ast.Call):
            continue
        name, fields = _name(call.func), _fields(call)
        if _NAMED.search(name):
            for argument in call.args:
                for kind in _texts(argument):
                    if KIND.fullmatch(kind):
                        yield kind, fields
        if (helper := helpers.get(name)) and helper.place < len(call.args):
            for verb in _texts(call.args[helper.place]):
                yield helper.prefix + verb, fields | helper.fields


def _helpers_of(function: ast.AST) -> Iterator[tuple[str, Helper]]:
    if not isinstance(function, ast.FunctionDef):
        return
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        for argument in call.args:
            match argument:
                case ast.JoinedStr(
                    values=[ast.Constant(value=str(prefix)), ast.FormattedValue(value=ast.Name(id=verb))]
                ) if prefix.endswith(".") and verb in names:
                    yield function.name, Helper(prefix, names.index(verb), frozenset(_fields(call)))


def _texts(node: ast.expr) -> list[str]:
    """Return the texts that the expression can be: a literal, or either branch of a condition."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    return [*_texts(node.body), *_texts(node.orelse)] if isinstance(node, ast.IfExp) else []


def _fields(call: ast.Call) -> set[str]:
    return {keyword.arg for keyword in call.keywords if keyword.arg} - NO_FIELDS


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
