"""Requests wait in an event loop, and few threads record many results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from dispatch.core.runtime import request_loop
from dispatch.core.runtime.fair_requests import FairRequests
from dispatch.core.runtime.fair_threads import FairThreads
from tests.support.waiting import PATIENCE, wait_until


class Ground:
    """Requests that end when the test says so; `recorded` has the batches."""

    def __init__(self, **options: int) -> None:
        self.requests = FairRequests("test", **{"requests": 120, "per_key": 40, "threads": 2, **options})
        self.recorded: list[list[int]] = []
        self.answers = threading.Event()
        self.may_record = threading.Event()
        self.poison: set[int] = set()
        self.may_record.set()

    async def request(self, number: int) -> int:
        while not self.answers.is_set():
            await asyncio.sleep(0.005)
        return number

    def record(self, numbers: Sequence[int]) -> None:
        assert self.may_record.wait(PATIENCE)
        if self.poison & set(numbers):
            raise RuntimeError("poisoned")
        self.recorded.append(list(numbers))

    def start(self, number: int) -> bool:
        slot = self.requests.reserve(number % 2, number)
        if slot is None:
            return False
        self.requests.start_request(slot, lambda: self.request(number), self.record)
        return True

    def numbers(self) -> list[int]:
        return sorted(number for batch in self.recorded for number in batch)


@pytest.fixture
def _threads() -> Iterator[None]:
    FairThreads.start_threads()
    yield
    FairThreads.stop_threads(PATIENCE)


@pytest.fixture
def ground(_threads: None) -> Iterator[Ground]:
    made = Ground()
    yield made
    FairThreads._all.remove(made.requests)


def test_many_requests_wait_without_a_thread_each(ground: Ground) -> None:
    assert all(ground.start(number) for number in range(38))
    assert len(ground.requests.items()) == 38
    assert ground.requests._alive == 0
    ground.answers.set()
    wait_until(lambda: not ground.requests.items())
    assert ground.numbers() == list(range(38))
    assert ground.requests._alive <= 2


def test_results_that_wait_are_recorded_together(ground: Ground) -> None:
    ground.may_record.clear()
    ground.answers.set()
    for number in range(30):
        assert ground.start(number)
    wait_until(lambda: len(ground.requests._results) >= 20)
    assert len(ground.requests.items()) == 30, "the slots are held until the results are recorded"
    ground.may_record.set()
    wait_until(lambda: not ground.requests.items())
    assert ground.numbers() == list(range(30))
    assert len(ground.recorded) <= 12


def test_a_poisoned_result_loses_no_other(ground: Ground) -> None:
    ground.poison = {3}
    ground.may_record.clear()
    ground.answers.set()
    for number in range(10):
        assert ground.start(number)
    wait_until(lambda: len(ground.requests._results) + 2 >= 10)
    ground.may_record.set()
    wait_until(lambda: not ground.requests.items())
    assert ground.numbers() == [number for number in range(10) if number != 3]


def test_the_end_of_the_process_waits_for_requests(ground: Ground) -> None:
    assert ground.start(1)
    stopping = threading.Thread(target=FairThreads.stop_threads, args=(PATIENCE,))
    stopping.start()
    wait_until(lambda: not ground.start(2))
    ground.answers.set()
    stopping.join(PATIENCE)
    assert ground.numbers() == [1]
    assert ground.requests._alive == 0


def test_a_process_without_threads_for_requests_takes_none() -> None:
    ground = Ground()
    try:
        FairThreads.start_threads(0)
        assert not ground.start(1)
    finally:
        FairThreads.start_threads()  # with the usual limits, for other tests
        FairThreads.stop_threads(PATIENCE)
        FairThreads._all.remove(ground.requests)


def test_without_threads_a_request_is_recorded_at_once() -> None:
    ground = Ground()
    try:
        ground.answers.set()
        assert ground.start(7)
        assert ground.recorded == [[7]]
        assert ground.requests.items() == set()
    finally:
        FairThreads._all.remove(ground.requests)


def test_the_loop_starts_again_after_its_end() -> None:
    async def name() -> str:
        return threading.current_thread().name

    assert request_loop.run(name()) == "requests"
    request_loop.stop()
    assert request_loop.run(name()) == "requests"
