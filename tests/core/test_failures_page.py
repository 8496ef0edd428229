"""docs/operations/failures.md names tests and alert rules that exist, and has every part for each fault."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.core.test_alerts import rules
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "operations" / "failures.md"
COLUMNS = ["Fault", "What a user sees", "What an operator does", "Recovery", "Test", "Alert"]
NONE = "–"


def tables() -> list[list[list[str]]]:
    """Return the cells of each table, row by row, with its header."""
    found: list[list[list[str]]] = [[]]
    for line in PAGE.read_text().splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


ROWS = [row for table in tables() for row in table[2:]]
by_fault = pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])


@cache
def defined_in(path: str) -> set[str]:
    return set(re.findall(r"^def (test_\w+)\(", (ROOT / path).read_text(), re.MULTILINE))


def test_every_table_has_the_same_columns() -> None:
    assert len(ROWS) > 30
    assert [table[0] for table in tables()] == [COLUMNS] * len(tables())
    assert len({row[0] for row in ROWS}) == len(ROWS)


@by_fault
def test_a_fault_has_every_part(row: list[str]) -> None:
    assert len(row) == len(COLUMNS)
    assert all(row)
    assert row[3].startswith(("Measured", "Bound", "None"))


@by_fault
def test_the_tests_of_a_fault_exist(row: list[str]) -> None:
    named = [item.strip("`").partition("::") for item in row[4].split(", ")]
    assert named
    missing = [f"{path}::{name}" for path, _, name in named if name not in defined_in(path)]
    assert missing == []


@by_fault
def test_the_alert_rules_of_a_fault_exist(row: list[str]) -> None:
    if row[5] == NONE:
        return
    known = {rule["alert"] for rule in rules()}
    assert [name for name in row[5].split(", ") if name.strip("`") not in known] == []
