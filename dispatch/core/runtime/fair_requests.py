"""Send requests in the process's event loop, with a share for each key, and record their results in threads.

A request that waits for its server occupies a slot, but no thread and no database connection. Threads record the
results: each takes all that are waiting, so that under load few transactions record many.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from dispatch.core.observability import metrics
from dispatch.core.runtime import request_loop
from dispatch.core.runtime.fair_threads import FairThreads, Slot

log = structlog.get_logger(__name__)

MAX_RESULTS = 50  # in one transaction

Request = Callable[[], Coroutine[Any, Any, Any]]
Record = Callable[[Sequence[Any]], object]


class FairRequests(FairThreads):
    """At most `requests` concurrent requests, at most `per_key` of one key, and one of each item.

    At most `threads` threads record results, and run tasks that were started with `Slot.start`.
    """

    def __init__(self, name: str, *, requests: int, per_key: int, threads: int) -> None:
        super().__init__(name, threads=threads, per_key=per_key, slots=requests)
        self._results: list[tuple[Slot, Record, Any]] = []
        self._results_lock = threading.Lock()

    def start_request(self, slot: Slot, request: Request, record: Record) -> None:
        """Run `request()` in the event loop, then `record` in a thread, with its result and perhaps others.

        If `record` fails for several results, it is called again for each of them alone. Call it outside any
        transaction, once per slot. Without threads (`start_threads`), it returns when the result is recorded.
        """
        slot.is_started = True
        if not FairThreads._are_started:
            try:
                record([request_loop.run(request())])
            except Exception:
                log.exception("request_task_failed", threads=self.name)
            finally:
                self._release(slot)
            return
        request_loop.submit(self._run_request(slot, request, record))

    async def _run_request(self, slot: Slot, request: Request, record: Record) -> None:
        try:
            with metrics.request_seconds.labels(self.name).time():
                result = await request()
        except BaseException:  # the request is recovered like one whose process ended
            log.exception("request_failed", threads=self.name)
            self._release(slot)
            raise
        with self._results_lock:
            self._results.append((slot, record, result))
        self._start_task((None, self._record_waiting, ()))

    def _record_waiting(self) -> None:
        """Record the results that are waiting. Another thread may have taken them."""
        with self._results_lock:
            batch, self._results = self._results[:MAX_RESULTS], self._results[MAX_RESULTS:]
        if not batch:
            return
        (_, record, _), *others = batch
        try:
            record([result for _, _, result in batch])
        except Exception as error:
            if not others:
                self._end(batch)
                raise
            log.warning("result_batch_failed", threads=self.name, results=len(batch), error=str(error).strip())
            for entry in batch:  # each in a thread, so that one that waits for a lock delays no other
                self._start_task((None, self._record_alone, (entry,)))
        except BaseException:
            self._end(batch)
            raise
        else:
            self._end(batch)

    def _record_alone(self, entry: tuple[Slot, Record, Any]) -> None:
        _, record, result = entry
        try:
            record([result])
        finally:
            self._end([entry])

    def _end(self, batch: Sequence[tuple[Slot, Record, Any]]) -> None:
        for slot, _, _ in batch:
            self._release(slot)
