"""The system's events about a run expire with the run; those of users stay as long as the event log."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.core.events.readers import EventReader, readers
from dispatch.core.models import Event, EventCursor
from dispatch.schedules.services import actions
from dispatch.schedules.services.retention import EVENT_DAYS, delete_expired_runs
from tests.core.horizon import all_readable
from tests.harness.schedules import ANA, World
from tests.support import factories


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> EventReader:
    """Register the only reader of the log. It has not read anything yet."""
    for name in list(readers):
        monkeypatch.delitem(readers, name)
    return EventReader("test-run-events", lambda found: None)


def catch_up(reader: EventReader) -> None:
    EventCursor.objects.get_or_create(name=reader.name)
    all_readable()
    while reader.step():
        pass


def ended_runs(world: World) -> list[int]:
    """Make two runs that succeeded and one that Ana canceled; return their ids."""
    schedule = world.schedule(every=1, unit="day")
    for _ in range(2):
        world.travel(86_400)
        world.go()
    world.travel(86_400)
    world.execute()
    actions.cancel_run(world.run(schedule, 3).pk, actor=ANA)
    world.messages()
    return [run.pk for run in world.runs(schedule) if run.ended_at]


def kinds_of(run_id: int) -> list[str]:
    events = Event.objects.filter(subject_type="run", subject_id=run_id).order_by("id")
    return list(events.values_list("kind", flat=True))


def test_the_systems_events_are_deleted_with_an_old_run(world: World, reader: EventReader) -> None:
    unread, young, old = ended_runs(world)
    ours, whole = world.organization.pk, ["run.in_progress", "run.running", "run.succeeded"]
    assert delete_expired_runs(ours, clock.now(), 1) == 1
    assert kinds_of(unread) == whole, "a reader has not read them"
    catch_up(reader)
    assert delete_expired_runs(ours, clock.now(), 1) == 1
    assert kinds_of(young) == whole, "they are younger than the minimum"
    world.travel(EVENT_DAYS * 86_400 + 1)
    assert delete_expired_runs(factories.organization().pk, clock.now(), 1) == 0
    assert delete_expired_runs(ours, clock.now() + timedelta(seconds=1), 1) == 1
    assert kinds_of(old) == ["run.cancelled"], "what Ana did stays"
    assert Event.objects.filter(kind="schedule.created", organization_id=ours).count() == 1
