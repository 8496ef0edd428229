"""After a failure, a server is skipped for a while, and then probed by one caller."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dispatch.core import circuit_breaker
from dispatch.core.circuit_breaker import PROBE_S, CircuitBreaker


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(circuit_breaker, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_a_failure_opens_the_circuit_of_that_server_for_the_pause(time: Time) -> None:
    server, other = CircuitBreaker("one", 2.0), CircuitBreaker("two", 2.0)
    assert server.admit()
    assert server.is_closed
    assert not server.is_open
    server.record_failure()
    assert server.is_open
    assert not server.admit()
    assert other.admit()
    time.pass_by(1.9)
    assert not server.admit()
    time.pass_by(0.1)
    assert not server.is_open
    assert not server.is_closed


def test_after_the_pause_one_caller_probes_and_the_others_fail_fast(time: Time) -> None:
    server = CircuitBreaker("one", 2.0)
    server.record_failure()
    time.pass_by(2.0)
    assert [server.admit() for _ in range(3)] == [True, False, False]
    server.record_failure()
    assert not server.admit()
    time.pass_by(2.0)
    assert server.admit()
    server.record_success()
    assert [server.admit() for _ in range(3)] == [True, True, True]
    assert server.is_closed


def test_a_probe_that_never_reports_back_does_not_block_for_good(time: Time) -> None:
    server = CircuitBreaker("one", 2.0)
    server.record_failure()
    time.pass_by(2.0)
    assert server.admit()
    time.pass_by(PROBE_S)
    assert server.admit()


def test_an_interrupted_probe_lets_the_next_caller_probe(time: Time) -> None:
    server = CircuitBreaker("one", 2.0)
    server.record_failure()
    time.pass_by(2.0)
    assert server.admit()
    server.release_probe()
    assert [server.admit(), server.admit()] == [True, False]


def test_reset_all_closes_every_circuit(time: Time) -> None:
    server = CircuitBreaker("one", 2.0)
    server.record_failure()
    CircuitBreaker.reset_all()
    assert server.is_closed
    assert server.admit()
