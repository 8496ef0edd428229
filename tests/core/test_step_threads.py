"""Threads of steps end when they are idle, and free their database connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait

import pytest
from django.db import connection

from dispatch.core.runtime.step_threads import StepThreads
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

LOOPS = 8


@pytest.fixture
def threads() -> Iterator[StepThreads]:
    made = StepThreads(idle_s=0.2)
    yield made
    made.shutdown()


def session() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def open_sessions(pids: set[int]) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", [list(pids)])
        return int(cursor.fetchone()[0])


def burst(threads: StepThreads) -> set[int]:
    """Run a step of each loop at the same time; return their sessions."""
    together = threading.Barrier(LOOPS)

    def step() -> int:
        pid = session()
        together.wait(PATIENCE)
        return pid

    return {future.result(PATIENCE) for future in [threads.submit(step) for _ in range(LOOPS)]}


@pytest.fixture
def kept_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep a connection for each thread, as a dispatcher does. The tests' pool would share them."""
    connection.close()
    with monkeypatch.context() as patch:
        patch.delitem(connection.settings_dict["OPTIONS"], "pool")
        patch.setitem(connection.settings_dict, "CONN_MAX_AGE", 600)
        yield
        connection.close()


def test_sessions_of_a_burst_are_closed_while_work_goes_on(kept_connections: None, threads: StepThreads) -> None:
    pids = burst(threads)
    assert len(pids) == threads.alive == LOOPS

    def work_goes_on() -> bool:
        threads.submit(session).result(PATIENCE)
        return threads.alive == 1

    wait_until(work_goes_on)
    wait_until(lambda: open_sessions(pids) <= 1)


def test_the_thread_that_was_used_last_is_used_next(threads: StepThreads) -> None:
    burst(threads)
    names = {threads.submit(threading.get_ident).result(PATIENCE) for _ in range(20)}
    assert len(names) == 1


def test_an_error_reaches_the_caller_and_the_thread_goes_on(threads: StepThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result(PATIENCE)
    assert threads.submit(lambda: 7).result(PATIENCE) == 7
    assert threads.alive == 1


def test_a_canceled_step_does_not_run(threads: StepThreads) -> None:
    ran: list[int] = []
    future: Future[None] = Future()
    future.cancel()
    threads._start_thread().put((future, lambda: ran.append(1), (), {}))
    with pytest.raises(CancelledError):
        future.result(PATIENCE)
    threads.shutdown()
    assert ran == []


def test_many_steps_at_the_edge_of_idleness_all_run() -> None:
    threads = StepThreads(idle_s=0.0)
    done = [threads.submit(int, number) for number in range(500)]
    assert wait(done, PATIENCE).not_done == set()
    assert [future.result() for future in done] == list(range(500))
    threads.shutdown()
    assert threads.alive == 0


def test_shutdown_ends_idle_threads_and_refuses_steps(threads: StepThreads) -> None:
    burst(threads)
    threads.shutdown()
    assert threads.alive == 0
    with pytest.raises(RuntimeError):
        threads.submit(int)


def test_a_step_in_progress_ends_after_the_shutdown(threads: StepThreads) -> None:
    goes_on = threading.Event()
    future = threads.submit(lambda: goes_on.wait(PATIENCE))
    threads.shutdown(wait=False)
    goes_on.set()
    assert future.result(PATIENCE) is True
    wait_until(lambda: threads.alive == 0)
