"""Remember calls about which a webhook could not be recorded, because PostgreSQL was unavailable.

The provider does not repeat a status report for long. Without it, a call that has ended would hold its line until
its time limit has passed. The ids are kept in Redis and the provider is asked about these calls first. If they are
lost, the time limit applies.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import structlog

from dispatch.core.redis.client import REDIS_ERRORS, CircuitOpen, client, key

log = structlog.get_logger(__name__)

MOST = 10_000
KEPT_S = 3600


def remember_call(call_id: int) -> None:
    """Remember that a report about this call was lost. Best effort: an unverified request may name any call."""
    try:
        if client().scard(_name()) < MOST:
            with client().pipeline() as pipe:
                pipe.sadd(_name(), call_id)
                pipe.expire(_name(), KEPT_S)
                pipe.execute()
    except REDIS_ERRORS as error:
        if not isinstance(error, CircuitOpen):
            log.warning("missed_report_not_remembered", call=call_id, error=str(error))


def remembered_calls() -> list[int]:
    """Return the remembered calls; none if Redis is unavailable."""
    try:
        found: Any = client().smembers(_name())
    except REDIS_ERRORS:
        return []
    return sorted(map(int, found))


def forget_calls(call_ids: Collection[int]) -> None:
    """Forget calls about which the provider was asked, or which have ended."""
    try:
        if call_ids:
            client().srem(_name(), *call_ids)
    except REDIS_ERRORS as error:
        log.debug("missed_reports_kept", error=str(error))


def _name() -> str:
    return key("telephony", "missed-reports")
