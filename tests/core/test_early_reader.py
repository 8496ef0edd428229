"""Urgent events are handled while the horizon is held, also if the database fails meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.db import OperationalError, connection, transaction

from dispatch.core import events
from dispatch.core.events import readers
from dispatch.core.events.early_reader import EarlyReader
from dispatch.core.events.readers import EventReader
from dispatch.core.models import Event, EventCursor
from tests.core.horizon import held_horizon

pytestmark = pytest.mark.django_db(transaction=True)


class EarlyReading:
    """An early reader that writes a row per event. `before` runs once, before its second event."""

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None
        self._seen = 0
        self.reader = EarlyReader(EventReader("test", lambda found: None, ("job.created",)), self._handle)

    def _handle(self, event: Event) -> None:
        self._seen += 1
        if self._seen == 2:
            self.before()
        EventCursor.objects.create(name=f"event {event.subject_id}")

    def handled(self) -> set[str]:
        return set(EventCursor.objects.filter(name__startswith="event").values_list("name", flat=True))


@pytest.fixture
def reading() -> Iterator[EarlyReading]:
    EventCursor.objects.create(name="test")
    yield EarlyReading()
    readers.readers.pop("test", None)


@pytest.fixture(autouse=True)
def _three_events() -> Iterator[None]:
    with held_horizon():
        for subject in range(3):
            events.append(1, "job.created", subject)
        yield


EVERY = {"event 0", "event 1", "event 2"}


def test_events_of_a_broken_transaction_are_handled_by_the_next_step(reading: EarlyReading) -> None:
    reading.before = end_own_session
    with pytest.raises(OperationalError):
        reading.reader.step()
    connection.close()
    assert reading.handled() == set()
    assert reading.reader.step() == 3
    assert reading.handled() == EVERY


def test_events_whose_commit_failed_are_handled_by_the_next_step(
    reading: EarlyReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(OperationalError):
        patch.setattr(connection, "_commit", end_own_session)
        reading.reader.step()
    connection.close()
    assert reading.handled() == set()
    assert reading.reader.step() == 3
    assert reading.handled() == EVERY


def test_event_that_fails_delays_no_other(reading: EarlyReading) -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    reading.before = fail
    assert reading.reader.step() == 2
    assert len(reading.handled()) == 2


def test_urgent_event_is_handled_after_the_durable_reader_passed_many_others(
    reading: EarlyReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "IDLE_EVENTS", 20)
    assert reading.reader.step() == 3
    with transaction.atomic():
        events.append_many([events.EventRow(1, "job.completed", 9, {})] * 30)
    assert reading.reader.reader.step() == 0, "the horizon is held"
    events.append(1, "job.created", 3)
    assert reading.reader.step() == 1
    assert reading.handled() == {*EVERY, "event 3"}


def test_ids_that_come_again_after_a_restore_are_handled(reading: EarlyReading) -> None:
    assert reading.reader.step() == 3
    first = Event.objects.earliest("pk").pk
    go_back_to(first)
    assert reading.reader.step() == 0
    for subject in (8, 9):
        events.append(1, "job.created", subject)
    assert set(Event.objects.values_list("pk", flat=True)) == {first, first + 1, first + 2}, "the ids are reused"
    assert reading.reader.step() == 2
    assert {"event 8", "event 9"} <= reading.handled()


def go_back_to(last: int) -> None:
    """Lose the later events, as if the database was restored to an earlier state: their ids come again."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM core_event WHERE id > %s", [last])
        cursor.execute("SELECT setval(pg_get_serial_sequence('core_event', 'id'), %s)", [last])


def end_own_session() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
