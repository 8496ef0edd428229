"""What is known of a queue from outside: how much waits, since when, and how much is being done."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rq.job import Job

from dispatch.core.queues import rq_queue
from dispatch.core.redis import client
from dispatch.schedules.scaling.rules import Seen


def look(queue_name: str, now: datetime) -> Seen:
    """The queue as it is. Raises redis's errors when Redis is away."""
    queue = rq_queue(queue_name)
    with client().pipeline(transaction=False) as pipe:
        pipe.llen(queue.key)
        pipe.lindex(queue.key, 0)  # RQ takes from this end
        pipe.zcard(queue.started_job_registry.key)
        waiting, first, busy = pipe.execute()
    return Seen(waiting, _age(first, now) if first else 0.0, busy)


def _age(job_id: bytes, now: datetime) -> float:
    """Seconds since that job was put on its queue; 0 when it is gone by now."""
    raw: Any = client().hget(Job.key_for(job_id.decode()), "enqueued_at")
    if not raw:
        return 0.0
    put = datetime.fromisoformat(raw.decode().replace("Z", "+00:00"))
    return max(0.0, (now - (put if put.tzinfo else put.replace(tzinfo=UTC))).total_seconds())
