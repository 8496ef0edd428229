"""Run coroutines that send requests from threads: in the dispatcher's event loop, or else in a background thread.

A process has one such loop, and so one set of connections to each service. The dispatcher adopts its own loop; in
other processes, the loop starts with the first coroutine.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog
import uvloop

T = TypeVar("T")
Closer = Callable[[], Coroutine[Any, Any, None]]

log = structlog.get_logger(__name__)

_closers: list[Closer] = []
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None  # None: the loop was adopted, or there is none


@contextmanager
def adopted(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Run coroutines in this loop while the block runs."""
    global _loop
    stop()
    with _lock:
        _loop = loop
    try:
        yield
    finally:
        with _lock:
            _loop = None


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run the coroutine in the process's loop. Waiting for the result in that loop would block it."""
    return asyncio.run_coroutine_threadsafe(work, _running_loop())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine in the process's loop and wait for its result."""
    return submit(work).result()


def closes_with_loop(close: Closer) -> Closer:
    """Register what closes the connections of the running loop; `close_services` calls it."""
    _closers.append(close)
    return close


async def close_services() -> None:
    """Close the connections of the running loop, before it ends."""
    for close in _closers:
        await close()


def stop() -> None:
    """End the background thread, if there is one. Coroutines that still run are canceled."""
    global _loop, _thread
    with _lock:
        loop, thread = _loop, _thread
        if loop is None or thread is None:
            return
        _loop = _thread = None
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = uvloop.new_event_loop()
            _thread = threading.Thread(target=_run_forever, args=(_loop,), name="requests", daemon=True)
            _thread.start()
        return _loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.run_until_complete(close_services())
    except Exception:
        log.exception("request_loop_failed")
    finally:
        loop.close()


def _forget() -> None:
    """Start with no loop in a forked process, which has none of the threads."""
    global _loop, _thread, _lock
    _lock, _loop, _thread = threading.Lock(), None, None


os.register_at_fork(after_in_child=_forget)
atexit.register(stop)
