"""Overlap policies that wait for the earlier run or cancel it, and the cancellation of runs in progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.schedules.kinds import base
from dispatch.schedules.kinds import http as http_kind
from dispatch.schedules.kinds.base import Assignment, LeaseCheck, Outcome
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.rules import stretches
from dispatch.schedules.rules.due import Due, Policy, Verdict, plan_due_run
from dispatch.schedules.rules.outcomes import FAILED, SUCCEEDED
from dispatch.schedules.rules.recurrence import Timing
from dispatch.schedules.services import actions, backfill, schedules, worker
from dispatch.schedules.services.schedules import NotInThisStatus
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.harness.schedules import ANA, NoteKind, World, noting
from tests.outbox.receiver import Receiver
from tests.support import factories
from tests.support.database import read_only_error

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look for requests to cancel before each run."""
    monkeypatch.setattr(base, "CANCEL_POLL_S", 0.0)


def take(world: World) -> list[Assignment]:
    """Start what is queued in a worker that does not report."""
    pairs = [pair for message in world.messages() for pair in message.args[1]]
    return worker.start_runs(pairs)


# --- Buffer one
# ---------------------------------------------------------------------------------------------------


def test_one_occurrence_waits_and_the_others_are_skipped(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="buffer_one", missed_after_s=1)
    for _ in range(4):
        world.travel(60)
        world.execute()
    assert world.statuses(schedule) == ["in_progress", "scheduled"]
    assert world.run(schedule, 2).waiting_for == "earlier"
    world.work()
    world.settle()
    world.execute()
    assert world.statuses(schedule) == ["succeeded", "in_progress", "skipped", "scheduled"]
    assert "one was waiting" in world.run(schedule, 3).error
    assert world.run(schedule, 3).stretch_count == 2
    assert world.again(schedule).next_at > clock.now()
    world.go()
    assert world.statuses(schedule)[1] == "succeeded"


def test_waiting_occurrence_of_a_paused_schedule_is_not_started(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="buffer_one")
    for _ in range(2):
        world.travel(60)
        world.execute()
    schedules.pause_schedule(schedule.pk, actor=ANA)
    world.work()
    world.settle()
    world.execute()
    assert world.statuses(schedule) == ["succeeded", "scheduled"]
    assert world.run(schedule, 2).due_at is None


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
@pytest.mark.parametrize("limit", [{"max_occurrences": 50}, {"ends_at": NOON + timedelta(days=3650)}])
def test_another_limit_does_not_make_a_waiting_occurrence_a_missed_one(
    world: World, missed: str, limit: dict[str, Any]
) -> None:
    schedule = world.schedule(every=10, unit="minute", overlap="buffer_one", missed=missed, missed_after_s=60)
    for _ in range(2):
        world.travel(600)
        world.execute()
    world.travel(900)
    schedules.change_schedule(schedule.pk, limit, actor=ANA)
    world.execute()
    assert world.statuses(schedule) == ["in_progress", "scheduled"]
    assert world.run(schedule, 2).waiting_for == "earlier"
    world.go()
    assert world.statuses(schedule)[:2] == ["succeeded", "succeeded"]


def test_very_many_occurrences_that_passed_are_one_row() -> None:
    timing = Timing("UTC", every=10, unit="second", anchor=NOON)
    due = Due(NOON, 7, has_waited=True)
    now = NOON + timedelta(seconds=10 * 4000 + 5)
    plan = plan_due_run(timing, Policy("last", 300, "buffer_one"), due, now, has_open=False)
    assert plan.verdict is Verdict.RUN
    assert plan.passed is not None
    assert (plan.passed.number, plan.passed.trigger_at) == (8, NOON + timedelta(seconds=10))
    assert (plan.passed.count, plan.passed.last_at) == (4000, NOON + timedelta(seconds=40_000))
    assert plan.next == (4008, NOON + timedelta(seconds=40_010))


def test_passed_occurrences_are_computed_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "MAX_COMPUTED", 2)
    timing = Timing("UTC", cron="* * * * *")
    now = NOON + timedelta(hours=1)
    plan = plan_due_run(
        timing, Policy("last", 300, "buffer_one"), Due(NOON, 1, has_waited=True), now, has_open=False
    )
    assert plan.passed is not None
    assert (plan.passed.number, plan.passed.count) == (2, 3)
    assert plan.next == (5, NOON + timedelta(minutes=4))


def test_an_end_comes_while_an_occurrence_waits(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="buffer_one", max_occurrences=3)
    for _ in range(5):
        world.travel(60)
        world.execute()
    world.go()
    assert world.statuses(schedule) == ["succeeded", "succeeded", "skipped"]
    assert world.again(schedule).status == "ended"


