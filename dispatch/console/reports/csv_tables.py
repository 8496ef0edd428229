"""Which table of a report a CSV file has, its header, and the name of the file."""

from __future__ import annotations

from dispatch.console.reports.pages import Report
from dispatch.console.reports.periods import Period
from dispatch.console.reports.tables import Table


def choose_table(report: Report, by: str = "") -> Table:
    """Return the report's table of that name; by default the overview's by day, of any other report the first."""
    tables = {table.slug: table for table in report.tables}
    return tables.get(by or "day") or report.tables[0]


def csv_head(table: Table, period: Period) -> list[str]:
    """Return the header of a table's CSV. Days and hours name their time zone."""
    first, *others = table.csv_head
    return [f"{first} ({period.zone})" if first in ("day", "hour") else first, *others]


def file_name(organization_slug: str, by: str, period: Period) -> str:
    """Return the name of a CSV file."""
    return f"dispatch-{organization_slug}-by-{by}-{period.first}-{period.last}.csv"
