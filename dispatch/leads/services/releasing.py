"""What a person had held back goes on."""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction

from dispatch.core import clock
from dispatch.leads import schedule, sql
from dispatch.leads.rules.words import Reason
from dispatch.leads.schedule import Entry

BATCH = 5000


def release(
    reasons: Collection[Reason], *, organization_id: int | None = None, campaign_id: int | None = None
) -> int:
    """Makes the leads due again that wait for one of these reasons: now, or when they were first wanted; how many.

    Call it after the commit of what was lifted. They go through every gate again, so that whatever else holds them
    still does."""
    released = 0
    while True:
        with transaction.atomic():
            found = sql.rows(
                sql.RELEASE,
                {
                    "reasons": sql.texts(reasons),
                    "organization": organization_id,
                    "campaign": campaign_id,
                    "limit": BATCH,
                    "now": clock.now(),
                },
            )
        schedule.put([Entry(*row) for row in found])
        released += len(found)
        if len(found) < BATCH:
            return released
