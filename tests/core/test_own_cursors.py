"""An organization whose events have very many recipients delays only itself."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import transaction
from django.test import Client

from accounts.models import Membership, Organization
from dispatch.console import health
from dispatch.core import clock, events
from dispatch.core.events import own_cursors, quarantine, readers
from dispatch.core.events.early_reader import EarlyReader
from dispatch.core.events.readers import EventReader
from dispatch.core.models import Event, EventCursor, FailedEvent
from dispatch.core.privacy.event_retention import delete_expired_events
from dispatch.outbox import event_reader as outbox
from notifications import loops as notifications
from tests.core.horizon import all_readable
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)
MOST = 10


class Reading:
    """A reader whose events concern all members. `failures`: how many of its next transactions fail."""

    def __init__(self, batch: int = 20) -> None:
        self.handled: list[Event] = []
        self.failures = 0
        self.reader = EventReader(
            "test", self._handle, recipients=Membership.objects.all(), most=MOST, batch=batch
        )

    def _handle(self, found: list[Event]) -> None:
        if self.failures:
            self.failures -= 1
            raise KeyboardInterrupt  # the process dies before its commit
        cost = sum(Membership.objects.filter(organization=event.organization_id).count() for event in found)
        assert cost <= MOST or len(found) == 1, "a transaction with too many recipients"
        self.handled += found

    def step(self) -> int:
        before = len(self.handled)
        try:
            with transaction.atomic():
                return self.reader.step()
        except KeyboardInterrupt:
            del self.handled[before:]
            return 1

    def drain(self) -> None:
        all_readable()
        while self.step() or self.reader.has_more:
            pass

    def of(self, organization: Organization) -> list[int]:
        return [event.subject_id for event in self.handled if event.organization_id == organization.pk]


@pytest.fixture(autouse=True)
def _no_leftover_reader() -> Iterator[None]:
    yield
    readers.readers.pop("test", None)


def organization_with(members: int) -> Organization:
    made = factories.organization()
    for number in range(members):
        factories.dispatcher(made, f"Dispatcher {number} of {made.pk}")
    return made


def append(organization: Organization, subject: int, kind: str = "job.created") -> Event:
    with transaction.atomic():
        return events.append(organization.pk, kind, subject)


def test_others_do_not_wait_for_an_organization_with_many_recipients() -> None:
    large, small = organization_with(8), organization_with(1)
    reading = Reading()
    for subject in range(6):
        append(large, subject)
    append(small, 100)
    all_readable()
    assert reading.step() == 2
    assert (reading.of(small), reading.of(large)) == ([100], [0])
    append(small, 101)
    all_readable()
    assert reading.step() == 2
    assert (reading.of(small), reading.of(large)) == ([100, 101], [0, 1])
    reading.drain()
    assert (reading.of(small), reading.of(large)) == ([100, 101], [0, 1, 2, 3, 4, 5])
    assert list(EventCursor.objects.values_list("name", flat=True)) == ["test"]


def test_several_large_organizations_take_turns() -> None:
    first, second = organization_with(6), organization_with(7)
    reading = Reading()
    for subject in range(5):
        append(first, subject)
        append(second, subject)
    all_readable()
    for _ in range(5):
        assert reading.step()
    assert abs(len(reading.of(first)) - len(reading.of(second))) <= 1
    reading.drain()
    assert reading.of(first) == reading.of(second) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(6))
def test_each_event_is_handled_once_and_in_order_whatever_happens_between(seed: int) -> None:
    """Events of small and large organizations arrive between the steps, some of which fail before their commit."""
    chance = random.Random(seed)
    organizations = [organization_with(members) for members in (0, 1, 2, 6, 9)]
    reading = Reading(batch=chance.choice([3, 8, 20]))
    expected: dict[int, list[int]] = defaultdict(list)
    for subject in range(chance.randint(60, 90)):
        organization = chance.choice(organizations)
        append(organization, subject)
        expected[organization.pk].append(subject)
        if chance.random() < 0.4:
            all_readable()
            reading.failures = chance.random() < 0.2
            reading.step()
            reading.failures = 0
    reading.drain()
    for organization in organizations:
        assert reading.of(organization) == expected[organization.pk]
    assert list(EventCursor.objects.values_list("name", flat=True)) == ["test"]


def test_urgent_events_of_a_large_organization_do_not_wait_for_its_others() -> None:
    large = organization_with(9)
    handled: list[Event] = []
    kinds = ("job.created", "job.pending")
    reader = EventReader("test", handled.extend, kinds, recipients=Membership.objects.all(), most=MOST)
    urgent: list[int] = []
    early = EarlyReader(reader, lambda event: urgent.append(event.subject_id))
    for subject in range(4):
        append(large, subject)
    append(large, 4, "job.pending")
    all_readable()
    assert reader.step() == 1
    assert early.step() == 4, "those that are not handled in order yet"
    assert urgent == [1, 2, 3, 4]
    assert early.step() == 0
    while reader.has_more:
        reader.step()
    early.reset()
    assert early.step() == 0, "all are handled in order"


def test_events_that_wait_for_a_large_organization_are_not_deleted() -> None:
    large = organization_with(9)
    reading = Reading()
    others = [name for name in readers.readers if name != "test"]
    for subject in range(4):
        append(large, subject)
    all_readable()
    reading.step()
    for name in others:
        EventCursor.objects.update_or_create(name=name, defaults={"xid": readers.ANY_XID, "event_id": 0})
    own = Event.objects.filter(organization_id=large.pk, kind="job.created")
    delete_expired_events(large.pk, clock.now() + timedelta(days=1), 100)
    assert list(own.order_by("id").values_list("subject_id", flat=True)) == [1, 2, 3]
    assert own_cursors.position("test", large.pk).name == f"test:{large.pk}"
    reading.drain()
    assert own_cursors.position("test", large.pk).name == "test"
    delete_expired_events(large.pk, clock.now() + timedelta(days=1), 100)
    assert own.count() <= 1


def test_an_organization_whose_every_event_fails_does_not_stop_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_KEPT_OF_ONE", 3)
    monkeypatch.setattr(quarantine, "MAX_KEPT", 8)
    bad, good = organization_with(1), organization_with(1)
    handled: list[tuple[int, int]] = []
    is_broken = True

    def handle(found: list[Event]) -> None:
        if is_broken and any(event.organization_id == bad.pk for event in found):
            raise ValueError("poison")
        handled.extend((event.organization_id, event.subject_id) for event in found)

    reader = EventReader("test", handle)
    for subject in range(4):
        append(bad, subject)
    all_readable()
    reader.step()
    for subject in range(4, 14):
        append(bad, subject)
        append(good, subject)
    all_readable()
    for _ in range(4):
        reader.step()
    assert handled == [(good.pk, subject) for subject in range(4, 14)]
    assert FailedEvent.objects.count() == 4, "no more of its events are read"
    is_broken = False
    for _ in range(4):
        clock.travel(700)
        reader.step()
    assert sorted(subject for pk, subject in handled if pk == bad.pk) == list(range(14))
    assert list(EventCursor.objects.values_list("name", flat=True)) == ["test"]


def test_only_the_large_organization_is_told_that_its_notifications_are_late(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = organization_with(8), organization_with(1)
    monkeypatch.setattr(notifications.reader, "most", MOST)
    all_readable()
    while notifications.reader.step():
        pass
    for organization in (large, large, large, small):
        append(organization, 10**9, "job.pending")
    Event.objects.update(at=clock.now() - timedelta(minutes=3))
    all_readable()
    outbox.READER.step()
    assert notifications.reader.step() == 2
    assert health_bar(client, large).count("Notifications: delayed by <b>3 min") == 1
    assert "delayed by" not in health_bar(client, small)
    while notifications.reader.step():
        pass
    assert "delayed by" not in health_bar(client, large)


def health_bar(client: Client, organization: Organization) -> str:
    member = Membership.objects.filter(organization=organization).select_related("user").first()
    assert member is not None
    client.force_login(member.user, backend="django.contrib.auth.backends.ModelBackend")
    health.reset()
    shown: str = client.get("/health/").content.decode()
    return shown
