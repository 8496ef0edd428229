"""Run APScheduler or Celery as a separate program.

`at_once.py apscheduler scheduler`, `at_once.py celery beat`. BENCH_COUNT jobs are due a few seconds after the
start; each inserts its number into bench_peer.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg

COUNT = int(os.environ["BENCH_COUNT"])
REDIS = os.environ["BENCH_REDIS"]
_local = threading.local()


def record(number: int) -> None:
    if not hasattr(_local, "connection"):
        _local.connection = psycopg.connect(os.environ["BENCH_DATABASE"], autocommit=True)
    _local.connection.execute("INSERT INTO bench_peer (id) VALUES (%s) ON CONFLICT DO NOTHING", [number])


def redis_arguments() -> dict[str, Any]:
    """What redis-py's constructor takes for our URL."""
    parts = urlsplit(REDIS)
    if parts.scheme == "unix":
        return {"unix_socket_path": parts.path, "db": int(parse_qs(parts.query).get("db", ["0"])[0])}
    return {"host": parts.hostname, "port": parts.port or 6379, "db": int(parts.path.strip("/") or 0)}


def apscheduler() -> None:
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.jobstores.redis import RedisJobStore
    from apscheduler.schedulers.blocking import BlockingScheduler

    scheduler = BlockingScheduler(
        jobstores={"default": RedisJobStore(**redis_arguments())},
        executors={"default": ThreadPoolExecutor(10)},
        job_defaults={"misfire_grace_time": None},
        timezone=UTC,
    )
    due = datetime.now(UTC) + timedelta(seconds=45)
    for number in range(COUNT):
        scheduler.add_job("__main__:record", "date", run_date=due, args=[number], id=str(number))
    scheduler.start()


def celery(role: str) -> None:
    from celery import Celery
    from celery.schedules import schedule

    broker = f"redis+socket://{urlsplit(REDIS).path}" if REDIS.startswith("unix") else REDIS
    app = Celery("bench", broker=broker)
    app.conf.update(worker_prefetch_multiplier=64, task_ignore_result=True, worker_hijack_root_logger=False)
    app.task(name="record", ignore_result=True)(record)
    if role == "worker":
        app.worker_main(["worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "ERROR"])
        return

    # Due a while after beat has read them; and again later, which nobody waits for.
    every = schedule(timedelta(seconds=40), app=app)
    app.conf.beat_schedule = {
        f"run {number}": {"task": "record", "schedule": every, "args": (number,)} for number in range(COUNT)
    }
    beat = app.Beat(loglevel="ERROR", schedule=os.environ.get("BENCH_BEAT_FILE", "/tmp/bench-beat"))
    beat.run()


if __name__ == "__main__":
    apscheduler() if sys.argv[1] == "apscheduler" else celery(sys.argv[2])
