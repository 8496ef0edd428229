"""What the dispatcher process runs for the outbox."""

from __future__ import annotations

from django.conf import settings

from dispatch.core.loops import Loop, Service
from dispatch.outbox import publishing, router
from dispatch.outbox.checks import refuse_contradictions
from dispatch.outbox.poller import poll
from dispatch.outbox.reader import READER
from dispatch.outbox.services import recovery, targets

refuse_contradictions()


def read_events() -> float | None:
    """Makes messages of new events."""
    if not settings.OUTBOX_ENABLED:
        return None
    return 0.0 if READER.step() == READER.batch else None


def recover_calls() -> float | None:
    """Lapsed leases and what expired."""
    if not settings.OUTBOX_ENABLED:  # its end would claim the next
        return None
    lapsed, claims = recovery.recover_lapsed()
    publishing.publish(claims)
    expired, claims = recovery.expire()
    publishing.publish(claims)
    return 0.0 if recovery.BATCH in (lapsed, expired) else None


def recover_pointers() -> float | None:
    """Pointers that led to nothing, groups in no line, endpoints that fail for days."""
    if not settings.OUTBOX_ENABLED:
        return None
    recovery.recover_stale()
    recovery.find_forgotten()
    targets.disable_failing()
    return None


LOOPS: list[Loop | Service] = [
    Loop(targets.POLLER, poll, interval_s=settings.OUTBOX_POLL_INTERVAL_S, elected=True),
    Loop("outbox_reader", read_events, interval_s=settings.EVENT_READER_INTERVAL_S, elected=True),
    Loop("outbox_leases", recover_calls, interval_s=settings.OUTBOX_LEASE_INTERVAL_S, elected=True),
    Loop("outbox_stale", recover_pointers, interval_s=settings.OUTBOX_STALE_INTERVAL_S, elected=True),
    Service("outbox_router", router.run),
]
