"""An event that fails, or whose rows stay locked, stops neither its reader nor other subjects."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.test import Client

from dispatch.console import health
from dispatch.core import clock, events
from dispatch.core.events import quarantine, readers
from dispatch.core.events.readers import EventReader
from dispatch.core.models import Event, EventCursor, FailedEvent
from dispatch.core.observability import gauges
from dispatch.core.privacy.event_retention import delete_expired_events
from notifications import loops
from notifications.models import Notification
from tests.core.horizon import all_readable
from tests.core.threads import Elsewhere
from tests.support import factories
from tests.support.row_locks import held

pytestmark = pytest.mark.django_db(transaction=True)


class Reading:
    """A reader that records what it handles; the events of subjects in `poison` fail."""

    def __init__(self, *, in_order: bool = False) -> None:
        self.handled: list[tuple[int, str]] = []
        self.poison: set[int] = set()
        key = (lambda event: str(event.subject_id)) if in_order else None
        self.reader = EventReader("test", self._handle, key=key)

    def _handle(self, found: list[Event]) -> None:
        made = []
        for event in found:
            if event.subject_id in self.poison:
                raise ValueError("poison")
            EventCursor.objects.create(name=f"{event.pk}")  # twice would fail
            made.append((event.subject_id, event.kind))
        self.handled += made

    def drain(self) -> list[tuple[int, str]]:
        all_readable()
        while self.reader.step():
            pass
        return self.handled

    def retry(self, times: int = 1) -> None:
        for _ in range(times):
            clock.travel(700)
            self.drain()


@pytest.fixture(autouse=True)
def _no_leftover_reader() -> Iterator[None]:
    yield
    readers.readers.pop("test", None)


def append(subject: int, kind: str = "job.created", organization: int = 1) -> Event:
    with transaction.atomic():
        return events.append(organization, kind, subject)


def test_failing_event_does_not_stop_its_reader() -> None:
    reading = Reading()
    reading.poison = {2}
    for subject in (1, 2, 3):
        append(subject)
    append(2, "job.assigned")
    assert reading.drain() == [(1, "job.created"), (3, "job.created")]
    append(4)
    assert reading.drain()[-1] == (4, "job.created")
    assert FailedEvent.objects.count() == 2
    reading.poison.clear()
    reading.retry()
    assert sorted(reading.handled) == [
        (1, "job.created"), (2, "job.assigned"), (2, "job.created"), (3, "job.created"), (4, "job.created"),
    ]  # fmt: skip
    assert not FailedEvent.objects.exists()


def test_later_events_of_the_same_key_wait_for_the_one_that_failed() -> None:
    reading = Reading(in_order=True)
    reading.poison = {2}
    for kind in ("job.created", "job.assigned"):
        for subject in (1, 2):
            append(subject, kind)
    reading.drain()
    append(2, "job.completed")
    append(3)
    assert [subject for subject, _ in reading.drain()] == [1, 1, 3]
    reading.retry(3)
    assert [subject for subject, _ in reading.handled] == [1, 1, 3]
    reading.poison.clear()
    reading.retry()
    assert [kind for subject, kind in reading.handled if subject == 2] == [
        "job.created", "job.assigned", "job.completed",
    ]  # fmt: skip


def test_event_whose_row_is_locked_waits_alone() -> None:
    row = factories.organization()

    def lock(found: list[Event]) -> None:
        for event in found:
            if event.subject_id == 1:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1 FROM accounts_organization WHERE id = %s FOR UPDATE", [row.pk])
            reading._handle([event])

    reading = Reading()
    reading.reader.handle = lock
    append(1)
    append(2)
    with held(row):
        assert reading.drain() == [(2, "job.created")]
    reading.retry()
    assert reading.handled == [(2, "job.created"), (1, "job.created")]


def test_many_locked_rows_end_a_step_early_and_lose_nothing() -> None:
    row = factories.organization()

    def lock(found: list[Event]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM accounts_organization WHERE id = %s FOR UPDATE", [row.pk])
        reading._handle(found)

    reading = Reading()
    reading.reader.handle = lock
    for subject in range(quarantine.MAX_LOCK_TIMEOUTS + 4):
        append(subject)
    all_readable()
    with held(row):
        assert reading.reader.step() == quarantine.MAX_LOCK_TIMEOUTS
    reading.retry()
    assert sorted(subject for subject, _ in reading.handled) == list(range(quarantine.MAX_LOCK_TIMEOUTS + 4))


def test_unavailable_database_quarantines_nothing() -> None:
    def away(found: list[Event]) -> None:
        raise OperationalError("the server is gone")

    reader = EventReader("test", away)
    append(1)
    all_readable()
    with pytest.raises(OperationalError):
        reader.step()
    assert not FailedEvent.objects.exists()
    assert EventCursor.objects.get(name="test").event_id == 0


def test_reader_whose_every_event_fails_stops_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_KEPT", 2)
    reading = Reading()
    reading.poison = {1, 2, 3}
    for subject in (1, 2, 3):
        append(subject)
    all_readable()
    with pytest.raises(quarantine.ReaderStopped):
        reading.reader.step()
    reading.poison.clear()
    assert len(reading.drain()) == 3


def test_admin_is_notified_of_a_quarantined_event_and_of_its_end() -> None:
    organization = factories.organization()
    admin = factories.admin(organization, "Ada")
    while loops.step() == 0:
        pass
    reading = Reading()
    reading.poison = {1}
    failed = append(1, organization=organization.pk)
    reading.drain()
    reading.retry(quarantine.MAX_ATTEMPTS - 2)
    assert FailedEvent.objects.get().quarantined_at is None
    reading.retry()
    row = FailedEvent.objects.get()
    assert (row.attempts, row.error) == (quarantine.MAX_ATTEMPTS, "ValueError: poison")
    all_readable()
    while loops.step() == 0:
        pass
    told = Notification.objects.get(user=admin, kind="event.quarantined")
    assert (told.title, told.settled_at) == ("An event could not be processed: job.created", None)
    assert (("test", "quarantined"), 1) in list(gauges.reader_failed_events())
    reading.poison.clear()
    call_command("failed_events", "retry", stdout=StringIO())
    assert reading.drain().count((1, "job.created")) == 1
    all_readable()
    while loops.step() == 0:
        pass
    told.refresh_from_db()
    assert told.settled_at is not None
    assert Event.objects.filter(subject_type="event", subject_id=failed.pk).count() == 2


def test_health_bar_counts_quarantined_events(client: Client) -> None:
    organization = factories.organization()
    person = factories.dispatcher(organization)
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    health.reset()
    assert "not processed" not in client.get("/health/").content.decode()
    FailedEvent.objects.create(
        reader="test", event_id=1, xid=1, organization_id=organization.pk, kind="job.created",
        attempts=5, quarantined_at=clock.now(),
    )  # fmt: skip
    health.reset()
    assert "<b>1</b> event not processed" in client.get("/health/").content.decode()


def test_discarded_event_releases_those_behind_it() -> None:
    reading = Reading(in_order=True)
    reading.poison = {2}
    first = append(2)
    reading.drain()
    reading.poison.clear()
    append(2, "job.assigned")
    with pytest.raises(CommandError):
        call_command("failed_events", "discard")
    listed = StringIO()
    call_command("failed_events", "list", stdout=listed)
    assert f"{first.pk}  job.created" in listed.getvalue()
    discarded = StringIO()
    call_command("failed_events", "discard", str(first.pk), stdout=discarded)
    assert discarded.getvalue() == "1 event discarded.\n"
    reading.retry()
    assert reading.handled == [(2, "job.assigned")]


def test_event_that_is_discarded_during_its_retry_stays_discarded() -> None:
    reading = Reading(in_order=True)
    reading.poison = {2}
    first = append(2)
    reading.drain()
    append(2, "job.assigned")
    reading.drain()
    handle = reading.reader.handle

    def discard_meanwhile(found: list[Event]) -> None:
        if first in found:
            Elsewhere(lambda: quarantine.discard(quarantine.failed_events("test", [first.pk]))).finish()
        else:
            reading.poison.clear()
        handle(found)

    reading.reader.handle = discard_meanwhile
    reading.retry(2)
    assert not FailedEvent.objects.exists()
    assert reading.handled == [(2, "job.assigned")]


@pytest.mark.parametrize("fails", [False, True])
def test_release_of_an_event_discarded_during_its_retry_is_recorded_once(fails: bool) -> None:
    organization = factories.organization()
    reading = Reading()
    reading.poison = {1}
    failed = append(1, organization=organization.pk)
    reading.drain()
    reading.retry(quarantine.MAX_ATTEMPTS - 1)

    def discard_meanwhile(found: list[Event]) -> None:
        if failed in found:
            Elsewhere(lambda: quarantine.discard(quarantine.failed_events("test"))).finish()
            if fails:
                raise ValueError("poison")

    reading.reader.handle = discard_meanwhile
    reading.retry()
    assert not FailedEvent.objects.exists()
    (released,) = Event.objects.filter(kind=quarantine.RELEASED)
    assert (released.subject_id, released.data["how"]) == (failed.pk, "discarded")


def test_retention_keeps_a_failed_event(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading()
    monkeypatch.setattr(readers, "readers", {"test": reading.reader})
    monkeypatch.setattr("dispatch.core.privacy.event_retention.readers", {"test": reading.reader})
    reading.poison = {1}
    append(1)
    append(2)
    reading.drain()
    clock.travel(500 * 86_400)
    delete_expired_events(1, clock.now(), 100)
    assert list(Event.objects.filter(organization_id=1).values_list("subject_id", flat=True)) == [1]


def test_notice_that_fails_causes_no_further_notice() -> None:
    reading = Reading()
    reading.poison = {7}
    append(7, quarantine.QUARANTINED)
    reading.drain()
    reading.retry(quarantine.MAX_ATTEMPTS)
    assert FailedEvent.objects.get().quarantined_at is not None
    assert Event.objects.count() == 1
