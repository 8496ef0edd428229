"""Run the poller: one leader claims due messages and publishes them, when notified and every few seconds."""

from __future__ import annotations

import functools
import math

from django.conf import settings
from django.db import transaction

from dispatch.core import clock, fault_injection
from dispatch.core.runtime import leader_election
from dispatch.core.runtime.loop_runner import leading
from dispatch.outbox import metrics, publisher, queues
from dispatch.outbox.services.scheduling import claim_next, next_wake, polled

# Prevents a busy loop.
MIN_PAUSE_S = 0.01
# Pause before the next targets of an organization that has too many waiting ones to read all at once.
PARTIAL_PAUSE_S = 0.5


def poll_once() -> float | None:
    """Poll once: claim a batch, commit, publish. While the queue is unreachable, claim a single message.

    Return the seconds until more is due, at most the interval; 0 if there may be more now.
    Raises leader_election.LeadershipLost, with nothing written, if this process no longer leads.
    """
    if not settings.OUTBOX_ENABLED:
        return None
    _warn_if_queue_is_unreachable()
    is_published = _publish_after_takeover()
    now = clock.now()
    with transaction.atomic():
        claims, admission = claim_next(now, limit=None if publisher.is_working() else 1)
        if led := leading.get(None):
            leader_election.fence(*led)
        fault_injection.crash_point("outbox.claim.before_commit")
    fault_injection.crash_point("outbox.claim.committed")
    metrics.poll_claims.observe(len(claims))
    if not publisher.publish_pointers(claims):
        return settings.OUTBOX_POLL_INTERVAL_S
    if claims:
        return 0.0
    waits = [at for at in (next_wake(now), admission.again_at) if at]
    longest_s = min(settings.OUTBOX_POLL_INTERVAL_S, PARTIAL_PAUSE_S if polled.is_partial else math.inf)
    if not waits:
        return None if is_published and not polled.is_partial else longest_s
    seconds = (min(waits) - clock.now()).total_seconds()
    return min(max(seconds, MIN_PAUSE_S), longest_s)


# The leadership term in which all QUEUED messages were last published again.
_published_under: tuple[str, int] | None = None


def _publish_after_takeover() -> bool:
    """Publish all QUEUED messages again: the previous leader may have committed some without publishing them.

    Return False if the queue refused any, which the next pass repeats.
    """
    global _published_under
    led = leading.get(None)
    if not led or led == _published_under:
        return True
    if not publisher.publish_again():
        return False
    _published_under = led
    return True


@functools.cache
def _warn_if_queue_is_unreachable() -> None:
    """Warn once per process at startup if the queue is unreachable, instead of at the first message."""
    queues.warn_if_unreachable()
