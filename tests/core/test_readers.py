"""A durable reader sees every event once, in order, despite late commits and crashes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from dispatch.core import clock, events
from dispatch.core.db import lock_waits, prepared
from dispatch.core.events import readers
from dispatch.core.events.readers import CounterWentBack, EventReader
from dispatch.core.fault_injection import Interrupted
from dispatch.core.models import Event, EventCursor
from tests.core.horizon import all_readable
from tests.core.threads import Elsewhere
from tests.support.patient_batches import production_limits
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Seen:
    """A reader that remembers the subjects of its events."""

    def __init__(self, *kinds: str, batch: int = 200) -> None:
        self.subjects: list[int] = []
        self.reader = EventReader("test", self._take, kinds or None, batch=batch)

    def _take(self, found: list[Event]) -> None:
        self.subjects += [event.subject_id for event in found]

    def drain(self, *, held: bool = False) -> list[int]:
        """Read all readable events.

        `held`: a transaction of the test is open, so some events must wait.
        """
        if not held:
            all_readable()
        while self.reader.step():
            pass
        return self.subjects


def append(subject: int, kind: str = "job.created") -> None:
    with transaction.atomic():
        events.append(1, kind, subject)


def open_transaction(body: Callable[[], object]) -> tuple[Elsewhere, threading.Event]:
    """Run `body` on another connection, and commit only when the returned event is set."""
    done, commit = threading.Event(), threading.Event()

    def run() -> None:
        with transaction.atomic():
            body()
            done.set()
            assert commit.wait(PATIENCE)

    thread = Elsewhere(run)
    assert done.wait(PATIENCE)
    return thread, commit


def test_events_are_seen_once_in_order() -> None:
    seen = Seen()
    for subject in (1, 2, 3):
        append(subject)
    assert seen.drain() == [1, 2, 3]
    append(4)
    assert seen.drain() == [1, 2, 3, 4]
    assert seen.reader.step() == 0


def test_a_horizon_that_moves_during_a_read_sets_no_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The horizon is read right before the events. Transactions that end in between move it."""
    seen, read = Seen(), EventReader._read

    def read_late(reader: EventReader, cursor: EventCursor) -> tuple[int, list[Event], set[str]]:
        _, found, held = read(reader, cursor)
        return found[0].xid, found, held

    append(1)
    append(2)
    all_readable()
    with monkeypatch.context() as patch:
        patch.setattr(EventReader, "_read", read_late)
        assert seen.reader.step() == 2
    second = Event.objects.get(subject_id=2)
    cursor = EventCursor.objects.get(name="test")
    assert (cursor.xid, cursor.event_id) == (second.xid, second.pk)
    append(3)
    assert seen.drain() == [1, 2, 3]


def test_a_reader_waits_for_another_process_that_holds_its_cursor_for_long() -> None:
    """Only the waits for rows of single events are limited to a moment."""
    seen = Seen()
    append(1)
    assert seen.drain() == [1]
    append(2)
    all_readable()
    holder, commit = open_transaction(lambda: EventCursor.objects.select_for_update(no_key=True).get(name="test"))
    with production_limits():
        reader = Elsewhere(seen.reader.step)
        wait_until(lambda: lock_wait_s() > 2 * lock_waits.LOOP_S or not reader.is_alive())
        commit.set()
        reader.finish()
    holder.finish()
    assert seen.subjects == [1, 2]


def lock_wait_s() -> float:
    """Return for how long a statement has waited for a lock; 0 if none does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(epoch FROM clock_timestamp() - min(query_start))::float FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return cursor.fetchone()[0] or 0.0


def test_an_event_that_commits_late_is_not_skipped() -> None:
    seen = Seen()
    slow, commit = open_transaction(lambda: events.append(1, "job.created", 1))
    append(2)  # a higher id, committed first
    assert seen.drain(held=True) == []  # 2 waits: 1 may still come
    commit.set()
    slow.finish()
    assert seen.drain() == [1, 2]


def test_a_transaction_that_began_early_and_wrote_late_is_not_skipped() -> None:
    seen = Seen()
    append(1)
    assert seen.drain() == [1]
    # It gets its transaction id from another write, and appends its event after others have committed.
    go = threading.Event()
    began = threading.Event()

    def body() -> None:
        with transaction.atomic():
            EventCursor.objects.create(name="something else")
            began.set()
            assert go.wait(PATIENCE)
            events.append(1, "job.created", 2)

    slow = Elsewhere(body)
    assert began.wait(PATIENCE)
    append(3)
    assert seen.drain(held=True) == [1]
    go.set()
    slow.finish()
    assert seen.drain() == [1, 2, 3]


def test_a_rolled_back_event_is_never_seen_and_holds_nothing_up() -> None:
    seen = Seen()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        events.append(1, "job.created", 1)
        _ = 1 / 0
    append(2)
    assert seen.drain() == [2]


def test_events_are_reapplied_after_a_crash_only_if_uncommitted() -> None:
    written = EventCursor.objects.filter(name__startswith="written")

    def write_and_die(found: list[Event]) -> None:
        for event in found:
            EventCursor.objects.create(name=f"written {event.subject_id}")
        raise Interrupted

    append(1)
    all_readable()
    with pytest.raises(Interrupted):
        EventReader("test", write_and_die).step()
    assert not written.exists()  # neither the result nor the cursor

    def write(found: list[Event]) -> None:
        for event in found:
            EventCursor.objects.create(name=f"written {event.subject_id}")

    assert EventReader("test", write).step() == 1
    assert EventReader("test", write).step() == 0  # a second time would break the unique name
    assert written.count() == 1


def test_two_processes_with_the_same_reader_share_work_without_duplicates() -> None:
    for subject in range(100):
        append(subject)
    all_readable()
    seen: list[int] = []
    together = threading.Barrier(4)

    def work() -> None:
        reader = EventReader("test", lambda found: seen.extend(e.subject_id for e in found), batch=7)
        together.wait(PATIENCE)
        while reader.step():
            pass

    for thread in [Elsewhere(work) for _ in range(4)]:
        thread.finish()
    assert seen == list(range(100))


def test_only_requested_kinds_are_returned() -> None:
    seen = Seen("job.pending", batch=2)
    for subject in range(10):
        append(subject, "job.pending" if subject % 3 == 0 else "job.created")
    assert seen.drain() == [0, 3, 6, 9]


def idle_reader() -> tuple[Seen, EventCursor]:
    """Return a reader of pending jobs that has read all but an event that it does not want, and its cursor."""
    seen = Seen("job.pending")
    append(1, "job.pending")
    seen.drain()
    cursor = EventCursor.objects.get(name="test")
    append(2, "job.created")
    all_readable()
    return seen, cursor


def test_an_idle_reader_writes_nothing_until_much_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, before = idle_reader()
    assert seen.reader.step() == 0
    assert EventCursor.objects.get(name="test").xid == before.xid
    monkeypatch.setattr(readers, "IDLE_STRIDE", 1)
    assert seen.reader.step() == 0
    assert EventCursor.objects.get(name="test").xid > before.xid


@pytest.fixture
def unwanted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that appends more events in one transaction than an idle reader reads again."""
    monkeypatch.setattr(readers, "IDLE_EVENTS", 20)

    def write() -> None:
        with transaction.atomic():
            events.append_many([events.EventRow(1, "job.created", 0, {})] * 30)

    return write


