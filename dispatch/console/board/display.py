"""The layout of the board: how jobs are shown, and which columns. Read from the URL, like its filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import QueryDict

from dispatch.console.board.cards import COLUMNS
from dispatch.console.board.filters import Filters
from dispatch.core.languages import mark

# Besides cards, the default.
LAYOUTS = {"": mark("Cards"), "compact": mark("Compact"), "list": mark("List")}


@dataclass(frozen=True)
class Display:
    """`layout`: a key of LAYOUTS. `columns`: the names of the columns shown; empty: all."""

    layout: str = ""
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, query: QueryDict) -> Display:
        """Parse the query: `layout`, and `columns` as names with commas. Invalid values are ignored."""
        layout = query.get("layout", "")
        given = {name for text in query.getlist("columns") for name in text[:200].split(",")}
        columns = tuple(name for name in COLUMNS if name in given)
        return cls(layout if layout in LAYOUTS else "", () if len(columns) == len(COLUMNS) else columns)

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the names of the columns shown."""
        return self.columns or tuple(COLUMNS)

    def as_query(self) -> dict[str, Any]:
        """Return the parameters that differ from the default."""
        query = {"layout": self.layout, "columns": ",".join(self.columns)}
        return {name: value for name, value in query.items() if value}


DEFAULT_DISPLAY = Display()


def describe_address(query: QueryDict) -> dict[str, Any]:
    """Return what a saved view keeps of the board's query: filters, layout, columns, the whole list, the map."""
    kept = {**Filters.of(query).as_query(), **Display.of(query).as_query()}
    if query.get("show") == "all":
        kept["show"] = "all"
    if query.get("map"):
        kept["map"] = "1"
    return kept


def normalize(query: str) -> str:
    """Return a query string in the form that is saved: known parameters in a fixed order."""
    return urlencode(describe_address(QueryDict(query[:4000])))
