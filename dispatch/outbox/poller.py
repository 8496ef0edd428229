"""The poller: one leader that claims what is due and publishes it, woken at once and every few seconds anyway."""

from __future__ import annotations

import functools

from django.conf import settings
from django.db import transaction

from dispatch.core import clock, election, faults
from dispatch.core.loop_runner import leading
from dispatch.outbox import metrics, publishing, queues
from dispatch.outbox.services.claims import advance, next_wake

# Never a busy loop, whatever is due.
SHORTEST_PAUSE_S = 0.01


def poll() -> float | None:
    """One poll: claims a batch, commits, publishes. Returns the seconds until something else is due, at most the
    interval; 0 when there may be more now.

    Refused (election.Deposed, nothing written) when this process no longer leads."""
    if not settings.OUTBOX_ENABLED:
        return None
    _look_at_the_queue()
    now = clock.now()
    with transaction.atomic():
        claims, rooms = advance(now)
        if led := leading.get(None):
            election.fence(*led)
        faults.point("outbox.claim.before_commit")
    faults.point("outbox.claim.committed")
    metrics.poll_claims.observe(len(claims))
    if not publishing.publish(claims):
        return settings.OUTBOX_POLL_INTERVAL_S
    if claims:
        return 0.0
    waits = [at for at in (next_wake(now), rooms.again_at) if at]
    if not waits:
        return None
    seconds = (min(waits) - clock.now()).total_seconds()
    return min(max(seconds, SHORTEST_PAUSE_S), settings.OUTBOX_POLL_INTERVAL_S)


@functools.cache
def _look_at_the_queue() -> None:
    """Once in a process: a queue that is not there is said at the start, not with the first message."""
    queues.warn_if_unreachable()