# --- Cancel the other
# ---------------------------------------------------------------------------------------------


def test_a_later_occurrence_cancels_one_that_is_queued(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="cancel_other")
    for _ in range(2):
        world.travel(60)
        world.execute()
    assert world.statuses(schedule) == ["cancelled", "in_progress", "scheduled"]
    world.go()
    assert world.statuses(schedule) == ["cancelled", "succeeded", "scheduled"]
    assert [one.number for one in world.note.done] == [2]


def test_a_later_occurrence_waits_until_the_running_one_has_stopped(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="cancel_other")
    world.travel(60)
    world.execute()
    (running,) = take(world)
    world.travel(60)
    world.execute()
    assert world.statuses(schedule) == ["running", "scheduled"]
    assert world.run(schedule, 1).cancel_requested_at is not None
    assert world.told(world.run(schedule, 1))[-1] == "cancel_requested"
    worker.report_outcomes([(running, base.canceled())])
    world.go()
    assert world.statuses(schedule) == ["cancelled", "succeeded", "scheduled"]


def test_a_retry_is_canceled_by_the_next_occurrence(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="cancel_other", retry_schedule_s=[3600])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.travel(60)
    world.go()
    world.travel(60)
    world.go()
    assert world.statuses(schedule) == ["cancelled", "succeeded", "scheduled"]


def test_a_manual_run_cancels_what_runs(world: World) -> None:
    schedule = world.schedule(every=1, unit="day", overlap="cancel_other")
    world.travel(86_400)
    world.execute()
    (running,) = take(world)
    manual = schedules.run_now(schedule.pk, actor=ANA)
    world.execute()
    assert world.run(schedule).cancel_requested_at is not None
    worker.report_outcomes([(running, base.canceled())])
    world.go()
    assert Run.objects.get(pk=manual.pk).status == "succeeded"


def test_runs_of_a_backfill_wait_for_each_other(world: World) -> None:
    schedule = world.schedule(every=1, unit="day", overlap="cancel_other")
    since = clock.now()
    world.travel(3 * 86_400)
    world.execute()
    (other,) = take(world)
    made = backfill.run_range(schedule.pk, since, clock.now(), actor=ANA)
    world.execute()
    assert world.run(schedule, 3).cancel_requested_at is None
    worker.report_outcomes([(other, Outcome(SUCCEEDED))])
    world.go()
    assert [Run.objects.get(pk=run.pk).status for run in made] == ["succeeded"] * 3
    assert world.note.times == [run.trigger_at for run in made]


def backfilled(world: World, hours: int) -> tuple[Schedule, list[Run]]:
    """Return an hourly schedule whose runs wait for each other, and the runs of a backfill of its past hours."""
    schedule = world.schedule(every=1, unit="hour", overlap="buffer_one", missed="last")
    since = clock.now()
    world.travel(hours * 3600)
    world.go()
    return schedule, backfill.run_range(schedule.pk, since, clock.now(), actor=ANA)


def test_an_occurrence_waits_for_one_run_of_a_backfill(world: World) -> None:
    _, made = backfilled(world, 3)
    started = []
    for _ in range(4):  # occurrences 6 and 7 are younger than the runs of the backfill
        world.travel(3600)
        world.execute()
        world.work()
        started.append(world.note.done[-1].number)
        world.settle()
    assert started == [None, 4, 6, 7]
    world.go()
    assert world.note.times[-1] == made[-1].trigger_at
    assert [Run.objects.get(pk=run.pk).status for run in made] == ["succeeded"] * 3


def test_the_end_of_a_run_wakes_one_run_of_a_backfill(world: World) -> None:
    schedule, made = backfilled(world, 6)
    world.execute()
    waiting = schedule.runs.filter(waiting_for="earlier")
    before = dict(waiting.values_list("pk", "due_at"))
    world.work()
    world.settle()
    changed = [pk for pk, due_at in waiting.values_list("pk", "due_at") if due_at != before[pk]]
    assert changed == [made[1].pk]


def test_a_manual_run_begins_although_an_occurrence_always_waits(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="buffer_one")
    world.travel(60)
    world.execute()
    (running,) = take(world)
    manual = schedules.run_now(schedule.pk, actor=ANA)
    begun = []
    for _ in range(3):
        for _ in range(9):  # each run takes 90 s
            world.travel(10)
            world.execute()
        worker.report_outcomes([(running, Outcome(SUCCEEDED))])
        world.settle()
        world.execute()
        (running,) = take(world)
        begun.append(running.run_id)
    assert manual.pk in begun


