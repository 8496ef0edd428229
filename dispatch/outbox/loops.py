"""Define the outbox's loops in the dispatcher process."""

from __future__ import annotations

from django.conf import settings

from dispatch.core.redis.client import OUTBOX
from dispatch.core.runtime.loops import Loop, Service
from dispatch.outbox import publisher, router, sql
from dispatch.outbox.checks import refuse_contradictions
from dispatch.outbox.event_reader import READER
from dispatch.outbox.poller import poll_once
from dispatch.outbox.services import authentication, recovery, target_health

refuse_contradictions()


def read_events() -> float | None:
    """Create messages from new events."""
    if not settings.OUTBOX_ENABLED:
        return None
    READER.step()
    return 0.0 if READER.has_more else None


def recover_calls() -> float | None:
    """Recover lost pointers and lapsed leases, and expire messages."""
    if not settings.OUTBOX_ENABLED:  # ending a call would claim the next message
        return None
    publisher.publish_overdue()
    lapsed, claims = recovery.recover_lapsed()
    publisher.publish_pointers(claims)
    expired, claims = recovery.expire_messages()
    publisher.publish_pointers(claims)
    return 0.0 if recovery.BATCH in (lapsed, expired) else None


def recover_pointers() -> float | None:
    """Recover lost pointers and groups missing from the queue; disable endpoints; warn about certificates.

    A pointer is lost if it led to no attempt. An endpoint is disabled after it has failed for several days.
    """
    if not settings.OUTBOX_ENABLED:
        return None
    stale = recovery.recover_stale()
    recovery.requeue_missing_groups()
    target_health.disable_failing()
    authentication.warn_about_certificates()
    return 0.0 if stale == settings.OUTBOX_STALE_BATCH else None


# Pointers of the other kinds of queue do not travel through Redis.
_REDIS = OUTBOX if settings.OUTBOX_QUEUE_TYPE == "redis" else None
LOOPS: list[Loop | Service] = [
    Loop(
        target_health.POLLER,
        poll_once,
        settings.OUTBOX_POLL_INTERVAL_S,
        elected=True,
        needs_redis=_REDIS,
        due=sql.IS_ANY_WAITING,
    ),
    Loop("outbox_reader", read_events, settings.EVENT_READER_INTERVAL_S, elected=True, due=READER.is_due()),
    Loop(
        "outbox_leases",
        recover_calls,
        settings.OUTBOX_LEASE_INTERVAL_S,
        elected=True,
        needs_redis=_REDIS,
        due=sql.MAY_NEED_RECOVERY,
    ),
    Loop("outbox_stale", recover_pointers, interval_s=settings.OUTBOX_STALE_INTERVAL_S, elected=True),
    # starts, results (two), pointers, acknowledgements
    Service("outbox_router", router.run_router, connections=5),
]
