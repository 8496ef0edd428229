"""What every slice pays for: an event in the log and its way to a reader, a leadership, a job on a queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from django.conf import settings
from django.db import connection, transaction

from dispatch.core import events
from dispatch.core.events.readers import EventReader
from dispatch.core.models import Event
from dispatch.core.runtime.leader_election import Election
from dispatch.core.runtime.queues import enqueue, rq_queue
from tests.benchmarks import Result
from tests.benchmarks.measuring import Beside, per_second, percentile, timings_ms


def run() -> Iterator[Result]:
    yield from event_log()
    yield from election()
    yield from queue()


def append() -> None:
    with transaction.atomic():
        events.append(1, "job.created", 1, note="a line of the log, as long as most")


def append_many() -> None:
    Event.objects.bulk_create(
        Event(organization_id=1, kind="job.created", subject_type="job", subject_id=n) for n in range(100)
    )


def event_log() -> Iterator[Result]:
    yield Result("events appended, one a transaction", per_second(append), "events/s", ">= 200")
    yield Result("events appended, 100 a transaction", per_second(append_many) * 100, "events/s", ">= 5000")

    held = Event.objects.count()
    reader = EventReader("bench", lambda found: None)
    start = time.perf_counter()
    while reader.step():
        pass
    yield Result("events read by a durable reader", held / (time.perf_counter() - start), "events/s", ">= 5000")

    lags: list[float] = []
    done = threading.Event()

    def note(found: list[Event]) -> None:
        now = time.time()
        lags.extend((now - event.at.timestamp()) * 1000 for event in found)

    listening = EventReader("bench lag", note)
    while listening.step():  # up to the present
        pass
    lags.clear()
    with Beside(append):  # other transactions come and go meanwhile, and hold the horizon back
        until = time.perf_counter() + 3
        while time.perf_counter() < until:
            listening.step()
        done.set()
    lags.sort()
    yield Result("append to read, 99th percentile, reader without pauses", percentile(lags, 0.99), "ms", "<= 250")


def election() -> Iterator[Result]:
    leader = Election("bench")
    took = timings_ms(leader.step, 500)
    yield Result("renewing a leadership, median", percentile(took, 0.5), "ms", "<= 10")
    yield Result("renewing a leadership, 99th percentile", percentile(took, 0.99), "ms", "<= 100")
    leader.resign()


def queue() -> Iterator[Result]:
    def put() -> None:
        enqueue(settings.DISPATCH_QUEUE, "tests.core.jobs.leave", "a")

    yield Result("jobs put on an RQ queue", per_second(put), "jobs/s", ">= 500")
    rq_queue(settings.DISPATCH_QUEUE).empty()  # or the next suite's workers would work them off

    def bare() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")

    yield Result("statements", per_second(bare), "statements/s", peer="SELECT 1 on the same connection")
