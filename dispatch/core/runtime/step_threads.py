"""Run the steps of loops in threads that end when they are idle, and with them their database connections.

The thread that was used last is used next. An ordinary pool takes its threads in turn, so that once many steps
have run at the same time, as in an outage, each thread keeps its connection for as long as the process lives.
Two dispatchers can then leave no connection for others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any

from django.db import connections

# An idle thread ends after this time, in seconds.
IDLE_S = 30.0

_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]
_Inbox = SimpleQueue[_Task | None]


class StepThreads(Executor):
    """An executor that starts a thread for each concurrent step: a loop runs one step at a time."""

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: list[_Inbox] = []  # the one used last is the last
        self._threads: set[threading.Thread] = set()
        self._is_shut_down = False

    @property
    def alive(self) -> int:
        """Return how many threads there are."""
        return len(self._threads)

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `call` in a thread. Raises RuntimeError after `shutdown`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("No step can start after the shutdown.")
            inbox = self._idle.pop() if self._idle else self._start_thread()
            inbox.put((future, call, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End idle threads now, and others when their step ends. No step ever waits to be started."""
        with self._lock:
            self._is_shut_down = True
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()
            threads = list(self._threads)
        if wait:
            for thread in threads:
                thread.join()

    def _start_thread(self) -> _Inbox:
        inbox: _Inbox = SimpleQueue()
        thread = threading.Thread(target=self._work, args=(inbox,), name="step")
        self._threads.add(thread)
        thread.start()
        return inbox

    def _work(self, inbox: _Inbox) -> None:
        try:
            while task := self._next_task(inbox):
                _run(*task)
                with self._lock:
                    if self._is_shut_down:
                        return
                    self._idle.append(inbox)
        finally:
            connections.close_all()
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next_task(self, inbox: _Inbox) -> _Task | None:
        """Wait for a task; return None if the thread should end."""
        try:
            return inbox.get(timeout=self._idle_s)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
        return inbox.get()  # a task came at the last moment


def _run(future: Future[Any], call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
