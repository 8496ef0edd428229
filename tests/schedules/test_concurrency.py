"""Concurrency limits: at most N runs with a key at once, and the others wait in order."""

from __future__ import annotations

import random

import pytest
from django.db import IntegrityError, transaction

from dispatch.core import clock, events, fault_injection
from dispatch.core.models import Event
from dispatch.schedules import metrics
from dispatch.schedules.kinds.base import Assignment, Outcome
from dispatch.schedules.models import ConcurrencyLimit, Run
from dispatch.schedules.rules.outcomes import FAILED, REFUSED, SUCCEEDED
from dispatch.schedules.services import actions, backfill, concurrency_limits, reconciliation, schedules, worker
from dispatch.schedules.services.executor import claim_due_runs
from tests.core.threads import Elsewhere
from tests.harness.schedules import ALL, ANA, World
from tests.schedules.concurrency import due, held, limited, limits_hold, report, run_of, states, take, two
from tests.support.row_locks import ends_while_held

__all__ = ["limits_hold", "two"]


# --- Slots and order
# ---------------------------------------------------------------------------------------------------


def test_at_most_n_run_at_once_and_the_others_wait_in_order(world: World, two: ConcurrencyLimit) -> None:
    made = due(world, 5, two)
    world.execute()
    assert states(made) == ["in_progress", "in_progress", "waiting", "waiting", "waiting"]
    assert not Run.objects.filter(waiting_for="concurrency").exclude(due_at=None).exists()
    assert claim_due_runs(ALL).found == 0
    first, second = take(world)
    report(world, second)
    assert states(made) == ["running", "succeeded", "in_progress", "waiting", "waiting"]
    report(world, first, *take(world))
    assert states(made) == ["succeeded", "succeeded", "succeeded", "in_progress", "in_progress"]
    world.go()
    assert states(made) == ["succeeded"] * 5


def test_the_longest_wait_for_a_slot_is_a_metric(world: World, two: ConcurrencyLimit) -> None:
    assert metrics.oldest_slot_wait() == [((), 0.0)]
    due(world, 4, two)
    claim_due_runs(ALL)
    clock.travel(3600)
    ((_, waited),) = metrics.oldest_slot_wait()
    third = Run.objects.filter(waiting_for="concurrency").earliest("waits_since")
    assert third.waits_since is not None
    assert waited == pytest.approx((clock.now() - third.waits_since).total_seconds(), abs=60)
    assert waited > 3600


def test_the_constraint_refuses_a_second_holder_of_a_slot(world: World, two: ConcurrencyLimit) -> None:
    made = due(world, 2, two)
    world.execute()
    with pytest.raises(IntegrityError, match="one_run_per_concurrency_slot"), transaction.atomic():
        Run.objects.filter(schedule=made[1]).update(concurrency_slot=run_of(made[0]).concurrency_slot)


def test_runs_that_waited_begin_before_runs_that_are_due_now(world: World, two: ConcurrencyLimit) -> None:
    made = due(world, 3, two)
    world.execute()
    started = take(world)
    made += due(world, 2, two)
    worker.report_outcomes([(started[0], Outcome(SUCCEEDED, {}))])
    world.execute()  # before the status worker: the newcomers find no slot
    world.settle()
    assert states(made) == ["succeeded", "running", "in_progress", "waiting", "waiting"]


def test_greedy_key_delays_neither_other_keys_nor_runs_without_one(world: World, two: ConcurrencyLimit) -> None:
    other = limited(world, 1, "invoices")
    greedy = due(world, 40, two)
    others = due(world, 2, other) + due(world, 2, None)
    while claim_due_runs(ALL, limit=10).found:
        pass
    assert states(others) == ["in_progress", "waiting", "in_progress", "in_progress"]
    assert states(greedy).count("in_progress") == 2
    report(world, *take(world))
    assert states(others) == ["succeeded", "in_progress", "succeeded", "succeeded"]


def test_organizations_share_no_limit(world: World, two: ConcurrencyLimit) -> None:
    elsewhere = World()
    theirs = limited(elsewhere, 1)
    mine, others = due(world, 3, two), due(elsewhere, 2, theirs)
    world.execute()
    assert states(mine) == ["in_progress", "in_progress", "waiting"]
    assert states(others) == ["in_progress", "waiting"]


