"""A plain RQ worker beside which ours is measured: `python -m tests.benchmarks.plain_worker QUEUE`.

RQ's own forking Worker with its defaults (a process for every job); only the serializer is the queue's. It runs
the same functions on the same rows.
"""

from __future__ import annotations

import sys

import django

if __name__ == "__main__":
    django.setup()
    from django.db import connections
    from rq import Worker

    from dispatch.core.redis.client import connect
    from dispatch.core.runtime.queues import rq_queue
    from dispatch.jobs import tasks  # noqa: F401  (imported once here, not in every fork)

    queue = rq_queue(sys.argv[1])
    connections.close_all()
    Worker([queue], connection=connect(socket_timeout=500), serializer=queue.serializer).work(logging_level=None)
