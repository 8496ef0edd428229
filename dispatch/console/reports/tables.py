"""Tables of figures: columns, rows, and the comparison with the previous period. Pages, CSV and email share them.

Figures are None if there is nothing to count; times are in seconds, shares from 0 to 1. Words are in the active
language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from dispatch.console.templatetags.console import percent, seconds
from dispatch.core import csv_files
from dispatch.core.languages import gettext as _
from dispatch.core.languages import ngettext

Figure = int | float | Decimal | None
COUNT, SECONDS, SHARE, AVERAGE, MONEY, TEXT = "count", "seconds", "share", "average", "money", "text"
DASH = "—"


@dataclass(frozen=True)
class Column:
    """A column: its `key` in rows and in the header of CSV files, its title, and the kind of its values."""

    key: str
    title: str
    kind: str = COUNT

    @property
    def heading(self) -> str:
        """The title in the active language."""
        return _(self.title)

    @property
    def is_number(self) -> bool:
        return self.kind != TEXT


@dataclass(frozen=True)
class Row:
    """The figures of one technician, day or hour. `note` is a second line below its name."""

    name: str
    values: Mapping[str, Any]
    note: str = ""
    key: Any = None

    @property
    def csv_name(self) -> str:
        """The name in CSV files: of a day in ISO format, of anything else such that it cannot become a formula."""
        return f"{self.key}" if isinstance(self.key, date) else csv_files.escape_formula(self.name)


@dataclass(frozen=True)
class Tile:
    """A total of the period with its change. `note` explains it if there is nothing to compare."""

    title: str
    value: str
    change: str = ""
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """A value as words, with the heading of its column.

    `heat` from 0 to 5 is how high it is in a table that shows heat, None in any other.
    """

    words: str
    heading: str
    is_number: bool = True
    heat: int | None = None


@dataclass(frozen=True)
class Table:
    """A table of figures. `what` names its rows, and `slug` its CSV file. `total` is its last row, if it has one.

    `most`: how many rows a page shows. `more`: rows that only the CSV has. `heats`: columns whose values have a
    background by their height.
    """

    slug: str
    title: str
    what: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    total: Row | None = None
    most: int = 400
    more: int = 0
    heats: frozenset[str] = field(default_factory=frozenset)

    @property
    def heading(self) -> str:
        """The title in the active language."""
        return _(self.title)

    @property
    def row_heading(self) -> str:
        """What a row is about, in the active language."""
        return _(self.what)

    @property
    def shown_rows(self) -> list[tuple[Row, list[Cell]]]:
        """Each row with its cells as words."""
        most = self._highest()
        return [(row, self._cells(row, most)) for row in self.rows[: self.most]]

    @property
    def left_out(self) -> int:
        """How many rows are only in the CSV."""
        return max(0, len(self.rows) - self.most) + self.more

    @property
    def shown_total(self) -> list[Cell]:
        """The cells of the last row; none without a total."""
        return self._cells(self.total, 0) if self.total else []

    @property
    def csv_head(self) -> list[str]:
        return [self.what.lower(), *(column.key for column in self.columns)]

    @property
    def csv_rows(self) -> list[list[Any]]:
        """The rows with unformatted values; texts cannot become formulas."""
        return [[row.csv_name, *(csv_value(row.values.get(of.key)) for of in self.columns)] for row in self.rows]

    def _highest(self) -> float:
        return max((row.values.get(key) or 0 for row in self.rows for key in self.heats), default=0)

    def _cells(self, row: Row, most: float) -> list[Cell]:
        return [
            Cell(
                format_value(column.kind, row.values.get(column.key)),
                column.heading,
                column.is_number,
                _heat(row.values.get(column.key) or 0, most) if most and column.key in self.heats else None,
            )
            for column in self.columns
        ]


def _heat(value: float, most: float) -> int:
    return -(-int(5 * value * 1000) // int(most * 1000)) if value else 0


def csv_value(value: Any) -> Any:
    """Return a value for a CSV file: shares and times rounded, texts that cannot become formulas."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, str):
        return csv_files.escape_formula(value)
    return value


def format_value(kind: str, value: Any) -> str:
    """Return a value as words."""
    if value is None:
        return DASH
    if kind == SECONDS:
        return seconds(value)
    if kind == SHARE:
        return percent(value)
    if kind == AVERAGE:
        return f"{value:.1f}"
    if kind == MONEY:
        return _format_money(Decimal(value))
    return f"{value:,}" if kind == COUNT else str(value)


def _format_money(value: Decimal) -> str:
    """Return an amount with two decimals, or with more if it is small: a text costs less than a cent."""
    return f"{value:,.2f}" if abs(value) >= 1 or value == round(value, 2) else f"{value.normalize():f}"


def share(part: Figure, whole: Figure) -> float | None:
    """Return the share from 0 to 1, or None of nothing."""
    return float(part or 0) / float(whole) if whole else None


def make_tile(title: str, kind: str, now: Figure, before: Figure, note: str = "") -> Tile:
    """Return the tile of a total with its change since the previous period."""
    return Tile(_(title), format_value(kind, now), describe_change(kind, now, before), note)


def describe_change(kind: str, now: Figure, before: Figure) -> str:
    """Return the change in words: "up 12% from 25", "down 3 points from 64%"; empty if one is unknown."""
    if now is None or before is None:
        return ""
    was = format_value(kind, before)
    if format_value(kind, now) == was:
        return _("unchanged")
    return _words_of(float(now) - float(before)).format(change=_size(kind, now, before), before=was)


def _words_of(difference: float) -> str:
    return _("up {change} from {before}") if difference > 0 else _("down {change} from {before}")


def _size(kind: str, now: Any, before: Any) -> str:
    """Return the size of a change. Of shares and times, it is the difference of what is shown."""
    difference = abs(float(now) - float(before))
    if kind == SHARE:
        points = abs(round(100 * float(now)) - round(100 * float(before)))
        return ngettext("{count} point", "{count} points", points).format(count=points)
    if kind == SECONDS:
        return seconds(abs(int(now) - int(before)))
    if not before:
        return format_value(kind, now)
    relative = 100 * difference / abs(float(before))
    return f"{relative:.0f}%" if relative >= 1 else "1%"
