"""Tasks run in threads with a share for each key."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.db import connection

from dispatch.core.runtime import fair_threads
from dispatch.core.runtime.fair_threads import FairThreads
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[FairThreads]:
    monkeypatch.setattr(FairThreads, "_all", [])
    made = FairThreads("test", threads=8, per_key=4)
    FairThreads.start_threads()
    yield made
    made._items.clear()  # the slots that were reserved only
    FairThreads.stop_threads(PATIENCE)


def take(threads: FairThreads, key: int, most: int = 100) -> int:
    """Reserve as many slots as the key gets."""
    return sum(threads.reserve(key, (key, n)) is not None for n in range(most))


def test_no_number_of_greedy_keys_takes_all_threads(threads: FairThreads) -> None:
    assert [take(threads, key) for key in range(1, 6)] == [4, 2, 1, 1, 0]
    assert threads.full_keys() == {1, 2, 3, 4}


def test_keys_before_the_last_leave_a_thread_for_another(threads: FairThreads) -> None:
    for key in (1, 2, 3):
        take(threads, key)
    assert take(threads, 9) == 1


def test_a_key_can_be_limited_further_and_an_item_runs_once(threads: FairThreads) -> None:
    assert threads.reserve(1, "a") is not None
    assert threads.reserve(1, "b", limit=1) is None
    assert threads.reserve(1, "a") is None
    assert threads.items() == {"a"}


def test_a_key_that_is_not_slow_is_waited_for(threads: FairThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    for n in range(4):
        slot = threads.reserve(1, n)
        assert slot is not None
        slot.start(release.wait, PATIENCE)
    threading.Timer(0.05, release.set).start()
    assert threads.reserve(1, "next", wait_s=PATIENCE) is not None
    monkeypatch.setattr(fair_threads, "SLOW_S", -1.0)
    take(threads, 1)
    assert threads.reserve(1, "last", wait_s=PATIENCE) is None, "at once"


def test_a_slot_that_starts_nothing_is_released(threads: FairThreads) -> None:
    slot = threads.reserve(1, "a")
    assert slot is not None
    with pytest.raises(ValueError, match="on purpose"), slot:
        raise ValueError("on purpose")
    assert threads.items() == set()
    assert threads.reserve(1, "a") is not None


def test_a_hanging_key_delays_no_other(threads: FairThreads) -> None:
    release, done = threading.Event(), threading.Event()
    for n in range(10):
        if (slot := threads.reserve(1, n)) is not None:
            slot.start(release.wait, PATIENCE)
    slot = threads.reserve(2, "quick")
    assert slot is not None
    slot.start(done.set)
    assert done.wait(PATIENCE)
    assert len(threads.items() - {"quick"}) == 4
    release.set()
    wait_until(lambda: not threads.items())


def test_a_failure_is_logged_and_frees_its_slot(threads: FairThreads) -> None:
    for n in range(20):
        slot = threads.reserve(1, "a")
        assert slot is not None, n
        ended = threads.ended
        slot.start(lambda: 1 / 0)
        assert threads.wait_for_end(ended, PATIENCE)


def test_stopping_waits_for_running_tasks_and_refuses_others(threads: FairThreads) -> None:
    began, release, ends = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        assert release.wait(PATIENCE)
        ends.append(1)

    slot = threads.reserve(1, "a")
    assert slot is not None
    slot.start(work)
    assert began.wait(PATIENCE)
    FairThreads.stop_threads(0.01)
    assert threads.items() == {"a"}, "the process does not wait longer than that"
    assert threads.reserve(2, "b") is None
    release.set()
    FairThreads.stop_threads(PATIENCE)
    assert ends == [1]


def test_the_thread_that_was_used_last_is_used_next(threads: FairThreads) -> None:
    release, used = threading.Event(), []

    def work() -> None:
        used.append(threading.get_ident())
        assert release.wait(PATIENCE)

    def run(count: int) -> None:
        for n in range(count):
            slot = threads.reserve(n, n)
            assert slot is not None
            slot.start(work)

    run(3)
    release.set()
    wait_until(lambda: len(threads._idle) == 3)
    for _ in range(4):
        run(1)
        wait_until(lambda: len(threads._idle) == 3)
    assert len(set(used[:3])) == 3
    assert len(set(used[3:])) == 1


def test_without_threads_a_task_runs_in_the_callers(threads: FairThreads) -> None:
    FairThreads.stop_threads(PATIENCE)
    names: list[str] = []
    slot = threads.reserve(1, "a")
    assert slot is not None
    slot.start(lambda: names.append(threading.current_thread().name))
    assert names == [threading.current_thread().name]
    assert threads.items() == set()


@pytest.mark.soak  # the connection pool closes what is idle after 40 seconds
@pytest.mark.django_db(transaction=True)
def test_idle_threads_end_and_close_their_connections(
    threads: FairThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_threads, "IDLE_S", 0.05)
    pids: list[int] = []

    def query() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    for n in range(3):
        slot = threads.reserve(n, n)
        assert slot is not None
        slot.start(query)
    wait_until(lambda: len(pids) == 3)

    def are_closed() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", [pids])
            return cursor.fetchone()[0] == 0

    wait_until(are_closed)
    slot = threads.reserve(1, "again")
    assert slot is not None
    slot.start(query)
    wait_until(lambda: len(pids) == 4)
