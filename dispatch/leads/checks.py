"""Check that PostgreSQL's lock table is large enough for the batches of the running dialers."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register  # noqa: A004  (Django's name)
from django.db import DatabaseError, connections

from dispatch.core.redis.client import REDIS_ERRORS
from dispatch.leads import queue_stats

_SIZE = """
SELECT locks,
       locks * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)
FROM (SELECT current_setting('max_locks_per_transaction')::bigint AS locks) AS configured
"""


@register(Tags.database)
def lock_table(app_configs: Any, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Warn if the batches of the running dialers, or of one, need more than half of the lock table."""
    messages: list[CheckMessage] = []
    try:
        dialers = max(1, len(queue_stats.held_leads()))
    except REDIS_ERRORS:
        dialers = 1
    needed = dialers * settings.LEADS_CLAIMERS * settings.LEADS_BATCH
    for alias in databases or ():
        try:
            with connections[alias].cursor() as cursor:
                cursor.execute(_SIZE)
                locks, size = cursor.fetchone()
        except DatabaseError:
            continue  # another check reports an unavailable database
        if needed > size / 2:
            enough = -(-2 * needed * locks // size)
            messages.append(
                Warning(
                    f"Lead dialers ({dialers}) lock up to {needed:,} phone numbers at once, but PostgreSQL's lock "
                    f"table has {size:,} entries for everything.",
                    hint=f"Set PostgreSQL's max_locks_per_transaction to {enough} or more, or lower LEADS_BATCH.",
                    id="dispatch.W110",
                )
            )
    return messages
