"""The report by customer: jobs, and who came back. Erased customers have no phone, and are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phonenumber_field.phonenumber import PhoneNumber, to_python

from accounts.models import Organization
from dispatch.console.reports.pages import MAX_BARS, MAX_ROWS, Chart, Filters, Report, Series, service_choice
from dispatch.console.reports.periods import Period
from dispatch.console.reports.queries import fetch, span_parameters
from dispatch.console.reports.tables import COUNT, SHARE, TEXT, Column, Row, Table, csv_value, make_tile, share
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark

EXPORT_PAGE, EXPORT_MOST = 10_000, 200_000
COLUMNS = (
    Column("phone", mark("Phone"), TEXT),
    Column("jobs", mark("Jobs")),
    Column("completed", mark("Completed")),
    Column("canceled", mark("Canceled")),
    Column("earlier_jobs", mark("Jobs before")),
)

# One pass over the organization's jobs: without statistics, looking up each customer's earlier jobs could read all
# jobs every time.
_CUSTOMERS = """
SELECT * FROM (
    SELECT customer_phone AS phone, (array_agg(customer_name ORDER BY id DESC))[1] AS name,
        count(*) FILTER (WHERE {counts}) AS jobs,
        count(*) FILTER (WHERE {counts} AND status = 'completed') AS completed,
        count(*) FILTER (WHERE {counts} AND status = 'cancelled') AS canceled,
        count(*) FILTER (WHERE created_at < %(since)s) AS earlier
    FROM jobs_job
    WHERE organization_id = %(organization_id)s AND created_at < %(until)s
    AND duplicate_state <> 'merged' AND customer_phone <> '' AND customer_phone || '' > %(after)s
    GROUP BY customer_phone
) c WHERE jobs > 0
""".format(
    counts="created_at >= %(since)s AND (%(service_id)s::bigint IS NULL OR service_type_id = %(service_id)s)"
)
_TOP = f"{_CUSTOMERS} ORDER BY jobs DESC, phone LIMIT %(limit)s"
_PAGE = f"{_CUSTOMERS} ORDER BY phone LIMIT %(limit)s"
_TOTAL = f"""
SELECT count(*), coalesce(sum(jobs), 0), count(*) FILTER (WHERE jobs > 1 OR earlier > 0) FROM ({_CUSTOMERS}) c
"""


def build(organization: Organization, period: Period, filters: Filters) -> Report:
    """Build the report of a period, customers with most jobs first."""
    given = _given(organization, period, filters)
    rows = [_row(found) for found in fetch(_TOP, {**given, "limit": MAX_ROWS})]
    customers, jobs, returning = _load_total(organization, period, filters)
    past_customers, past_jobs, past_returning = _load_total(organization, period.previous, filters)
    repeat, past_repeat = share(returning, customers), share(past_returning, past_customers)
    return Report(
        tiles=[
            make_tile(mark("Customers"), COUNT, customers, past_customers),
            make_tile(mark("Returning customers"), COUNT, returning, past_returning),
            make_tile(mark("Share that returned"), SHARE, repeat, past_repeat, _("of all customers")),
            make_tile(mark("Jobs"), COUNT, jobs, past_jobs),
        ],
        charts=[_chart(rows)],
        tables=[
            Table(
                "customers", mark("By customer"), mark("Customer"), COLUMNS, rows, more=int(customers) - len(rows)
            )
        ],
        is_empty=not rows,
        note=mark(
            "A customer is a phone number. Customers return with a second job, or with one after earlier jobs."
        ),
        extra={"choices": [service_choice(organization, filters)]},
    )


def export_pages(organization: Organization, period: Period, filters: Filters) -> Iterator[list[list[Any]]]:
    """Yield the rows of all customers, by phone, in pages. Each page is a separate statement."""
    given = {**_given(organization, period, filters), "limit": EXPORT_PAGE}
    for _page in range(EXPORT_MOST // EXPORT_PAGE):
        found = fetch(_PAGE, given)
        if not found:
            return
        rows = [Row(name, {**_row((phone, name, *rest)).values, "phone": phone}) for phone, name, *rest in found]
        yield [[csv_value(row.name), *(csv_value(row.values[of.key]) for of in COLUMNS)] for row in rows]
        given["after"] = found[-1][0]


def _chart(rows: list[Row]) -> Chart:
    first = rows[:MAX_BARS]
    series = [
        Series(_("jobs"), "calling", [row.values["jobs"] for row in first], bars=True),
        Series(_("jobs before"), "off", [row.values["earlier_jobs"] for row in first], bars=True),
    ]
    names = [row.name for row in first]
    return Chart(_("Customers with most jobs"), names, series, sideways=True, is_wide=True)


def _load_total(organization: Organization, period: Period, filters: Filters) -> tuple[Any, ...]:
    return fetch(_TOTAL, _given(organization, period, filters))[0]


def _given(organization: Organization, period: Period, filters: Filters) -> dict[str, Any]:
    return span_parameters(organization, period, service_id=filters.service_id, after="")


def _row(found: tuple[Any, ...]) -> Row:
    phone, name, jobs, completed, canceled, earlier = found
    number = to_python(phone)
    shown = number.as_national if isinstance(number, PhoneNumber) and number.is_valid() else phone
    values = {"phone": shown, "jobs": jobs, "completed": completed, "canceled": canceled, "earlier_jobs": earlier}
    return Row(name, values, key=phone)
