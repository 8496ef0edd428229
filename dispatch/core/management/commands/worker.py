"""Run one RQ worker on one queue."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from redis.exceptions import TimeoutError as RedisTimeout

from dispatch.core.db import session_limits
from dispatch.core.observability import metrics
from dispatch.core.redis.client import QUEUES, REDIS_ERRORS, connect
from dispatch.core.runtime import connection_budget, preflight, request_loop
from dispatch.core.runtime.fair_threads import REQUESTS_END_S, FairThreads
from dispatch.core.runtime.queues import rq_queue
from dispatch.core.runtime.rq_worker import WORKER_TTL_S, DispatchWorker

log = structlog.get_logger(__name__)

WAIT_S = 1.0  # between two pings of a Redis that hangs
_SLOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)  # a number, or the name of a pod


class Command(BaseCommand):
    """Run a DispatchWorker on one queue until stopped."""

    help = "Works one RQ queue in this process until stopped."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", choices=sorted(settings.RQ_QUEUES))
        parser.add_argument(
            "--slot",
            default="1",
            help="identifies this worker among those of this queue and machine; a worker restarted in the same "
            "slot takes over its predecessor's scheduler immediately",
        )
        parser.add_argument("--burst", action="store_true", help="stop when the queue is empty")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["queue"]
        if not _SLOT.fullmatch(options["slot"]):
            raise CommandError(
                f"--slot {options['slot']!r} is not valid: use a number, or letters, digits, . and -."
            )
        session_limits.apply(session_limits.BACKGROUND)
        preflight.check()
        connection_budget.warn_if_too_many(f"worker of {name}", connection_budget.of_worker(name))
        metrics.serve()
        # Few, since each has a database connection. Other requests are made by the dispatcher.
        FairThreads.start_threads(settings.WORKER_REQUEST_THREADS)
        try:
            _wait_for_redis(name)
            worker = DispatchWorker(
                [rq_queue(name)],
                connection=connect(QUEUES, socket_timeout=WORKER_TTL_S),
                slot=options["slot"],
                default_result_ttl=settings.RQ_QUEUES[name]["DEFAULT_RESULT_TTL"],
            )
            connections.close_all()  # connections must not be shared with the scheduler's process
            worker.work(
                burst=options["burst"],
                with_scheduler=name == settings.DISPATCH_TIMEOUT_QUEUE,
                logging_level=None,
            )
        except REDIS_ERRORS as error:
            reason = str(error).partition(" : <")[0]  # without the description of each sentinel's client
            raise CommandError(f"The worker of {name} stops because Redis is unavailable: {reason}") from error
        finally:
            FairThreads.stop_threads(REQUESTS_END_S)
            request_loop.stop()
        if not (worker.stopped_by_request or options["burst"]):
            sys.exit(1)  # the worker gave up; its supervisor starts another


def _wait_for_redis(queue: str) -> None:
    """Wait until Redis responds, and log once if it hangs. RQ's worker would wait silently, and for longer.

    Raises REDIS_ERRORS if Redis refuses the connection.
    """
    is_waiting = False
    while True:
        server = connect(QUEUES)
        try:
            server.ping()
            return
        except RedisTimeout as error:
            if not is_waiting:
                log.warning("worker_waiting_for_redis", queue=queue, error=str(error))
            is_waiting = True
        finally:
            server.close()
        time.sleep(WAIT_S)
