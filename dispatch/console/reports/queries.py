"""Run the statements of reports, each with a time limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.conf import settings
from django.db import OperationalError, connection, transaction

from accounts.models import Organization
from dispatch.console.reports.periods import Period


class TooManyRows(OperationalError):
    """A statement took longer than REPORT_STATEMENT_TIMEOUT_S: a shorter period may be possible."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Run the statements inside in a transaction, each with the time limit of reports.

    Sequential scans are disabled: without statistics, the planner would read all organizations' rows. Raises
    TooManyRows.
    """
    limit = f"{round(settings.REPORT_STATEMENT_TIMEOUT_S * 1000)}ms"
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('statement_timeout', %s, true), set_config('enable_seqscan', 'off', true)",
                    [limit],
                )
            yield
    except OperationalError as error:
        if isinstance(error.__cause__, psycopg.errors.QueryCanceled):
            raise TooManyRows from error
        raise


def fetch(statement: str, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a statement. Raises TooManyRows."""
    with time_limit(), connection.cursor() as cursor:
        cursor.execute(statement, given)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def span_parameters(organization: Organization, period: Period, **more: Any) -> dict[str, Any]:
    """Return the parameters that all statements share: organization_id, zone, since, until."""
    return {
        "organization_id": organization.pk,
        "zone": period.zone,
        "since": period.since,
        "until": period.until,
        **more,
    }
