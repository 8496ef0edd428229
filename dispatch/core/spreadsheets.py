"""CSV files as people's spreadsheets write and read them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from django.http import HttpResponse

# What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class BadFile(ValueError):
    """What is wrong with the file as a whole, for a person to read."""


def as_text(file: Any, *, largest: int) -> str:
    """An uploaded file's text. Raises BadFile when there is none, it has more than `largest` bytes, or is not
    UTF-8."""
    if file is None:
        raise BadFile("Choose a file.")
    if file.size > largest:
        raise BadFile(f"The file is larger than {largest // 1024 // 1024} MB. Split it.")
    try:
        text: str = file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadFile("The file is not UTF-8 text. Save it as CSV in UTF-8.") from None
    return text


def rows_of(text: str, *, needs: str, most: int) -> list[tuple[int, dict[str, str]]]:
    """The rows below the head, each with the number of its last line in the file and its cells by column (names in
    small letters, cells stripped; "" for what is missing). Commas or semicolons apart. Rows without any cell are
    left out. Raises BadFile when the column `needs` is missing, a name stands twice, there is no row, or there are
    more than `most`."""
    head = text.partition("\n")[0]
    delimiter = ";" if head.count(";") > head.count(",") else ","
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    found: list[tuple[int, dict[str, str]]] = []
    if "\x00" in text:
        raise BadFile("The file is no text. Save it as CSV in UTF-8.")
    try:
        names = [name.strip().lower() for name in next(reader, [])]
        if needs not in names:
            raise BadFile(f"The first line names the columns, and one of them must be {needs}.")
        if twice := sorted({name for name in names if name and names.count(name) > 1}):
            raise BadFile(f"The first line names a column twice: {', '.join(twice)}.")
        for cells in reader:
            values = [cell.strip() for cell in cells] + [""] * (len(names) - len(cells))
            if any(values):
                found.append((reader.line_num, dict(zip(names, values, strict=False))))
    except csv.Error as error:
        raise BadFile(f"The file is no CSV (line {reader.line_num}): {error}.") from None
    if not found:
        raise BadFile("The file has no line below its head.")
    if len(found) > most:
        raise BadFile(f"The file has {len(found):,} lines; {most:,} are taken at once. Split it.")
    return found


def answer(name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponse:
    """A table as a file called `name`. Texts in it must have gone through `safe`."""
    found = HttpResponse(
        content_type="text/csv; charset=utf-8", headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
    found.write("\ufeff")  # spreadsheets take it for UTF-8
    table = csv.writer(found)
    table.writerow(head)
    table.writerows(rows)
    return found


def safe(text: str) -> str:
    """A text that a spreadsheet would take for a formula is kept a text."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def unsafe(text: str) -> str:
    """What `safe` was given."""
    return text[1:] if text[:1] == "'" and text[1:].startswith(_FORMULA) else text
