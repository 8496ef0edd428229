"""Enqueue RQ jobs and notify loops after the commit of the transaction that causes them; read a queue's depth.

Enqueuing and notifying are best effort. A Redis outage is logged and counted but raises no error: the rows record
what is due, and auditors find them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog
from django.conf import settings
from redis.client import Pipeline
from rq.job import Job
from rq.serializers import JSONSerializer

from dispatch.core.observability import metrics
from dispatch.core.redis.after_commit import send_after_commit
from dispatch.core.redis.client import LEADS, QUEUES, client, key
from dispatch.core.runtime.autoscaling_rules import QueueState
from dispatch.core.runtime.fair_queue import ORGANIZATION, FairQueue

log = structlog.get_logger(__name__)

# RQ sometimes drops delays near zero; below this, the job is enqueued immediately.
MIN_DELAY_S = 2.0
# Jobs at the head of a queue among which the oldest is sought.
FIRST_JOBS = 20


def enqueue(queue_name: str, func_path: str, *args: Any, organization_id: int | None = None) -> None:
    """Enqueue `func_path` ("dispatch.jobs.tasks.start_job") with JSON arguments, after commit.

    Organizations take turns. Raises TypeError if an argument is not JSON and KeyError for an unknown queue, both
    immediately.
    """
    _enqueue_after_commit(queue_name, None, func_path, args, organization_id)


def enqueue_in(
    queue_name: str, seconds: float, func_path: str, *args: Any, organization_id: int | None = None
) -> None:
    """Enqueue like `enqueue`, but to run `seconds` after the commit or later.

    With a delay under 2 s, the job is enqueued immediately, so the task must check its row's deadline.
    """
    _enqueue_after_commit(queue_name, seconds, func_path, args, organization_id)


def notify_loop(loop_name: str) -> None:
    """After the commit, ask every dispatcher process to run this loop now.

    If Redis is unavailable, the request is lost, and the loop runs at its next interval.
    """
    send_after_commit(
        LEADS,
        lambda pipe: pipe.publish(notification_channel(), loop_name),
        lambda error: log.debug("loop_notification_failed", loop=loop_name, error=str(error)),
    )


def notification_channel() -> str:
    """Return the pub/sub channel of `notify_loop`."""
    return key("wake")


def rq_queue(queue_name: str) -> FairQueue:
    """Return the RQ queue with this name, as configured in RQ_QUEUES, on the shared client of the queues."""
    return _queue_on(client(QUEUES), queue_name)


def _queue_on(connection: Any, queue_name: str) -> FairQueue:
    timeout = settings.RQ_QUEUES[queue_name]["DEFAULT_TIMEOUT"]
    return FairQueue(queue_name, connection=connection, serializer=JSONSerializer, default_timeout=timeout)


def _enqueue_after_commit(
    queue_name: str, seconds: float | None, func_path: str, args: tuple[Any, ...], organization_id: int | None
) -> None:
    if queue_name not in settings.RQ_QUEUES:
        raise KeyError(f"No queue is called {queue_name!r}. RQ_QUEUES has {', '.join(settings.RQ_QUEUES)}.")
    json.dumps(args)

    def failed(error: Exception) -> None:
        metrics.enqueue_failures.labels(queue_name).inc()
        log.warning("enqueue_failed", queue=queue_name, func=func_path, error=str(error))

    send_after_commit(QUEUES, partial(_add_job, queue_name, seconds, func_path, args, organization_id), failed)


def _add_job(
    queue_name: str,
    seconds: float | None,
    func_path: str,
    args: tuple[Any, ...],
    organization_id: int | None,
    pipe: Pipeline,
) -> None:
    kept: dict[str, Any] = {
        "meta": {} if organization_id is None else {ORGANIZATION: organization_id},
        "result_ttl": settings.RQ_QUEUES[queue_name]["DEFAULT_RESULT_TTL"],
        "failure_ttl": settings.RQ_FAILURE_TTL_S,
    }
    if seconds is None or seconds < MIN_DELAY_S:
        rq_queue(queue_name).enqueue_call(func_path, args=args, pipeline=pipe, **kept)
        return
    # RQ's scheduler uses the machine's clock and truncates fractions: round up, or it runs early.
    due = datetime.fromtimestamp(math.ceil(time.time() + seconds), UTC)
    # RQ writes the due time on the queue's own connection, even with a pipeline.
    _queue_on(pipe, queue_name).enqueue_at(due, func_path, *args, pipeline=pipe, **kept)


def read_queue(queue_name: str, now: datetime) -> QueueState:
    """Return the state of the queue. Raises redis's errors if Redis is unavailable.

    The age is that of the oldest among the first jobs and the last one: organizations take turns, so the head may
    be newer than the jobs behind it. The next job of an organization, its oldest, is near the head.
    """
    queue = rq_queue(queue_name)
    with client(QUEUES).pipeline(transaction=False) as pipe:
        pipe.llen(queue.key)
        pipe.lrange(queue.key, 0, FIRST_JOBS - 1)  # RQ takes jobs from this end
        pipe.lindex(queue.key, -1)
        pipe.zcard(queue.started_job_registry.key)
        waiting, first, last, busy = pipe.execute()
    return QueueState(waiting, _oldest_age({*first, last} - {None}, now), busy)


def _oldest_age(job_ids: Iterable[bytes], now: datetime) -> float:
    """Return the seconds since the oldest of the jobs was enqueued; 0 if none of them exists."""
    with client(QUEUES).pipeline(transaction=False) as pipe:
        for job_id in job_ids:
            pipe.hget(Job.key_for(job_id.decode()), "enqueued_at")
        return max((_age(raw, now) for raw in pipe.execute()), default=0.0)


def _age(raw: bytes | None, now: datetime) -> float:
    if not raw:
        return 0.0
    enqueued_at = datetime.fromisoformat(raw.decode().replace("Z", "+00:00"))
    return max(
        0.0, (now - (enqueued_at if enqueued_at.tzinfo else enqueued_at.replace(tzinfo=UTC))).total_seconds()
    )