@pytest.mark.parametrize(
    ("overlap", "is_due_later"), [("buffer_one", False), ("buffer_one", True), ("cancel_other", False)]
)
def test_the_run_that_has_waited_longest_begins(world: World, overlap: str, is_due_later: bool) -> None:
    """`is_due_later`: the next occurrence is due after the earlier run has ended."""
    schedule = world.schedule(every=10, unit="minute", overlap=overlap)
    world.travel(600)
    world.execute()
    (running,) = take(world)
    world.travel(300)
    manual = schedules.run_now(schedule.pk, actor=ANA)
    world.execute()
    if not is_due_later:
        world.travel(300)
        world.execute()
    worker.report_outcomes([(running, Outcome(SUCCEEDED))])
    world.settle()
    if is_due_later:
        world.travel(300)
    world.execute()
    (begun,) = take(world)
    assert begun.run_id == manual.pk
    worker.report_outcomes([(begun, Outcome(SUCCEEDED))])
    world.go()
    assert world.statuses(schedule)[:2] == ["succeeded", "succeeded"]


def test_an_occurrence_replaces_an_older_manual_run_that_waited_with_it(world: World) -> None:
    schedule = world.schedule(every=10, unit="minute", overlap="cancel_other")
    world.travel(600)
    world.execute()
    (running,) = take(world)
    world.travel(598)
    manual = schedules.run_now(schedule.pk, actor=ANA)
    world.execute()
    world.travel(2)
    world.execute()
    worker.report_outcomes([(running, base.canceled())])
    world.settle()
    world.travel(6)
    world.execute()
    world.travel(6)
    world.go()
    assert Run.objects.get(pk=manual.pk).status == "cancelled"
    assert world.statuses(schedule)[:2] == ["cancelled", "succeeded"]


def test_the_next_run_begins_after_the_one_before_it_was_canceled(world: World) -> None:
    schedule = world.schedule(every=1, unit="day", overlap="buffer_one")
    world.travel(86_400)
    world.execute()
    first, second = (schedules.run_now(schedule.pk, actor=ANA) for _ in range(2))
    world.execute()
    world.work()
    world.settle()
    actions.cancel_run(first.pk, actor=ANA)
    world.execute()
    assert Run.objects.get(pk=second.pk).status == "in_progress"


# --- Cancel a running run
# -----------------------------------------------------------------------------------------


def running(world: World, **fields: Any) -> tuple[Schedule, Assignment]:
    schedule = world.schedule(trigger_at=clock.now(), **fields)
    world.execute()
    (assignment,) = take(world)
    return schedule, assignment


def test_a_running_run_ends_canceled_once_its_worker_stops(world: World) -> None:
    schedule, assignment = running(world)
    run = actions.cancel_run(assignment.run_id, actor=ANA, note="wrong payload")
    assert (run.status, run.cancel_requested_at is not None) == ("running", True)
    assert actions.cancel_run(run.pk, actor=ANA).cancel_requested_at == run.cancel_requested_at
    requested = Event.objects.get(kind="run.cancel_requested", subject_id=run.pk)
    assert (requested.actor_label, requested.data["reason"]) == (ANA.label, "wrong payload")
    worker.report_outcomes([(assignment, base.canceled())])
    world.go()
    assert world.statuses(schedule) == ["cancelled"]
    assert world.again(schedule).failures == 0
    with pytest.raises(NotInThisStatus):
        actions.cancel_run(run.pk, actor=ANA)


@pytest.mark.parametrize(
    ("outcome", "status"), [(Outcome(SUCCEEDED, {"x": 1}), "succeeded"), (Outcome(FAILED, error="x"), "cancelled")]
)
def test_a_result_after_the_request_counts_and_is_not_retried(world: World, outcome: Outcome, status: str) -> None:
    schedule, assignment = running(world)
    actions.cancel_run(assignment.run_id, actor=ANA)
    worker.report_outcomes([(assignment, outcome)])
    world.go()
    assert world.statuses(schedule) == [status]
    assert world.run(schedule).result == outcome.result


def test_canceled_run_of_a_dead_worker_is_not_handed_out_again(world: World) -> None:
    schedule, assignment = running(world)
    actions.cancel_run(assignment.run_id, actor=ANA)
    world.travel(91)
    world.reconcile()
    world.go()
    assert world.statuses(schedule) == ["cancelled"]
    assert world.note.done == []


