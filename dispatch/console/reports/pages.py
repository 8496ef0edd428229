"""What a report consists of: totals, charts and tables. The page, the CSV files and the email are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db.models import QuerySet

from accounts.models import Organization
from dispatch.console.reports.tables import COUNT, Row, Table, Tile
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.jobs.models import ServiceType

# Rows of a chart by name, and of a table by name on a page.
MAX_BARS, MAX_ROWS = 10, 100


@dataclass(frozen=True)
class Filters:
    """What the URL asks for besides the period. Values that do not exist count as none.

    `service`: only jobs of this service. `purpose`: only calls of this purpose. `measure`: what the heat shows.
    """

    service: ServiceType | None = None
    purpose: str = ""
    measure: str = ""

    @property
    def service_id(self) -> int | None:
        return self.service.pk if self.service else None


@dataclass(frozen=True)
class Choice:
    """A filter of a report: its name in the URL, its label, and its options as (value, words)."""

    name: str
    label: str
    options: Sequence[tuple[str, str]]
    chosen: str = ""


@dataclass(frozen=True)
class Series:
    """A series of a chart. `tone` is a color token. `dashed`: of the previous period. `bars`: drawn as bars."""

    label: str
    tone: str
    values: Sequence[float | int | None]
    dashed: bool = False
    bars: bool = False
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A chart over `names` (days, hours or technicians).

    `sideways`: with horizontal bars. `top`: end of its scale. `Series.names` replace the chart's names on hover,
    for the days of the previous period.
    """

    title: str
    names: Sequence[str]
    series: Sequence[Series]
    kind: str = COUNT
    top: float | None = None
    sideways: bool = False
    is_wide: bool = False

    @property
    def is_empty(self) -> bool:
        return not any(value for series in self.series for value in series.values)

    @property
    def data(self) -> dict[str, Any]:
        """The chart as JSON for the page's script."""
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """A report of a period. `nothing` is the heading if there is nothing to show."""

    tiles: Sequence[Tile] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    is_empty: bool = False
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


def service_choice(organization: Organization, filters: Filters) -> Choice:
    """Return the filter by service."""
    services: QuerySet[ServiceType] = ServiceType.objects.of(organization)
    options = [("", mark("All services")), *((service.code, service.name) for service in services)]
    return Choice("service", mark("Service"), options, filters.service.code if filters.service else "")


def bar_chart(title: str, rows: Sequence[Row], before: Sequence[Row], *columns: tuple[str, str, str]) -> Chart:
    """Return horizontal bars of the first rows, and the previous period's of the first column.

    `columns`: (key, label, tone) of each series.
    """
    first = rows[:MAX_BARS]
    series = [
        Series(label, tone, [row.values.get(key) or 0 for row in first], bars=True) for key, label, tone in columns
    ]
    key, label = columns[0][:2]
    past = {row.key: row.values.get(key) or 0 for row in before}
    earlier_label = _("{label}, previous period").format(label=label)
    earlier = Series(earlier_label, "off", [past.get(row.key, 0) for row in first], bars=True)
    return Chart(title, [row.name for row in first], [*series, earlier], sideways=True, is_wide=True)
