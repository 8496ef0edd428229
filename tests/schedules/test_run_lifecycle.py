"""The normal path: a schedule, its run, a worker, its outcome, the next run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.schedules.kinds.base import Outcome
from dispatch.schedules.models import Run, RunReport, Schedule
from dispatch.schedules.rules.outcomes import FAILED, REFUSED, SUCCEEDED
from dispatch.schedules.services import actions, executor, worker
from dispatch.schedules.services import schedules as schedule_services
from dispatch.schedules.services.executor import next_due
from dispatch.schedules.services.shards import ShardLeaseManager
from tests.api.client import Api
from tests.harness.schedules import ALL, ANA, World
from tests.schedules.test_overlap import take
from tests.support import factories


def test_a_schedule_runs_at_its_time_once_and_has_ended(world: World) -> None:
    at = clock.now() + timedelta(hours=1)
    schedule = world.schedule(trigger_at=at, payload={"url": "https://example.com/a"})
    world.go()
    assert world.note.done == []
    assert next_due(ALL) == at
    world.travel(3601)
    assert world.execute() == 1
    assert world.run(schedule).status == "in_progress"
    world.work()
    assert world.run(schedule).status == "running"
    world.settle()
    run = world.run(schedule)
    assert run.status == "succeeded"
    assert run.result == {"noted": 1}
    assert run.lease_until is None
    assert [one.payload for one in world.note.done] == [{"url": "https://example.com/a"}]
    assert world.again(schedule).status == "ended"
    assert world.again(schedule).next_at is None
    assert world.told(run) == ["in_progress", "running", "succeeded"]
    assert world.told(schedule) == ["created", "ended"]


def test_each_run_makes_the_next_from_its_trigger_time_when_it_is_taken(world: World) -> None:
    world.travel_to("2026-12-01 08:59")
    schedule = world.schedule(cron="0 9 * * *", time_zone="UTC")
    world.travel(75)  # a little late: the next one is counted from the time, not from now
    world.execute()
    assert [(run.number, run.status) for run in world.runs(schedule)] == [(1, "in_progress"), (2, "scheduled")]
    assert world.run(schedule, 2).trigger_at == world.at("2026-12-02 09:00")
    world.go()
    assert world.again(schedule).next_at == world.at("2026-12-02 09:00")


def test_a_number_of_occurrences_ends_it(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour", max_occurrences=3)
    for _ in range(5):
        world.travel(3600)
        world.go()
    assert world.statuses(schedule) == ["succeeded"] * 3
    assert world.again(schedule).status == "ended"


def test_an_end_ends_it(world: World) -> None:
    world.travel_to("2026-12-01 00:00")
    schedule = world.schedule(cron="0 9 * * *", time_zone="UTC", ends_at=world.at("2026-12-03 09:00"))
    world.go_until("2026-12-06 00:00", step_s=3600)
    assert world.note.times == [world.at(f"2026-12-0{day} 09:00") for day in (1, 2, 3)]
    assert world.again(schedule).status == "ended"


def test_a_failed_run_is_retried_by_its_rule_and_then_failed_for_good(world: World) -> None:
    schedule = world.schedule(every=1, unit="day", retry_schedule_s=[60, 300])
    world.note.answers = [Outcome(FAILED, error="no answer")] * 3
    world.travel(86_401)
    world.go()
    run = world.run(schedule)
    assert (run.status, run.attempt, run.error) == ("retrying", 2, "no answer")
    world.travel(20)
    world.go()
    assert len(world.note.done) == 1
    world.travel(41)
    world.go()
    assert (world.run(schedule).status, world.run(schedule).attempt) == ("retrying", 3)
    world.travel(301)
    world.go()
    assert world.run(schedule).status == "failed"
    assert [one.attempt for one in world.note.done] == [1, 2, 3]
    assert len({one.idempotency_key for one in world.note.done}) == 1
    assert world.told(run) == [
        "in_progress", "running", "retrying", "in_progress", "running", "retrying", "in_progress", "running",
        "failed",
    ]  # fmt: skip
    assert RunReport.objects.filter(run=run).count() == 3


def test_rejected_run_is_not_retried(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    world.note.answers = [Outcome(REFUSED, error="no such service type")]
    world.travel(86_401)
    world.go()
    assert world.run(schedule).status == "failed"
    assert world.run(schedule).attempt == 1


def test_a_receiver_that_asks_for_time_gets_it(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now(), retry_schedule_s=[10])
    world.note.answers = [Outcome(FAILED, error="busy", again_in_s=500)]
    world.go()
    wait = world.run(schedule).due_at - clock.now()
    assert timedelta(seconds=100) < wait <= timedelta(seconds=500)


def test_failing_schedule_alerts_once_and_reports_recovery(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour", retry_schedule_s=[])
    world.note.answers = [Outcome(FAILED, error="down")] * 2
    for _ in range(3):
        world.travel(3600)
        world.go()
    assert world.statuses(schedule)[:3] == ["failed", "failed", "succeeded"]
    assert world.told(schedule) == ["created", "failing", "recovered"]
    assert world.again(schedule).failures == 0


def test_runs_of_one_kind_travel_in_chunks_and_end_each_by_itself(world: World, settings: object) -> None:
    settings.SCHEDULE_CHUNK_SIZE = 4  # type: ignore[attr-defined]
    schedules = [world.schedule(f"S{n}", trigger_at=clock.now(), retry_schedule_s=[]) for n in range(10)]
    world.note.answers = [Outcome(FAILED, error="x")]
    world.execute()
    messages = world.messages()
    assert sorted(len(message.args[1]) for message in messages) == [2, 4, 4]
    for message in messages:
        message.deliver()
    world.settle()
    found = sorted(run.status for schedule in schedules for run in world.runs(schedule))
    assert found == ["failed"] + ["succeeded"] * 9


def test_the_executor_sleeps_until_the_next_trigger_time(
    world: World, settings: object, monkeypatch: object
) -> None:
    keeper = ShardLeaseManager("test")
    monkeypatch.setattr(executor, "keeper", keeper)  # type: ignore[attr-defined]
    assert executor.run_executor_step() is None  # it holds no shard yet
    keeper.step()
    assert executor.run_executor_step() is None
    settings.SCHEDULE_POLL_INTERVAL_S = 900.0  # type: ignore[attr-defined]
    world.schedule(trigger_at=clock.now() + timedelta(seconds=300))
    wish = executor.run_executor_step()
    assert wish is not None
    assert 0 < wish <= 300
    world.schedule(trigger_at=clock.now() - timedelta(seconds=1))
    assert executor.run_executor_step() == 0.0
    assert Run.objects.filter(status="in_progress").count() == 1


def test_a_batch_takes_the_longest_due_first_over_all_shards(world: World) -> None:
    now = clock.now()
    late = [world.schedule(f"S{n}", trigger_at=now - timedelta(seconds=n)) for n in range(40)]
    from dispatch.schedules.services.executor import claim_due_runs

    assert claim_due_runs(ALL, limit=10).taken == 10
    taken = set(Run.objects.filter(status="in_progress").values_list("schedule_id", flat=True))
    assert taken == {schedule.pk for schedule in late[30:]}


def test_a_payload_changed_before_the_run_counts(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now() + timedelta(seconds=30))
    schedule_services.change_schedule(schedule.pk, {"payload": {"url": "https://example.com/new"}}, actor=ANA)
    world.travel(31)
    world.go()
    assert world.note.done[0].payload == {"url": "https://example.com/new"}
    assert Schedule.objects.get().version == 2


def test_unreadable_schedule_stops_no_other(world: World) -> None:
    world.travel_to("2027-03-01 09:30")
    broken = world.schedule("broken", cron="0 * * * *")
    well = world.schedule("well", cron="0 * * * *")
    Schedule.objects.filter(pk=broken.pk).update(time_zone="Mars/Olympus")
    world.travel(3601)
    world.go()
    assert world.statuses(well)[0] == "succeeded"
    assert world.statuses(broken) == ["scheduled"]
    Schedule.objects.filter(pk=broken.pk).update(time_zone="UTC")
    world.travel(61)
    world.go()
    assert world.statuses(broken) == ["succeeded", "scheduled"]


# --- Retries by a user -------------------------------------------------------------------------------------------


def with_failed_runs(world: World, count: int, overlap: str) -> Schedule:
    """Return a schedule whose first runs have failed for good, and whose next one is running."""
    schedule = world.schedule(every=10, unit="minute", overlap=overlap, retry_schedule_s=[])
    for _ in range(count):
        world.note.answers = [Outcome(FAILED, error="x")]
        world.travel(600)
        world.go()
    assert world.statuses(schedule)[:count] == ["failed"] * count
    world.travel(600)
    world.execute()
    return schedule


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_other"])
def test_a_retried_run_waits_for_the_run_that_has_not_ended(world: World, overlap: str) -> None:
    schedule = with_failed_runs(world, 1, overlap)
    (running,) = take(world)
    run = actions.retry_run(world.run(schedule).pk, actor=ANA)
    world.execute()
    world.travel(61)
    world.execute()
    assert world.statuses(schedule) == ["retrying", "running", "scheduled"]
    run.refresh_from_db()
    assert (run.waiting_for, world.run(schedule, 2).cancel_requested_at) == ("earlier", None)
    worker.report_outcomes([(running, Outcome(SUCCEEDED))])
    world.settle()
    world.execute()
    assert world.statuses(schedule) == ["in_progress", "succeeded", "scheduled"]
    world.go()
    assert world.statuses(schedule) == ["succeeded", "succeeded", "scheduled"]


def test_retried_runs_run_one_after_another(world: World) -> None:
    schedule = with_failed_runs(world, 3, "skip")
    world.go()
    for number in (3, 1, 2):
        actions.retry_run(world.run(schedule, number).pk, actor=ANA)
    for number in (1, 2, 3):
        world.execute()
        (assignment,) = take(world)
        assert assignment.number == number
        worker.report_outcomes([(assignment, Outcome(SUCCEEDED))])
        world.settle()
    assert world.statuses(schedule)[:4] == ["succeeded"] * 4


def test_a_retried_run_that_waits_is_canceled_alone(world: World) -> None:
    schedule = with_failed_runs(world, 2, "cancel_other")
    (running,) = take(world)
    for number in (1, 2):
        actions.retry_run(world.run(schedule, number).pk, actor=ANA)
    world.execute()
    actions.cancel_run(world.run(schedule, 1).pk, actor=ANA)
    worker.report_outcomes([(running, Outcome(SUCCEEDED))])
    world.go()
    assert world.statuses(schedule)[:3] == ["cancelled", "succeeded", "succeeded"]


def test_a_retried_run_runs_beside_others_if_its_schedule_allows_it(world: World) -> None:
    schedule = with_failed_runs(world, 1, "allow")
    assert actions.retry_run(world.run(schedule).pk, actor=ANA).waiting_for == ""
    world.execute()
    assert world.statuses(schedule)[:2] == ["in_progress", "in_progress"]
    world.go()


# --- Many manual runs --------------------------------------------------------------------------------------------


def test_a_schedule_has_a_limited_number_of_waiting_manual_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_services, "MAX_WAITING", 4)
    api = Api(key=factories.api_key(world.organization))
    schedule = world.schedule(every=1, unit="hour", overlap="buffer_one", missed="skip")
    address, since = f"schedules/{schedule.pk}/", clock.now()
    world.travel(3 * 3600)
    world.execute()
    world.messages()
    given = {"since": since.isoformat(), "until": clock.now().isoformat()}
    assert api.post(f"{address}backfill/", given).status_code == 202
    world.execute()
    assert Run.objects.filter(schedule=schedule, number=None, status="scheduled").count() == 3
    refused = [api.post(f"{address}backfill/", given)]
    assert api.post(f"{address}run-now/").status_code == 202
    refused.append(api.post(f"{address}run-now/"))
    assert [(answer.status_code, answer.json()["errors"][0]["code"]) for answer in refused] == [
        (409, "too_many")
    ] * 2
    assert Run.objects.filter(schedule=schedule, number=None).count() == 4
