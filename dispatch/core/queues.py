"""Putting work on RQ queues and poking loops, always after the commit of what caused it.

Both are hints. A Redis outage is logged, counted and swallowed: the rows say what is due, and auditors find it.
"""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from rq import Queue
from rq.serializers import JSONSerializer

from dispatch.core import metrics
from dispatch.core.redis import REDIS_ERRORS, client, key

log = structlog.get_logger(__name__)

# RQ drops delays near zero now and then; below this the job goes on the queue at once.
SHORTEST_DELAY_S = 2.0


def enqueue(queue_name: str, func_path: str, *args: Any) -> None:
    """After commit, puts `func_path` ("dispatch.jobs.tasks.start") with JSON arguments on the queue.

    Raises TypeError at once when an argument is not JSON, KeyError for an unknown queue; nothing later."""
    _check(queue_name, args)
    transaction.on_commit(partial(_push, queue_name, None, func_path, args), robust=True)


def enqueue_in(queue_name: str, seconds: float, func_path: str, *args: Any) -> None:
    """As `enqueue`, `seconds` after the commit, never earlier; under 2 s it goes on the queue at once, so the
    handler must look at its row's deadline."""
    _check(queue_name, args)
    transaction.on_commit(partial(_push, queue_name, seconds, func_path, args), robust=True)


def wake(loop_name: str) -> None:
    """After commit, asks every dispatcher process to run that loop now. Lost when Redis is gone: the loop's
    interval remains."""
    transaction.on_commit(partial(_publish, loop_name), robust=True)


def wake_channel() -> str:
    """The pub/sub channel that `wake` speaks on."""
    return key("wake")


def rq_queue(queue_name: str) -> Queue:
    """The RQ queue of that name, as RQ_QUEUES configures it, on the shared client."""
    config = settings.RQ_QUEUES[queue_name]
    return Queue(
        queue_name, connection=client(), serializer=JSONSerializer, default_timeout=config["DEFAULT_TIMEOUT"]
    )


def _check(queue_name: str, args: tuple[Any, ...]) -> None:
    if queue_name not in settings.RQ_QUEUES:
        raise KeyError(f"No queue is called {queue_name!r}; RQ_QUEUES has {', '.join(settings.RQ_QUEUES)}.")
    json.dumps(args)


def _push(queue_name: str, seconds: float | None, func_path: str, args: tuple[Any, ...]) -> None:
    queue = rq_queue(queue_name)
    kept = {
        "result_ttl": settings.RQ_QUEUES[queue_name]["DEFAULT_RESULT_TTL"],
        "failure_ttl": settings.RQ_FAILURE_TTL_S,
    }
    try:
        if seconds is None or seconds < SHORTEST_DELAY_S:
            with client().pipeline() as pipe:  # RQ on its own goes to Redis twice
                queue.enqueue_call(func_path, args=args, pipeline=pipe, **kept)
                pipe.execute()
        else:
            # RQ's scheduler goes by the machine's clock and cuts fractions off: round up, or it runs early.
            due = datetime.fromtimestamp(math.ceil(time.time() + seconds), UTC)
            queue.enqueue_at(due, func_path, *args, **kept)
    except REDIS_ERRORS as error:
        metrics.enqueue_failures.labels(queue_name).inc()
        log.warning("not enqueued, the auditor will find it", queue=queue_name, func=func_path, error=str(error))


def _publish(loop_name: str) -> None:
    try:
        client().publish(wake_channel(), loop_name)
    except REDIS_ERRORS as error:
        log.debug("a loop was not woken", loop=loop_name, error=str(error))
