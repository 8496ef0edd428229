"""Define the loops of `core`."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from dispatch.core.audit import chain
from dispatch.core.privacy import replay
from dispatch.core.redis import generation
from dispatch.core.runtime import reachability
from dispatch.core.runtime.loops import Loop


def watch_redis() -> None:
    """Detect that Redis has lost its data, and rebuild it."""
    generation.ensure_generation()


def seal_audit_log() -> float | None:
    """Extend the hash chains of the audit log by new events."""
    chain.READER.step()
    return 0.0 if chain.READER.has_more else None


def write_replay_list() -> None:
    """Copy the replay list to REPLAY_LIST_FILE, if one is named."""
    if settings.REPLAY_LIST_FILE:
        replay.write_list(Path(settings.REPLAY_LIST_FILE))


def watch_reachability() -> float | None:
    """Find out who reaches the servers that some process does not reach."""
    return reachability.ALERT_INTERVAL_S if reachability.process.step() else None


LOOPS = [
    Loop("redis_generation", watch_redis, interval_s=1.0),
    Loop("reachability", watch_reachability, interval_s=reachability.LOOP_INTERVAL_S),
    Loop(
        "audit_log",
        seal_audit_log,
        interval_s=settings.EVENT_READER_INTERVAL_S,
        elected=True,
        due=chain.READER.is_due(),
    ),
    Loop("replay_list", write_replay_list, interval_s=settings.REPLAY_LIST_INTERVAL_S, elected=True),
]
