"""Define the dispatcher's loop that reconciles lines."""

from __future__ import annotations

from django.conf import settings

from dispatch.capacity import line_leases
from dispatch.core.redis.client import REDIS_ERRORS
from dispatch.core.runtime.loops import Loop


def reconcile_lines() -> None:
    """Reconcile the lines in Redis with the open calls. Does nothing while Redis is unavailable."""
    try:
        line_leases.reconcile_pool()
    except REDIS_ERRORS:
        return


LOOPS = [Loop("lines", reconcile_lines, settings.LINE_RECONCILER_INTERVAL_S, elected=True)]
