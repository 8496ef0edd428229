"""Tasks run in the thread that became idle last, and none is lost."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait

import pytest

from dispatch.core.runtime.thread_stack import ThreadStack
from tests.support.waiting import PATIENCE, wait_until


def test_one_thread_does_the_work_of_tasks_that_follow_each_other() -> None:
    threads = ThreadStack(8, "step")
    begun, release = threading.Barrier(4), threading.Event()

    def block() -> int:
        begun.wait(PATIENCE)
        release.wait(PATIENCE)
        return threading.get_ident()

    together = [threads.submit(block) for _ in range(3)]  # three threads exist now
    begun.wait(PATIENCE)
    release.set()
    assert len({future.result(PATIENCE) for future in together}) == 3

    used = set()
    for _ in range(20):
        wait_until(lambda: len(threads._idle) == 3)
        used.add(threads.submit(threading.get_ident).result(PATIENCE))
    assert len(used) == 1
    threads.shutdown()


def test_tasks_beyond_the_threads_wait_and_all_run() -> None:
    threads = ThreadStack(2, "step")
    futures = [threads.submit(pow, number, 2) for number in range(200)]
    threads.shutdown()
    assert [future.result(0) for future in futures] == [number**2 for number in range(200)]
    with pytest.raises(RuntimeError):
        threads.submit(pow, 2, 2)


def test_an_exception_reaches_the_caller_and_the_thread_goes_on() -> None:
    threads = ThreadStack(1, "step")
    failed = threads.submit(int, "x")
    assert isinstance(failed.exception(PATIENCE), ValueError)
    assert threads.submit(int, "7").result(PATIENCE) == 7
    threads.shutdown()


def test_a_shutdown_cancels_what_waits_and_ends_every_thread() -> None:
    threads = ThreadStack(1, "step")
    release = threading.Event()
    running = threads.submit(release.wait, PATIENCE)
    waiting = [threads.submit(pow, 2, 2) for _ in range(5)]
    threads.shutdown(wait=False, cancel_futures=True)
    release.set()
    assert running.result(PATIENCE)
    wait(waiting, PATIENCE)
    for future in waiting:
        with pytest.raises(CancelledError):
            future.result(0)
    threads.shutdown()
    assert not any(thread.is_alive() for thread in threads._threads)
