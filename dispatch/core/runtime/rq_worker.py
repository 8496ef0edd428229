"""Define the RQ worker: in-process, one queue, JSON, a short maintenance interval."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import redis
import structlog
from django.db import close_old_connections
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job, JobStatus, _job_stack
from rq.queue import Queue
from rq.results import Result
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer
from rq.utils import current_timestamp, utcformat
from rq.utils import now as rq_now
from rq.worker import SimpleWorker, WorkerStatus

from dispatch.core.observability import liveness, metrics
from dispatch.core.redis.client import QUEUES, REDIS_ERRORS, connect
from dispatch.core.runtime import supervisor
from dispatch.core.runtime.fair_queue import FairQueue

log = structlog.get_logger(__name__)

# Between consecutive jobs, RQ would each time send a heartbeat to Redis and check for suspension, and Django would
# check each connection. These intervals, in seconds, are enough.
BEAT_S, SUSPENSION_S, CONNECTIONS_S = 5.0, 1.0, 5.0
MAINTENANCE_INTERVAL_S = 30  # a dead worker's scheduler is replaced, and its jobs are found again, within this
WORKER_TTL_S = 45
# Between two heartbeats, apart from the time limit of a job.
LIVENESS_S = 5.0 * WORKER_TTL_S


_preparations: dict[str, list[Callable[[], None]]] = defaultdict(list)


def before_first_job(queue: str, prepare: Callable[[], None]) -> None:
    """Register what each worker of the queue loads when it starts, so that its first job does not wait for it."""
    _preparations[queue].append(prepare)


class _Scheduler(RQScheduler):
    """RQ's scheduler, but it ends with its worker and survives a Redis outage.

    RQ's own scheduler dies in an outage, and its worker detects that only at the next maintenance.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._worker_pid = os.getpid()

    @property
    def connection(self) -> redis.Redis:
        """Return this process's connection. RQ would copy the worker's, which it cannot do with sentinels."""
        # RQ clears it before it forks.
        found: Any = connect(QUEUES, socket_timeout=WORKER_TTL_S) if self._connection is None else self._connection
        self._connection = found
        made: redis.Redis = found
        return made

    def enqueue_scheduled_jobs(self) -> None:
        """Enqueue the jobs that are due, like RQ, but in the turn of their organizations."""
        self._status = self.Status.WORKING
        if not self._scheduled_job_registries and self._acquired_locks:
            self.prepare_registries()
        for registry in self._scheduled_job_registries:
            job_ids = registry.get_jobs_to_schedule(current_timestamp())
            if not job_ids:
                continue
            queue = FairQueue(registry.name, connection=self.connection, serializer=self.serializer)
            with self.connection.pipeline() as pipeline:
                for job in Job.fetch_many(job_ids, connection=self.connection, serializer=self.serializer):
                    if job is not None:
                        queue._enqueue_job(job, pipeline=pipeline, at_front=bool(job.should_enqueue_at_front()))
                for job_id in job_ids:
                    registry.remove(job_id, pipeline=pipeline)
                pipeline.execute()
        self._status = self.Status.STARTED

    def work(self) -> None:
        self._install_signal_handlers()  # before this, the worker's handler receives SIGTERM
        supervisor.die_with_parent(self._worker_pid)
        is_waiting = False
        while not self._stop_requested:
            try:
                return super().work()  # returns when asked to stop
            except REDIS_ERRORS as error:
                if not is_waiting:
                    log.warning("scheduler_waiting_for_redis", error=str(error))
                is_waiting = True
                time.sleep(self.interval)
        return None


class DispatchJob(Job):
    """A job of RQ that its worker prepares in one round trip, also what RQ sends just before the call."""

    def perform(self) -> Any:
        """Call the function and return its result."""
        _job_stack.push(self)
        try:
            self._result = self._execute()
        finally:
            _job_stack.pop()
        return self._result


