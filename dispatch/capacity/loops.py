"""The dispatcher's loop over lines."""

from __future__ import annotations

from django.conf import settings

from dispatch.capacity import lines
from dispatch.core.loops import Loop
from dispatch.core.redis import REDIS_ERRORS


def reconcile_lines() -> None:
    """Sets the lines in Redis right by the open calls; nothing to do while Redis is gone."""
    try:
        lines.reconcile()
    except REDIS_ERRORS:
        return


LOOPS = [Loop("lines", reconcile_lines, settings.LINE_RECONCILER_INTERVAL_S, elected=True)]
