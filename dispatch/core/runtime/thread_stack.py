"""Run tasks in threads, and give each task to the thread that became idle last.

`concurrent.futures.ThreadPoolExecutor` lets its threads take turns, so all of them keep a database connection with
prepared statements, even if one could do all the work.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class ThreadStack(Executor):
    """At most `max_workers` threads. A task that finds all of them busy waits."""

    def __init__(self, max_workers: int, name: str) -> None:
        self._max, self._name = max_workers, name
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Task | None]] = []  # one inbox per thread; the last became idle last
        self._waiting: deque[_Task] = deque()
        self._threads: list[threading.Thread] = []
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` in a thread. Raises RuntimeError after the shutdown."""
        task: _Task = (Future(), fn, args, kwargs)
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("no tasks after the shutdown")
            if self._idle:
                self._idle.pop().put(task)
            elif len(self._threads) < self._max:
                self._start(task)
            else:
                self._waiting.append(task)
        return task[0]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after their tasks. Without `cancel_futures`, the waiting tasks run first."""
        with self._lock:
            self._is_shut_down = True
            if cancel_futures:
                while self._waiting:
                    self._waiting.popleft()[0].cancel()
            while self._idle:
                self._idle.pop().put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _start(self, task: _Task) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._work, args=(task,), name=name)
        thread.start()
        self._threads.append(thread)

    def _work(self, first: _Task) -> None:
        inbox: SimpleQueue[_Task | None] = SimpleQueue()
        task: _Task | None = first
        while task is not None:
            _run(*task)
            del task  # it may hold the last reference to large values
            with self._lock:
                if self._waiting:
                    task = self._waiting.popleft()
                    continue
                if self._is_shut_down:
                    return
                self._idle.append(inbox)
            task = inbox.get()


def _run(future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
