"""Read and write CSV files that are compatible with spreadsheets."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse

from dispatch.core.languages import gettext as _

# Where a formula can begin: at the beginning of a text, and after each character at which a spreadsheet may split
# it, since the separator depends on the language of the computer. An apostrophe there makes it a text.
_START = r"(?:\A|(?<=[;,\t\r\n]))"
_FORMULA = r"""(?='*"*[=+\-@\t\r])"""
_UNESCAPED, _ESCAPED = re.compile(_START + _FORMULA), re.compile(f"{_START}'{_FORMULA}")

MAX_COLUMNS = 100
MAX_CELL = 4_000  # characters
MAX_ROW = 100_000  # characters per line of the file
MAX_EMPTY = 10  # rows per allowed nonempty row, empty ones included
_NAMES_SHOWN, _NAME_SHOWN = 5, 40


class BadFile(ValueError):
    """The file as a whole is invalid. The message is for users."""


def as_text(file: Any, *, largest: int) -> str:
    """Return an uploaded file's text.

    Raises BadFile if there is no file, it has more than `largest` bytes, or it is not UTF-8.
    """
    if file is None:
        raise BadFile(_("Choose a file."))
    if file.size > largest:
        raise BadFile(_("The file is larger than {size} MB. Split it.").format(size=largest // 1024 // 1024))
    try:
        text: str = file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadFile(_("The file is not UTF-8 text. Save it as CSV in UTF-8.")) from None
    return text


def read_rows(text: str, *, needs: str, most: int) -> list[tuple[int, dict[str, str]]]:
    """Read the rows below the header, each with its number and its cells by column.

    The header is row 1, as in a spreadsheet; a cell may have several lines. Column names are in lower case, cells
    are stripped, and missing cells are "". The separator is a comma or a semicolon. Empty rows are skipped.

    Raises BadFile if the column `needs` is missing, a name occurs twice, there is no row, or there are more than
    `most` rows. Files with too many columns or too long cells are rejected before they use much memory.
    """
    head = text[:MAX_ROW].partition("\n")[0]
    delimiter = ";" if head.count(";") > head.count(",") else ","
    if "\x00" in text:
        raise BadFile(_("The file is not a text file. Save it as CSV in UTF-8."))
    reader = csv.reader(_short_lines(text), strict=True, delimiter=delimiter)
    rows: list[tuple[int, dict[str, str]]] = []
    try:
        names = [name.lower() for name in _cells(next(reader, []), 1)]
        _check_names(names, needs)
        for position, cells in enumerate(reader, start=2):
            values = _cells(cells, position)
            if any(values):
                if len(rows) == most:
                    raise BadFile(_("The file has more than {most} rows. Split it.").format(most=f"{most:,}"))
                values += [""] * (len(names) - len(values))
                rows.append((position, dict(zip(names, values, strict=False))))
            elif position > MAX_EMPTY * most + 1:
                raise BadFile(_("The file has too many empty rows. Delete them."))
    except csv.Error as error:
        invalid = _("The file is not valid CSV (line {line}): {error}.")
        raise BadFile(invalid.format(line=reader.line_num, error=error)) from None
    if not rows:
        raise BadFile(_("The file has no rows below its header."))
    return rows


def _short_lines(text: str) -> Iterator[str]:
    """Yield the text's lines. Raises BadFile for a line that is too long to be split into cells."""
    for number, line in enumerate(io.StringIO(text, newline=""), start=1):
        if len(line) > MAX_ROW:
            too_long = _("Line {line} is longer than {most} characters.")
            raise BadFile(too_long.format(line=number, most=f"{MAX_ROW:,}"))
        yield line


def _cells(cells: list[str], row: int) -> list[str]:
    """Return a row's stripped cells. Raises BadFile if there are too many, or one is too long."""
    if len(cells) > MAX_COLUMNS:
        too_wide = _("Row {row} has {count} columns. A file can have at most {most}.")
        raise BadFile(too_wide.format(row=row, count=f"{len(cells):,}", most=MAX_COLUMNS))
    values = [cell.strip() for cell in cells]
    if any(len(value) > MAX_CELL for value in values):
        too_long = _("Row {row} has a cell longer than {most} characters.")
        raise BadFile(too_long.format(row=row, most=f"{MAX_CELL:,}"))
    return values


def _check_names(names: list[str], needs: str) -> None:
    if needs not in names:
        unnamed = _("The first row must name the columns, including {column}.")
        raise BadFile(unnamed.format(column=needs))
    if twice := sorted(name for name, count in Counter(names).items() if name and count > 1):
        shown = ", ".join(name[:_NAME_SHOWN] for name in twice[:_NAMES_SHOWN])
        if (more := len(twice) - _NAMES_SHOWN) > 0:
            shown = _("{columns} and {count} more").format(columns=shown, count=more)
        raise BadFile(_("The first row contains duplicate columns: {columns}.").format(columns=shown))


def csv_response(name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponse:
    """Return a table as a CSV file called `name`. Pass texts through `escape_formula` first."""
    response = HttpResponse(
        content_type="text/csv; charset=utf-8", headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
    response.write("\ufeff")  # makes spreadsheets read it as UTF-8
    table = csv.writer(response)
    table.writerow(head)
    table.writerows(rows)
    return response


def csv_stream(name: str, head: Sequence[str], pages: Iterable[Sequence[Sequence[Any]]]) -> StreamingHttpResponse:
    """Return a table as a CSV file called `name`, sent page by page. Memory holds one page at a time.

    `pages` is advanced in a thread, and may read the database. Pass texts through `escape_formula` first.
    """
    return StreamingHttpResponse(
        _encode_pages(head, iter(pages)),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


async def _encode_pages(head: Sequence[str], pages: Iterator[Sequence[Sequence[Any]]]) -> AsyncIterator[bytes]:
    # asynchronous, because ASGI would collect the parts of any other iterator before it sends the first
    yield ("\ufeff" + _encode([head])).encode()
    while (page := await sync_to_async(lambda: next(pages, None))()) is not None:
        yield _encode(page).encode()


def _encode(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def escape_formula(text: str) -> str:
    """Escape a text that a spreadsheet would read as a formula, or would split into cells of which one is."""
    return _UNESCAPED.sub("'", text)


def unescape_formula(text: str) -> str:
    """Reverse `escape_formula`."""
    return _ESCAPED.sub("", text)