def test_higher_limit_admits_waiting_runs_at_once_and_lower_one_none(world: World, two: ConcurrencyLimit) -> None:
    made = due(world, 6, two)
    world.execute()
    concurrency_limits.change_limit(two.pk, 4, actor=ANA)
    assert states(made) == ["in_progress"] * 4 + ["waiting"] * 2
    concurrency_limits.change_limit(two.pk, 4, actor=ANA)
    started = take(world)
    concurrency_limits.change_limit(two.pk, 1, actor=ANA)
    report(world, *started[:3])
    assert states(made)[3:] == ["running", "waiting", "waiting"]
    report(world, started[3])
    assert states(made)[3:] == ["succeeded", "in_progress", "waiting"]
    told = Event.objects.filter(kind="concurrencylimit.changed").values_list("data__max_runs", flat=True)
    assert list(told.order_by("id")) == [4, 1]


# --- Retries, dead workers and lost admissions
# ---------------------------------------------------------------------------------------------------


def test_run_that_waits_for_its_retry_holds_no_slot_and_queues_again(world: World) -> None:
    one = limited(world, 1)
    made = due(world, 3, one, retry_schedule_s=[30])
    world.execute()
    report(world, *take(world), outcome=FAILED)
    assert states(made) == ["retrying", "in_progress", "waiting"]
    world.travel(31)
    world.execute()
    assert states(made) == ["waiting", "in_progress", "waiting"]
    report(world, *take(world))
    assert states(made) == ["waiting", "succeeded", "in_progress"]  # it was due before the retry
    world.go()
    assert states(made) == ["succeeded"] * 3
    assert run_of(made[0]).attempt == 2


def test_run_of_a_dead_worker_keeps_its_slot_until_it_ends(world: World) -> None:
    one = limited(world, 1)
    made = due(world, 2, one, retry_schedule_s=[])
    world.execute()
    take(world)
    world.travel(100)
    world.reconcile()
    assert states(made) == ["in_progress", "waiting"]  # handed out once more
    take(world)
    world.travel(100)
    world.reconcile()
    assert states(made) == ["failed", "in_progress"]


def test_returned_run_keeps_its_slot(world: World) -> None:
    one = limited(world, 1)
    made = due(world, 2, one)
    world.execute()
    worker.return_runs(take(world), "Its worker ran out of time.")
    assert states(made) == ["in_progress", "waiting"]
    world.go()
    assert states(made) == ["succeeded"] * 2


@pytest.mark.parametrize("point", ["schedules.admit.before_commit", "schedules.apply.before_commit"])
def test_crash_while_a_slot_is_passed_on_loses_nothing(world: World, two: ConcurrencyLimit, point: str) -> None:
    class Killed(Exception):
        pass

    def die() -> None:
        raise Killed

    made = due(world, 3, two)
    world.execute()
    started = take(world)
    worker.report_outcomes([(started[0], Outcome(SUCCEEDED, {}))])
    with fault_injection.arm_crash_point(point, die), pytest.raises(Killed):
        world.settle()
    assert states(made) == ["running", "running", "waiting"]
    world.travel(6)
    world.reconcile()
    assert states(made) == ["succeeded", "running", "in_progress"]


def test_slot_that_nobody_passed_on_is_found_by_the_reconciler(world: World) -> None:
    one = limited(world, 1)
    made = due(world, 2, one)
    world.execute()
    # As a process of an earlier version does, which knows no limits.
    run = take(world)[0].run_id
    Run.objects.filter(pk=run).update(status="failed", ended_at=clock.now(), lease_until=None)
    events.append(world.organization.pk, "run.failed", run_of(made[0]).pk)
    assert reconciliation.reconcile_runs() == 1
    assert states(made) == ["failed", "in_progress"]
    assert reconciliation.reconcile_runs() == 0


def test_locked_limit_delays_only_runs_with_its_key(world: World, two: ConcurrencyLimit) -> None:
    begun, others = due(world, 1, two), due(world, 1, None)
    world.execute()
    started = take(world)
    worker.report_outcomes([(assignment, Outcome(SUCCEEDED, {})) for assignment in started])
    manual = schedules.run_now(world.schedule(every=1, unit="day", concurrency_limit=two).pk, actor=ANA)
    made, others = due(world, 2, two), others + due(world, 1, None)

    def step() -> None:
        world.settle()
        world.execute()
        reconciliation.reconcile_runs()

    ends_while_held([two], step)
    assert states(begun) == ["succeeded"]
    assert states(others) == ["succeeded", "in_progress"]
    assert states(made) == ["waiting", "waiting"]
    manual.refresh_from_db()
    assert manual.status == "scheduled"
    reconciliation.reconcile_runs()
    assert states(made) == ["in_progress", "in_progress"]
    world.go()
    manual.refresh_from_db()
    assert manual.status == "succeeded"