def is_due(reader: EventReader) -> bool:
    return bool(prepared.fetch_all(f"SELECT {reader.is_due()}", {"now": clock.now()})[0][0])


def test_an_idle_reader_passes_many_events_of_few_transactions(unwanted: Callable[[], None]) -> None:
    seen, before = idle_reader()
    assert not is_due(seen.reader)
    unwanted()
    all_readable()
    assert is_due(seen.reader)
    assert seen.reader.step() == 0
    assert EventCursor.objects.get(name="test").xid > before.xid
    wait_until(lambda: seen.reader.step() or not is_due(seen.reader), message="it reads them again and again")
    moved = EventCursor.objects.get(name="test")
    assert seen.reader.step() == 0
    assert EventCursor.objects.get(name="test").moved_at == moved.moved_at
    append(3, "job.pending")
    assert seen.drain() == [1, 3]


def test_a_reader_that_passes_many_events_skips_none_that_commits_late(unwanted: Callable[[], None]) -> None:
    seen = Seen("job.pending")
    append(1, "job.pending")
    seen.drain()
    before = EventCursor.objects.get(name="test")
    unwanted()
    all_readable()
    slow, commit = open_transaction(lambda: events.append(1, "job.pending", 2))
    unwanted()  # higher ids, committed first
    for _ in range(3):
        assert seen.reader.step() == 0
    moved = EventCursor.objects.get(name="test")
    commit.set()
    slow.finish()
    assert before.xid < moved.xid < Event.objects.get(subject_id=2).xid
    assert seen.drain() == [1, 2]


def test_readers_continue_after_a_restore_into_a_younger_cluster() -> None:
    seen = Seen()
    append(1)
    assert seen.drain() == [1]
    append(2)
    # In the new cluster the counter starts low: rows and cursors hold ids of future transactions.
    Event.objects.update(xid=2**50)
    EventCursor.objects.update(xid=2**50)
    with pytest.raises(CounterWentBack, match="after_restore"):
        seen.reader.step()
    readers.after_restore()
    assert seen.drain()[-1] == 2
    append(3)
    assert seen.drain()[-1] == 3


def test_a_restore_skips_no_event_with_a_lower_id_than_the_last_one_applied() -> None:
    seen = Seen()
    append(1)
    append(2)
    append(3)
    # 2 had the lower transaction id and was applied; 1 and 3 came after the last read before the dump.
    for subject, xid in ((2, 2**50), (1, 2**50 + 1), (3, 2**50 + 2)):
        Event.objects.filter(subject_id=subject).update(xid=xid)
    applied = Event.objects.get(subject_id=2)
    EventCursor.objects.create(name="test", xid=applied.xid, event_id=applied.pk)
    readers.after_restore()
    assert {1, 3} <= set(seen.drain())


def test_reader_that_applied_everything_repeats_nothing_after_a_restore() -> None:
    seen = Seen()
    for subject in (1, 2, 3):
        append(subject)
    assert seen.drain() == [1, 2, 3]
    readers.after_restore()
    append(4)
    assert seen.drain() == [1, 2, 3, 4]


def test_after_restore_says_how_many_events_were_reset() -> None:
    for count, said in ((1, "1 event reset"), (2, "2 events reset"), (0, "0 events reset")):
        for subject in range(count):
            append(subject)
        out = StringIO()
        call_command("after_restore", stdout=out)
        assert out.getvalue() == f"{said}; every reader continues at its position.\n"


def test_the_lag_is_the_age_of_the_oldest_event_not_applied() -> None:
    seen = Seen("job.pending")
    append(1, "job.created")
    assert seen.reader.lag_s() == 0
    append(2, "job.pending")
    clock.travel(90)
    assert 89 < seen.reader.lag_s() < 90 + PATIENCE
    seen.drain()
    assert seen.reader.lag_s() == 0
