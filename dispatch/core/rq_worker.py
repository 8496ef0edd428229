"""The RQ worker of this project: in-process, one queue, JSON, short maintenance."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import structlog
from django.db import close_old_connections
from rq.job import Job
from rq.queue import Queue
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer
from rq.utils import now as rq_now
from rq.worker import SimpleWorker

from dispatch.core import metrics, parents
from dispatch.core.redis import REDIS_ERRORS

log = structlog.get_logger(__name__)

# Between jobs that follow each other at once, RQ would tell Redis again and again that it lives and ask whether it
# is suspended; Django would ask each connection whether it lives. Once in so long is enough (seconds).
BEAT_S, SUSPENSION_S, CONNECTIONS_S = 5.0, 1.0, 5.0
MAINTENANCE_INTERVAL_S = 30  # a dead worker's scheduler is replaced, and its jobs are found again, within this
WORKER_TTL_S = 45


class _Scheduler(RQScheduler):
    """RQ's scheduler, that ends with its worker and sits a Redis outage out; RQ's own dies of it, and its worker
    notices at the next maintenance."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._worker_pid = os.getpid()

    def work(self) -> None:
        self._install_signal_handlers()  # until then SIGTERM would be answered as the worker does
        parents.end_with(self._worker_pid)
        away = False
        while not self._stop_requested:
            try:
                return super().work()  # returns when it is asked to stop
            except REDIS_ERRORS as error:
                if not away:
                    log.warning("the scheduler waits for Redis", error=str(error))
                away = True
                time.sleep(self.interval)
        return None


class DispatchWorker(SimpleWorker):
    """Works one queue in this process (one, because only then RQ moves a job atomically to "being started").

    `slot` names the scheduler after this place (host, queue, slot): a worker restarted in the same place takes
    its predecessor's scheduler lock over at once instead of waiting for it to lapse."""

    log_result_lifespan = False
    max_connection_wait_time = 5.0

    def __init__(self, queues: Any, *args: Any, slot: str | None = None, **kwargs: Any) -> None:
        kwargs["serializer"] = JSONSerializer
        kwargs["maintenance_interval"] = MAINTENANCE_INTERVAL_S
        kwargs["worker_ttl"] = WORKER_TTL_S
        kwargs.setdefault("log_job_description", False)
        super().__init__(queues, *args, **kwargs)
        if kwargs.get("prepare_for_work", True) and len(self.queues) != 1:
            raise ValueError("A DispatchWorker works exactly one queue.")
        self.slot = slot
        self.stopped_by_request = False
        self._last: dict[str, float] = {}

    def _is_time(self, what: str, interval_s: float) -> bool:
        """Whether `what` was not done for so long; if so, it is being done now."""
        now = time.monotonic()
        if now - self._last.get(what, -interval_s) < interval_s:
            return False
        self._last[what] = now
        return True

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """As RQ's; on its own not more often than it must. A Redis that was emptied is told of the worker anew."""
        if pipeline is None and timeout is None:
            if not self._is_time("beat", BEAT_S):
                return
            if not self.connection.hexists(self.key, "queues"):
                self.connection.delete(self.key)  # what other beats have left there says nothing of its queue
                self.register_birth()
                self.set_state(self.get_state())
        super().heartbeat(timeout, pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """As RQ's, once a second."""
        if self._is_time("suspension", SUSPENSION_S):
            super().check_for_suspension(burst)

    def execute_job(self, job: Job, queue: Queue) -> None:
        """As RQ's; that it is idle again is said when it looks for the next one."""
        self.prepare_execution(job)
        self.perform_job(job, queue)

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """As RQ's, without the time for callbacks, for our jobs have none."""
        job.ended_at = rq_now()

    def perform_job(self, job: Job, queue: Queue) -> bool:
        """Runs the job with usable database connections and its id in every log line."""
        if self._is_time("connections", CONNECTIONS_S):
            close_old_connections()
        with (
            structlog.contextvars.bound_contextvars(rq_job_id=job.id, queue=queue.name),
            metrics.rq_job_seconds.labels(queue.name).time(),
        ):
            done = super().perform_job(job, queue)
        metrics.rq_jobs.labels(queue.name, "done" if done else "failed").inc()
        if not done:
            close_old_connections()  # it may have failed for a connection that broke
        return done

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """One readable line with the trace; RQ keeps the job in its failed registry."""
        log.error("an RQ job failed", func=job.func_name, args=job.args, exc_info=exc_info[:3])

    def request_stop(self, signum: Any, frame: Any) -> None:
        self.stopped_by_request = True
        super().request_stop(signum, frame)

    def _start_scheduler(self, burst: bool = False, *args: Any, **kwargs: Any) -> None:
        name = f"{socket.gethostname()}-{self.queues[0].name}-{self.slot}" if self.slot else None
        self.scheduler = _Scheduler(
            self.queues,
            connection=self.connection,
            logging_level=self.log.level,
            serializer=self.serializer,
            name=name,
        )
        self.scheduler.acquire_locks()
        if self.scheduler.acquired_locks:
            if burst:
                self.scheduler.enqueue_scheduled_jobs()
                self.scheduler.release_locks()
            else:
                self.scheduler.start()

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """As RQ's, without the log handlers that it would add to ours."""
        self.register_birth()
        log.info("the worker listens", queue=self.queues[0].name)
        self.subscribe()
        self.set_state("started")
