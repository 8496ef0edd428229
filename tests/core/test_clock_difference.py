"""A machine whose clock is wrong works by PostgreSQL's clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from structlog.testing import capture_logs

from dispatch.core import clock
from dispatch.core.db import clock_difference
from tests.support.database import reconnect


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    clock.set_correction(0.0)


def machine_is_ahead(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(clock, "machine_now", lambda: datetime.now(UTC) + timedelta(seconds=seconds))


def measure_on_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_difference, "_measured_at", None)
    reconnect()
    connection.ensure_connection()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seconds", [1000, -1000])
def test_a_wrong_clock_is_corrected_by_that_of_postgresql(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    machine_is_ahead(monkeypatch, seconds)
    with capture_logs() as logs:
        measure_on_a_new_connection(monkeypatch)
    assert abs((clock.now() - datetime.now(UTC)).total_seconds()) < 500
    assert [entry["event"] for entry in logs if entry["event"].startswith("clock_")] == ["clock_corrected"]
    monkeypatch.undo()  # NTP repairs the clock
    measure_on_a_new_connection(monkeypatch)
    assert clock.correction_s() == 0


@pytest.mark.django_db(transaction=True)
def test_a_clock_is_not_measured_on_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_on_a_new_connection(monkeypatch)
    machine_is_ahead(monkeypatch, 1000)
    monkeypatch.setattr(clock_difference, "EVERY_S", 3600)
    reconnect()
    connection.ensure_connection()
    assert clock.correction_s() == 0


def test_the_time_that_the_question_took_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for theirs, expected in ((5, 0), (0, 0), (10, 0), (15, 5), (-4, -4)):
        times = iter([start, start + timedelta(seconds=10)])
        monkeypatch.setattr(clock, "machine_now", lambda times=times: next(times))
        found = clock_difference.measure_difference(lambda theirs=theirs: start + timedelta(seconds=theirs))
        assert found == expected


def test_a_small_difference_is_tolerated() -> None:
    clock_difference.follow_database_clock(0.9)
    assert clock.correction_s() == 0
    clock_difference.follow_database_clock(-3.0)
    assert clock.correction_s() == -3.0
