"""Runs the suites, prints a table and writes bench.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("DISPATCH_DATA_DIR", ".data/bench")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from django.db import connection  # noqa: E402

from tests.benchmarks import Result  # noqa: E402
from tests.support.database import reconnect  # noqa: E402

HERE = Path(__file__).parent
OUTPUT = HERE.parent.parent / "bench.json"


def main() -> int:
    """The process's exit code: 0 also when a target is missed, for that is a figure like others."""
    suites = sorted(path.stem for path in HERE.glob("[a-z]*.py") if "def run(" in path.read_text())
    parser = argparse.ArgumentParser(prog="make bench", description="Measures, prints a table, writes bench.json.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(suites)} (default: all)")
    wanted = parser.parse_args().suites or suites
    if unknown := set(wanted) - set(suites):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(suites)}")

    rows: list[dict[str, Any]] = []
    on = machine()
    for suite in wanted:
        with own_database():  # each its own, or one works off what another left
            for result in import_module(f"tests.benchmarks.{suite}").run():
                print(line(suite, result), flush=True)
                rows.append({"suite": suite, **vars(result), "machine": on})
    kept = [row for row in earlier() if row["suite"] not in wanted]
    OUTPUT.write_text(json.dumps(kept + rows, indent=1) + "\n")
    missed = [row for row in rows if Result(**{k: row[k] for k in Result.__annotations__}).met() is False]
    print(f"\n{len(rows)} figures on {on}, in {OUTPUT.name}; {len(missed)} targets missed.")
    return 0


def line(suite: str, result: Result) -> str:
    verdict = {True: "ok", False: "MISSED", None: ""}[result.met()]
    value = f"{result.value:,.0f}" if abs(result.value) >= 100 else f"{result.value:,.2f}"
    name = result.name + (f" [{result.peer}]" if result.peer else "")
    return f"{suite:<10} {name:<70} {value:>12} {result.unit:<14} {result.target:<12} {verdict}"


def machine() -> str:
    """What the figures were taken on, without names."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        postgres = cursor.fetchone()[0].split()[0]
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, PostgreSQL {postgres}, {sys.platform}"


def earlier() -> list[dict[str, Any]]:
    try:
        return json.loads(OUTPUT.read_text())
    except (OSError, ValueError):
        return []


@contextmanager
def own_database() -> Iterator[None]:
    """A fresh database beside the tests', dropped at the end; an empty Redis."""
    from tests.conftest import forget_redis

    # Measured as it is run, not as it is tested.
    reconnect()
    for name in ("options", "pool"):
        connection.settings_dict["OPTIONS"].pop(name, None)
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    forget_redis()
    try:
        yield
    finally:
        connection.creation.destroy_test_db(name, verbosity=0)


if __name__ == "__main__":
    sys.exit(main())
