"""Check that the event log of real runs is accepted, and that two runs of one occurrence are refused."""

from __future__ import annotations

from django.db import connection

from dispatch.core import events
from dispatch.core.events import history
from dispatch.core.models import Event
from dispatch.schedules.kinds.base import Outcome
from dispatch.schedules.models import Run
from dispatch.schedules.rules.outcomes import FAILED
from dispatch.schedules.services import actions, schedules
from tests.harness.schedules import ANA, World
from tests.support.histories import history_is_legal, undone


def test_histories_of_runs_are_accepted_and_broken_ones_refused(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour", retry_schedule_s=[60])
    world.note.answers = [Outcome(FAILED), Outcome(FAILED)]
    for seconds in (3600.0, 61.0):
        world.travel(seconds)
        world.go()
    assert world.statuses(schedule)[0] == "failed"
    actions.retry_run(world.run(schedule).pk, actor=ANA)
    world.go()
    schedules.delete_schedule(schedule.pk, actor=ANA)
    assert history_is_legal().subjects == 2

    run = world.run(schedule)
    epochs = [data["epoch"] for data in _data_of(run, "run.running")]
    assert epochs == [1, 2, 3]
    assert [data["epoch"] for data in _data_of(run, "run.succeeded")] == [3]
    with undone():
        illegal = events.append(run.organization_id, "run.running", run.pk, epoch=3)
        line = f"run {run.pk}: run.running (event {illegal.pk}) is illegal after succeeded"
        assert line in history.violations()
        Run.objects.filter(pk=run.pk).delete()  # retention deletes some of its events with the row
        assert list(history.violations()) == []
    with undone():
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE schedules_run DROP CONSTRAINT one_run_per_occurrence")
        run.pk = None
        run.save()
        twice = ", ".join(map(str, Run.objects.filter(number=1).order_by("id").values_list("id", flat=True)))
        assert f"schedule {schedule.pk}: occurrence 1 has the runs {twice}" in history.violations()


def _data_of(run: Run, kind: str) -> list[dict[str, int]]:
    found = Event.objects.filter(subject_type="run", subject_id=run.pk, kind=kind).order_by("id")
    return list(found.values_list("data", flat=True))