class DispatchWorker(SimpleWorker):
    """Work one queue in this process: only with a single queue, RQ takes a job without a moment of risk.

    `slot` is part of the scheduler's name (host, queue, slot), so that a worker restarted in the same slot takes
    over its predecessor's scheduler lock immediately instead of waiting until it expires.
    """

    job_class = DispatchJob
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
        self._is_idle_written = False
        self._last: dict[str, float] = {}

    def _is_due(self, task: str, interval_s: float) -> bool:
        """Return whether `interval_s` has passed since `task` was last due, and restart its interval."""
        now = time.monotonic()
        if now - self._last.get(task, -interval_s) < interval_s:
            return False
        self._last[task] = now
        return True

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Send RQ's heartbeat, but no more often than needed. Re-register with Redis if it was flushed.

        RQ calls it before and after each job, and whenever it has waited for one.
        """
        liveness.set_deadline("worker", LIVENESS_S)
        if pipeline is None and timeout is None:
            if not self._is_due("beat", BEAT_S):
                return
            if not self.connection.hexists(self.key, "queues"):
                self.connection.delete(
                    self.key
                )  # after a flush, other heartbeats create the record without its queue
                self.register_birth()
                super().set_state(self.get_state())
        super().heartbeat(timeout, pipeline)

    def set_state(self, state: str, pipeline: Any = None) -> None:
        """Write the state, unless the end of the last job has written that the worker is idle."""
        is_written = state == WorkerStatus.IDLE and pipeline is None and self._is_idle_written
        self._is_idle_written = False
        if not is_written:
            super().set_state(state, pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """Check for suspension like RQ, once a second."""
        if self._is_due("suspension", SUSPENSION_S):
            super().check_for_suspension(burst)

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job like RQ."""
        self.perform_job(job, queue)

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        """Prepare like RQ, but in one round trip, with one command for the fields of a hash.

        RQ sends the last heartbeat before the job here. A job that failed before and is repeated would expire.
        """
        ttl = self.get_heartbeat_ttl(job)
        self._state = WorkerStatus.BUSY
        self._is_idle_written = False
        self.current_job_working_time = 0
        self.last_heartbeat = rq_now()
        mapping: dict[Any, Any] = {
            "state": WorkerStatus.BUSY,
            "current_job": job.id,
            "current_job_working_time": 0,
            "last_heartbeat": utcformat(self.last_heartbeat),
        }
        with self.connection.pipeline() as pipe:
            self.execution = Execution.create(job, ttl, pipeline=pipe, worker_name=self.name)
            pipe.hset(self.key, mapping=mapping)
            pipe.expire(self.key, ttl)
            job.prepare_for_execution(self.name, pipeline=pipe)
            pipe.persist(job.key)
            if remove_from_intermediate_queue:
                pipe.lrem(self.queues[0].intermediate_queue_key, 1, job.id)
            pipe.execute()
        self.procline(f"Processing {job.func_name} from {job.origin} since {time.time()}")
        liveness.set_deadline("worker", (job.timeout or 0) + LIVENESS_S)

    def handle_job_success(self, job: Job, queue: Queue, started_job_registry: Any) -> None:
        """Record the success like RQ, but in one round trip, and only what the run has changed.

        These jobs have no results and no dependents, and do not repeat. A job whose hash has vanished, as after a
        flush, leaves nothing: pages that list jobs would fail at what is written here.
        """
        assert job.started_at is not None
        assert job.ended_at is not None
        ttl = job.get_result_ttl(self.default_result_ttl)
        execution, self.execution = self.execution, None
        with self.connection.pipeline() as pipe:
            self.increment_successful_job_count(pipeline=pipe)
            self.increment_total_working_time(job.ended_at - job.started_at, pipe)
            if ttl == 0:
                pipe.delete(job.key)
            else:
                mapping: dict[Any, Any] = {"status": JobStatus.FINISHED, "ended_at": utcformat(job.ended_at)}
                pipe.hset(job.key, mapping=mapping)
                queue.finished_job_registry.add(job, ttl, pipe)
                if ttl > 0:
                    pipe.expire(job.key, ttl)
            if execution is not None:
                started_job_registry.remove_execution(execution, pipeline=pipe)
                results = Result.get_key(job.id)  # of a run that has failed
                pipe.delete(execution.key, ExecutionRegistry.key_template.format(job.id), results)
            self.set_current_job_id(None, pipeline=pipe)
            self.set_state(WorkerStatus.IDLE, pipeline=pipe)
            pipe.hexists(job.key, "data")
            *_, is_whole = pipe.execute()
            if ttl != 0 and not is_whole:
                pipe.delete(job.key)
                queue.finished_job_registry.remove(job, pipeline=pipe)
                pipe.execute()
        self._is_idle_written = True

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """End a job like RQ, without time for callbacks, which these jobs do not have."""
        job.ended_at = rq_now()

    def perform_job(self, job: Job, queue: Queue) -> bool:
        """Run the job with usable database connections and its id in every log line."""
        if self._is_due("connections", CONNECTIONS_S):
            close_old_connections()
        with (
            structlog.contextvars.bound_contextvars(rq_job_id=job.id, queue=queue.name),
            metrics.rq_job_seconds.labels(queue.name).time(),
        ):
            done = super().perform_job(job, queue)
        metrics.rq_jobs.labels(queue.name, "done" if done else "failed").inc()
        if not done:
            close_old_connections()  # the job may have failed because a connection broke
        return done

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """Log one readable line with the traceback. RQ keeps the job in its failed registry."""
        log.error("rq_job_failed", func=job.func_name, args=job.args, exc_info=exc_info[:3])

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
        """Bootstrap like RQ, without adding log handlers, and prepare for the first job."""
        for prepare in _preparations[self.queues[0].name]:
            prepare()
        self.register_birth()
        log.info("worker_started", queue=self.queues[0].name)
        self.subscribe()
        self.set_state("started")
