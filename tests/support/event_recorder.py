"""Record which events tests cause: `pytest -p tests.support.event_recorder tests/jobs` writes EVENTS_OBSERVED.

The file has, for each kind, how many events were seen, the types of their actors, and for each field of their data
the JSON types and how often it was present. `python -m tests.event_types` updates the catalog from it.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

_counts: Counter[str] = Counter()
_actors: dict[str, set[str]] = defaultdict(set)
_fields: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))


def json_type(value: Any) -> str:
    """Return the name of a value's type in JSON Schema."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: Any) -> Iterator[None]:
    """Read the events before the test's rows are deleted."""
    with suppress(Exception):
        _read()
    return (yield)


def _read() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '5s'" if connection.in_atomic_block else "SELECT 1")
        cursor.execute("SELECT kind, actor_type, data FROM core_event ORDER BY id LIMIT 5000")
        rows = cursor.fetchall()
    for kind, actor_type, data in rows:
        data = json.loads(data) if isinstance(data, str) else data
        _counts[kind] += 1
        _actors[kind].add(actor_type)
        for name, value in data.items():
            _fields[kind][name][json_type(value)] += 1


def pytest_sessionfinish() -> None:
    """Write what was seen."""
    observed = {
        kind: {
            "count": count,
            "actors": sorted(_actors[kind]),
            "fields": {name: dict(types) for name, types in sorted(_fields[kind].items())},
        }
        for kind, count in sorted(_counts.items())
    }
    with open(os.environ.get("EVENTS_OBSERVED", "events.json"), "w") as file:
        json.dump(observed, file, indent=1)
