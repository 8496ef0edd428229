"""What is too old is forgotten, in small batches, by each organization's rule; what is open or unread is not."""

from __future__ import annotations

from typing import Any

import pytest

from accounts import loops
from accounts.models import RetentionRule
from dispatch.core import clock, events, own_retention, retention
from dispatch.core.models import Event, EventCursor
from dispatch.core.readers import EventReader, readers
from dispatch.jobs.models import Job
from tests import factories as make
from tests.core.horizon import all_readable
from tests.tenants import tenant

pytestmark = pytest.mark.django_db(transaction=True)
DAY_S = 86_400


@pytest.fixture
def reader(monkeypatch: Any) -> EventReader:
    """The only reader of the log that there is."""
    for name in list(readers):
        monkeypatch.delitem(readers, name)
    return EventReader("test-retention", lambda found: None)


def catch_up(reader: EventReader) -> None:
    all_readable()
    while reader.step():
        pass


def kinds() -> list[str]:
    return list(Event.objects.order_by("id").values_list("kind", flat=True))


def age_all() -> None:
    for _ in range(20):
        if loops.age() is None:
            return
    raise AssertionError("it never came to an end")


def test_old_events_go_when_all_have_read_them(reader):
    ours = make.organization()
    events.append(ours.pk, "thing.old", 1)
    clock.travel(401 * DAY_S)
    events.append(ours.pk, "thing.new", 1)
    age_all()
    assert kinds() == ["thing.old", "thing.new"], "the reader has not begun"
    EventCursor.objects.create(name=reader.name)
    age_all()
    assert kinds() == ["thing.old", "thing.new"], "the reader has not read it"
    catch_up(reader)
    age_all()
    assert kinds() == ["thing.new"]


def test_the_history_of_an_open_job_stays_whole(reader):
    ours = tenant("Alphaville")
    RetentionRule.objects.all().delete()  # it has one of its own
    job = ours.row(Job)
    Event.objects.all().delete()
    for kind, subject in (("job.created", job.pk), ("submission.received", job.submission_id)):
        events.append(ours.organization.pk, kind, subject)
    events.append(ours.organization.pk, "call.ringing", 7, job_id=job.pk)
    events.append(ours.organization.pk, "call.lost", 8, job_id=0)
    clock.travel(401 * DAY_S)
    catch_up(reader)
    age_all()
    assert kinds() == ["job.created", "submission.received", "call.ringing"]
    Job.objects.filter(pk=job.pk).update(ended_at=clock.now(), status="cancelled", pending_reason="")
    age_all()
    assert kinds() == []


def test_each_organization_has_its_own_rule(reader, settings):
    short, long, forever, other = (make.organization() for _ in range(4))
    for organization, days in ((short, 10), (long, 1000), (forever, 0)):
        RetentionRule.objects.create(organization=organization, what="events", days=days)
    for organization in (short, long, forever, other):
        events.append(organization.pk, "thing.old", 1)
    clock.travel(11 * DAY_S)
    catch_up(reader)
    age_all()
    assert {event.organization_id for event in Event.objects.all()} == {long.pk, forever.pk, other.pk}
    settings.RETENTION_DAYS = {"events": 5}
    age_all()
    assert {event.organization_id for event in Event.objects.all()} == {long.pk, forever.pk}
    clock.travel(2000 * DAY_S)
    age_all()
    assert {event.organization_id for event in Event.objects.all()} == {forever.pk}


def test_batches_are_small_and_one_failure_stops_nobody(reader, monkeypatch):
    def broken(organization_id: int, before: Any, limit: int) -> int:
        raise RuntimeError("no")

    ours = make.organization()
    monkeypatch.setattr(
        retention, "kept", {"broken": retention.Kept("broken", "", 1, 1, broken), **retention.kept}
    )
    monkeypatch.setattr(loops, "BATCH", 2)
    for _ in range(5):
        events.append(ours.pk, "thing.old", 1)
    clock.travel(401 * DAY_S)
    catch_up(reader)
    left = []
    while loops.age() is not None:
        left.append(Event.objects.count())
    assert (left, Event.objects.count()) == ([3, 1], 0)


def test_a_condition_that_keeps_events_is_sql_that_runs(reader):
    ours = make.organization()
    EventCursor.objects.create(name=reader.name, xid=2**60)
    assert own_retention.forget_events(ours.pk, clock.now(), 10) == 0