def test_cancellation_locks_the_runs_that_it_wakes_before_the_limit(world: World) -> None:
    one = limited(world, 1)
    schedule = world.schedule(every=1, unit="minute", overlap="buffer_one", concurrency_limit=one)
    for _ in range(2):
        world.travel(61)
        world.execute()
    next_run = Run.objects.get(schedule=schedule, waiting_for="earlier")
    with transaction.atomic():
        Run.objects.select_for_update(of=("self",)).get(pk=next_run.pk)
        canceling = Elsewhere(lambda: actions.cancel_run(world.run(schedule).pk, actor=ANA))
        canceling.wait_for_lock()
        ConcurrencyLimit.objects.select_for_update(nowait=True).get(pk=one.pk)
    canceling.finish()
    assert world.statuses(schedule)[0] == "cancelled"


def test_concurrent_executors_and_workers_never_exceed_the_limit(world: World) -> None:
    three = limited(world, 3)
    made = due(world, 30, three)

    def claim() -> None:
        while claim_due_runs(ALL, limit=5).found:
            pass

    for claiming in [Elsewhere(claim) for _ in range(3)]:
        claiming.finish()
    assert held(three) == 3
    while started := take(world):
        assert held(three) == len(started)
        reports = [
            Elsewhere(lambda run=run: worker.report_outcomes([(run, Outcome(SUCCEEDED, {}))])) for run in started
        ]
        for reporting in reports:
            reporting.finish()
        deliveries = [Elsewhere(message.deliver) for message in world.messages("dispatch-status-queue")]
        for delivering in deliveries:
            delivering.finish()
        assert held(three) <= 3
    assert states(made) == ["succeeded"] * 30


@pytest.mark.parametrize("seed", range(3))
def test_random_steps_keep_the_limit_and_forget_nobody(world: World, seed: int) -> None:
    chance = random.Random(seed)
    limits = [limited(world, 1, "one"), limited(world, 3, "three")]
    made = [due(world, 1, chance.choice([*limits, None]), retry_schedule_s=[5])[0] for _ in range(20)]
    running: list[Assignment] = []
    for _ in range(60):
        match chance.randrange(7):
            case 0:
                world.execute()
            case 1:
                running += take(world)
            case 2 if running:
                outcome = chance.choice([SUCCEEDED, FAILED, REFUSED])
                report(world, running.pop(chance.randrange(len(running))), outcome=outcome)
            case 3 if running:
                worker.return_runs([running.pop()], "Its worker ran out of time.")
            case 4:
                world.travel(chance.choice([1, 10]))
            case 5:
                world.travel(100)
                running.clear()
                world.reconcile()
            case 6:
                place = chance.randrange(2)
                more = limits[place].max_runs + 1
                limits[place] = concurrency_limits.change_limit(limits[place].pk, more, actor=ANA)
        for limit in limits:
            assert held(limit) <= limit.max_runs
    world.travel(100)
    for _ in range(4):
        world.reconcile()
        world.go()
        world.travel(100)
    assert set(states(made)) <= {"succeeded", "failed"}


# --- What people do
# ---------------------------------------------------------------------------------------------------


def test_canceled_run_passes_its_slot_on_and_canceled_waiter_leaves_queue(world: World) -> None:
    one = limited(world, 1)
    made = due(world, 3, one)
    world.execute()
    actions.cancel_run(run_of(made[1]).pk, actor=ANA)
    actions.cancel_run(run_of(made[0]).pk, actor=ANA)
    assert states(made) == ["cancelled", "cancelled", "in_progress"]


def test_running_run_keeps_its_slot_until_its_cancellation_has_ended(world: World) -> None:
    one = limited(world, 1)
    made = due(world, 2, one)
    world.execute()
    (started,) = take(world)
    actions.cancel_run(started.run_id, actor=ANA)
    assert states(made) == ["running", "waiting"]
    worker.return_runs([started], "Its worker ran out of time.")
    assert states(made) == ["cancelled", "in_progress"]


