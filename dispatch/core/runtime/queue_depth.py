"""Read how many jobs of a queue wait, since when, and how many are in progress."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rq.job import Job

from dispatch.core.redis.client import client
from dispatch.core.runtime.autoscaling_rules import QueueState
from dispatch.core.runtime.queues import rq_queue


def read_queue(queue_name: str, now: datetime) -> QueueState:
    """Return the state of the queue. Raises redis's errors if Redis is unavailable."""
    queue = rq_queue(queue_name)
    with client().pipeline(transaction=False) as pipe:
        pipe.llen(queue.key)
        pipe.lindex(queue.key, 0)  # RQ takes jobs from this end
        pipe.zcard(queue.started_job_registry.key)
        waiting, first, busy = pipe.execute()
    return QueueState(waiting, _age(first, now) if first else 0.0, busy)


def _age(job_id: bytes, now: datetime) -> float:
    """Return the seconds since the job was enqueued; 0 if it no longer exists."""
    raw: Any = client().hget(Job.key_for(job_id.decode()), "enqueued_at")
    if not raw:
        return 0.0
    enqueued_at = datetime.fromisoformat(raw.decode().replace("Z", "+00:00"))
    return max(
        0.0, (now - (enqueued_at if enqueued_at.tzinfo else enqueued_at.replace(tzinfo=UTC))).total_seconds()
    )
