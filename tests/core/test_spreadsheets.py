"""CSV files are rejected before they cost memory or time."""

from __future__ import annotations

import csv
import io
import tracemalloc
from collections.abc import Callable

import pytest

from dispatch.core import csv_files
from dispatch.core.csv_files import MAX_CELL, MAX_COLUMNS, MAX_ROW, BadFile, read_rows

MIB = 2**20


def peak_of(do: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def wide(columns: int, rows: int) -> str:
    head = ",".join(["phone", *(f"c{n}" for n in range(columns - 1))])
    return f"{head}\n" + "1\n" * rows


HOSTILE = {
    "20,000 columns": (wide(20_000, 1), f"Line 1 is longer than {MAX_ROW:,} characters"),
    "20,000 columns of one name": ("phone" + ",a" * 20_000 + "\n1\n", f"at most {MAX_COLUMNS}."),
    "2,000 columns, 4,000 rows": (wide(2_000, 4_000), f"at most {MAX_COLUMNS}."),
    "a million rows": ("phone\n" + "1\n" * 1_000_000, "more than 10,000 rows"),
    "a million empty rows": ("phone\n" + "\n" * 1_000_000, "empty rows"),
    "a million cells in a row": ("phone\n" + "," * 1_000_000, f"longer than {MAX_ROW:,} characters"),
    "a few cells too many": ("phone\n" + "1," * 200, f"at most {MAX_COLUMNS}."),
    "a long cell": (f"phone,a\n1,{'x' * (MAX_CELL + 1)}\n", f"longer than {MAX_CELL:,} characters"),
    "a long name": (f"phone,{'x' * (MAX_CELL + 1)}\n1,2\n", f"longer than {MAX_CELL:,} characters"),
    "an endless quoted cell": ('phone,a\n1,"' + "x\n" * 1_000_000, "not valid CSV"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_within_bounded_memory(name):
    content, words = HOSTILE[name]
    found: list[str] = []

    def read() -> None:
        with pytest.raises(BadFile) as refused:
            read_rows(content, needs="phone", most=10_000)
        found.append(str(refused.value))

    # the buffer has up to four bytes per character, and 10,000 rows may be read before the next is rejected
    assert peak_of(read) < 4 * len(content) + 8 * MIB
    assert words in found[0]
    assert len(found[0]) < 300


def test_the_largest_allowed_file_is_read():
    head = ",".join(["phone", *(f"c{n}" for n in range(MAX_COLUMNS - 1))])
    rows = read_rows(f"{head}\n" + "1,2\n" * 1_000, needs="phone", most=1_000)
    assert len(rows) == 1_000
    assert len(rows[0][1]) == MAX_COLUMNS


def test_row_limit_is_exact():
    assert len(read_rows("phone\n1\n\n2\n", needs="phone", most=2)) == 2
    with pytest.raises(BadFile, match="more than 2 rows"):
        read_rows("phone\n1\n2\n3\n", needs="phone", most=2)


def test_rows_are_numbered_as_in_a_spreadsheet():
    rows = read_rows('phone,note\n1,"two\nlines"\n\n2,\n', needs="phone", most=2)
    assert [(number, row["phone"]) for number, row in rows] == [(2, "1"), (4, "2")]


def test_doubled_column_names_are_listed_briefly():
    with pytest.raises(BadFile, match="contains duplicate columns: a, phone"):
        read_rows("phone,a,phone,a,b,,\n1\n", needs="phone", most=5)
    doubled = ",".join(f"{'x' * 90}{n}" for n in range(20))
    with pytest.raises(BadFile) as refused:
        read_rows(f"phone,{doubled},{doubled}\n1\n", needs="phone", most=5)
    assert len(str(refused.value)) < 300


FORMULAS = [
    "=1+1", "+1602", "-1", "@a", "\t=1", "\r=1", "Ann;=cmd|'/C calc'!A0;x", "a,-b", "a\n@b", "a\r\n=b", "a\t\t=b",
    ";;=a", 'Ann;"=a"', '"=a"', "'=a", "''=a", "a;'=b", "a;'\"=b", "'\t'\t=", "\r",
]  # fmt: skip
HARMLESS = ["plain", "'quoted", "O'Brien", "a=b", "a - b", "a, -b", "a; b", 'say "a"', "a;b;'c", "", "'", ";"]


def test_escaped_formulas_survive_a_round_trip():
    for text in [*FORMULAS, *HARMLESS]:
        once = csv_files.escape_formula(text)
        assert csv_files.unescape_formula(once) == text
        assert csv_files.unescape_formula(csv_files.escape_formula(once)) == once
    assert [csv_files.escape_formula(text) for text in HARMLESS] == HARMLESS


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_no_text_becomes_a_formula_whatever_the_separator_is(separator):
    for text in FORMULAS:
        file = io.StringIO(newline="")
        csv.writer(file).writerow([1, csv_files.escape_formula(text), "x"])
        for row in csv.reader(io.StringIO(file.getvalue(), newline=""), delimiter=separator):
            assert not [cell for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))], (text, row)