@pytest.mark.parametrize("how", ["returned", "lapsed"])
def test_a_canceled_run_that_its_worker_did_not_end_frees_the_run_that_waits(world: World, how: str) -> None:
    schedule = world.schedule(every=1, unit="day", overlap="buffer_one")
    world.travel(86_400)
    world.execute()
    given = take(world)
    world.travel(86_400)
    world.execute()
    actions.cancel_run(world.run(schedule, 1).pk, actor=ANA)
    if how == "returned":
        assert worker.return_runs(given, "It ran out of time.") == 0
    else:
        world.travel(91)
        world.execute()  # the waiting run is deferred again
        assert world.run(schedule, 2).due_at > clock.now()
        world.reconcile()
    world.go()
    assert world.statuses(schedule) == ["cancelled", "succeeded", "scheduled"]


@pytest.mark.usefixtures("polling")
def test_a_run_canceled_before_its_worker_reaches_it_is_not_begun(world: World) -> None:
    first = world.schedule("first", trigger_at=clock.now())
    second = world.schedule("second", trigger_at=clock.now())
    world.execute()

    class Canceling(NoteKind):
        def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome]]:
            for place, done in enumerate(super().work(given, keep)):
                if not place:
                    actions.cancel_run(world.run(second).pk, actor=ANA)
                yield done

    with noting(Canceling()) as note:
        world.go()
    assert (world.statuses(first), world.statuses(second)) == (["succeeded"], ["cancelled"])
    assert len(note.done) == 1


def test_a_run_canceled_before_the_first_one_is_begun_is_not_begun(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()

    class Late(NoteKind):
        def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome]]:
            actions.cancel_run(given[0].run_id, actor=ANA)
            return super().work(given, keep)

    with noting(Late()) as note:
        world.go()
    assert (world.statuses(schedule), note.done) == (["cancelled"], [])


@pytest.mark.usefixtures("polling")
@pytest.mark.parametrize("error", [OperationalError("failover"), InterfaceError("closed"), read_only_error()])
def test_an_unavailable_database_does_not_stop_requests(world: World, error: Exception) -> None:
    _, assignment = running(world)
    answers: list[set[int] | Exception] = [set(), error, {assignment.run_id}, error]

    def find(run_ids: Sequence[int]) -> set[int]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    keep = LeaseCheck([assignment], lambda left: set(), find, 60)
    assert keep(assignment)
    found = [keep.is_canceled(assignment) for _ in range(3)]
    assert found == [False, True, True], "the last answer counts while the database is unavailable"
    assert answers == []


@pytest.mark.usefixtures("polling")
def test_python_work_stops_when_it_is_asked_to(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()

    class Patient(NoteKind):
        def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome]]:
            for assignment in given:
                assert keep(assignment)
                assert not keep.is_canceled(assignment)
                actions.cancel_run(assignment.run_id, actor=ANA)
                assert keep.is_canceled(assignment)
                yield assignment, base.canceled()

    with noting(Patient()):
        world.go()
    assert world.statuses(schedule) == ["cancelled"]


def test_the_request_of_a_canceled_call_is_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CANCEL_POLL_S", 0.05)
    receiver = Receiver()
    try:
        receiver.hold("held")
        payload = {"url": receiver.url, "body": {"name": "held"}, "timeout_s": 30}
        with noting(http_kind.HttpKind()):  # type: ignore[arg-type]
            held = world.schedule(trigger_at=clock.now(), payload=payload, retry_schedule_s=[1])
            world.execute()
            working = Elsewhere(world.work)
            receiver.count(1)
            actions.cancel_run(world.run(held).pk, actor=ANA)
            working.finish()
            world.go()
    finally:
        receiver.close()
    run = world.run(held)
    assert (run.status, run.error) == ("cancelled", "The request was closed. The receiver may have processed it.")
    assert len(receiver.names) == 1


def test_cancellation_frees_the_run_that_waits(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="buffer_one")
    for _ in range(2):
        world.travel(60)
        world.execute()
    actions.cancel_run(world.run(schedule).pk, actor=ANA)
    world.go()
    assert world.statuses(schedule) == ["cancelled", "succeeded", "scheduled"]


def test_a_running_run_is_canceled_over_the_api(world: World) -> None:
    api = Api(key=factories.api_key(world.organization))
    schedule, assignment = running(world)
    answer = api.post(f"runs/{assignment.run_id}/cancel/", {"note": "wrong"})
    assert answer.status_code == 200, answer.content
    assert (answer.json()["status"], answer.json()["cancel_requested_at"] is not None) == ("running", True)
    worker.report_outcomes([(assignment, base.canceled())])
    world.go()
    assert api.get(f"runs/{assignment.run_id}/").json()["status"] == "cancelled"
    assert api.get(f"schedules/{schedule.pk}/").json()["overlap"] == "allow"