def test_waiting_run_of_a_paused_schedule_does_not_begin(world: World) -> None:
    one = limited(world, 1)
    made = due(world, 3, one)
    schedule = world.schedule(every=1, unit="minute", concurrency_limit=one)
    world.execute()
    world.travel(61)
    world.execute()
    assert world.statuses(schedule)[0] == "retrying"
    schedules.pause_schedule(schedule.pk, actor=ANA)
    world.go()
    assert states(made) == ["succeeded"] * 3
    assert world.run(schedule, 1).status == "retrying"
    schedules.resume_schedule(schedule.pk, actor=ANA)
    world.go()
    assert world.run(schedule, 1).status == "succeeded"


def test_manual_run_waits_and_begins_although_its_schedule_is_paused(world: World) -> None:
    one = limited(world, 1)
    due(world, 1, one)
    schedule = world.schedule(every=1, unit="day", concurrency_limit=one)
    world.execute()
    run = schedules.run_now(schedule.pk, actor=ANA)
    world.execute()
    schedules.pause_schedule(schedule.pk, actor=ANA)
    schedules.resume_schedule(schedule.pk, actor=ANA)
    schedules.pause_schedule(schedule.pk, actor=ANA)
    run.refresh_from_db()
    assert (run.waiting_for, run.due_at) == ("concurrency", None)
    world.go()
    run.refresh_from_db()
    assert run.status == "succeeded"


def test_deleted_schedule_leaves_the_queue(world: World) -> None:
    one = limited(world, 1)
    made = due(world, 3, one)
    world.execute()
    schedules.delete_schedule(made[1].pk, actor=ANA)
    schedules.delete_schedule(made[0].pk, actor=ANA)
    assert states(made) == ["cancelled", "cancelled", "in_progress"]


def test_another_key_or_none_moves_waiting_runs(world: World) -> None:
    one, other = limited(world, 1), limited(world, 1, "invoices")
    made = due(world, 4, one)
    world.execute()
    schedules.change_schedule(made[1].pk, {"concurrency_limit": other}, actor=ANA)
    schedules.change_schedule(made[2].pk, {"concurrency_limit": None}, actor=ANA)
    world.execute()
    assert states(made) == ["in_progress", "in_progress", "in_progress", "waiting"]
    assert run_of(made[1]).concurrency_limit_id == other.pk
    assert run_of(made[2]).concurrency_limit_id is None


def test_overlap_policies_count_a_waiting_run_as_an_earlier_one(world: World) -> None:
    one = limited(world, 1)
    due(world, 1, one)
    world.execute()
    skips = world.schedule("skips", every=1, unit="minute", overlap="skip", concurrency_limit=one)
    allows = world.schedule("allows", every=1, unit="minute", overlap="allow", concurrency_limit=one)
    cancels = world.schedule("cancels", every=1, unit="minute", overlap="cancel_other", concurrency_limit=one)
    for _ in range(2):
        world.travel(61)
        world.execute()
    assert world.statuses(skips) == ["retrying", "skipped", "scheduled"]
    assert world.statuses(allows) == ["retrying", "retrying", "scheduled"]
    assert world.statuses(cancels) == ["cancelled", "retrying", "scheduled"]


def test_run_that_replaces_another_gets_its_slot(world: World) -> None:
    one = limited(world, 1)
    schedule = world.schedule(every=1, unit="minute", overlap="cancel_other", concurrency_limit=one)
    for _ in range(2):
        world.travel(61)
        world.execute()
    assert world.statuses(schedule) == ["cancelled", "in_progress", "scheduled"]


def test_backfill_waits_for_the_schedules_key(world: World) -> None:
    one = limited(world, 1)
    schedule = world.schedule(every=1, unit="minute", concurrency_limit=one, missed="skip", missed_after_s=1)
    since = clock.now()
    world.travel(200)
    world.execute()
    runs = backfill.run_range(schedule.pk, since, clock.now(), actor=ANA)
    world.execute()
    assert len(runs) == 3
    assert held(one) == 1
    world.go()
    assert [Run.objects.get(pk=run.pk).status for run in runs] == ["succeeded"] * 3
    assert world.note.times == [run.trigger_at for run in runs]
