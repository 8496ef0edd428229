"""Contract 15 (docs/guides/outbox.md): processes are killed at any point.

Nothing is lost, at most one extra attempt is made, and the order is kept.
"""

from __future__ import annotations

import itertools

import pytest
from django.db import connection

from dispatch.core import clock, fault_injection
from dispatch.outbox.models import Attempt, Message
from dispatch.outbox.services.intake import NewMessage, accept_messages
from tests.harness.outbox import World
from tests.support.processes import environment, running
from tests.support.waiting import wait_until

ALL = "outbox_poller,outbox_router,outbox_leases,outbox_stale"
# Recovery runs more often than normal, so that the tests need not wait; nothing else is different.
QUICK = {
    "OUTBOX_LEASE_INTERVAL_S": "0.2",
    "OUTBOX_STALE_INTERVAL_S": "0.5",
    "OUTBOX_POLL_INTERVAL_S": "0.5",
    "LEADER_LEASE_S": "2",
    "LEADER_RENEW_S": "0.5",
}
POINTS = [
    "outbox.claim.before_commit",
    "outbox.claim.committed",
    "outbox.publish.before",
    "outbox.publish.after",
    "outbox.start.before_commit",
    "outbox.start.committed",
    "outbox.call.before",
    "during the call",
    "outbox.call.after",
    "outbox.finish.before_commit",
    "outbox.finish.committed",
    "outbox.ack.before",
]


# The suite kills in each state between two commits; the soak at every point.
SUITE = {"outbox.claim.committed", "outbox.publish.after", "during the call", "outbox.call.after",
         "outbox.finish.committed"}  # fmt: skip


@pytest.mark.parametrize(
    "point", [point if point in SUITE else pytest.param(point, marks=pytest.mark.soak) for point in POINTS]
)
def test_kill_at_any_point_loses_nothing_keeps_order_one_extra_attempt(
    world: World, test_environment: dict[str, str], point: str
) -> None:
    # Contract 15
    erp = world.endpoint()
    names = ["a", "b", "c", "d"]
    ids = world.send(erp, *names)
    database = connection.settings_dict["NAME"]
    fault = {} if point == "during the call" else {"DISPATCH_FAULTS": f"{point}=kill"}
    with running("dispatcher", "--only", ALL, env=environment(database, **QUICK, **fault)) as first:
        if point == "during the call":
            world.receiver.hold("a")
            world.receiver.count(1)
            first.kill()
            world.receiver.let_go("a")
        assert first.ends() == -9, first.log()
    calls_before = len(world.receiver.visits)
    # The whole lease is waited out, and the age at which a pointer is stale.
    world.travel(30)
    world.recover()
    assert not Message.objects.filter(lapses__gt=0).exists()
    world.travel(1000)
    with running("dispatcher", "--only", ALL, env=environment(database, **QUICK)) as second:
        wait_until(
            lambda: world.statuses(ids) == ["COMPLETED"] * 4,
            message=lambda: f"{world.statuses(ids)} {[world.told(i) for i in ids]}\n{second.log()}",
        )
    came = world.receiver.names
    assert [name for name, _ in itertools.groupby(came)] == names
    assert len(came) <= len(names) + 1
    assert world.receiver.overlaps() == []
    assert len(came) >= calls_before


def test_a_clean_stop_lets_a_slow_attempt_end(world: World) -> None:
    # Contract 15
    world.receiver.answer("slow", after_s=9)
    message = world.send_one(world.endpoint(), "slow")
    world.start()
    world.receiver.count(1)
    world.stop()
    assert world.status(message) == "COMPLETED"
    assert world.receiver.names == ["slow"]


def test_attempt_that_no_longer_fits_its_lease_is_not_made(world: World) -> None:
    # Contract 15
    erp = world.endpoint(timeout_s=20)
    a, b = world.send(erp, "a", "b")
    stalled: list[bool] = []

    def stall() -> None:
        """Stall the process between the commit and the request, for longer than its lease."""
        if not stalled:
            clock.travel(61)
            stalled.append(True)

    with fault_injection.arm_crash_point("outbox.start.committed", stall):
        world.start()
        wait_until(lambda: stalled)
        world.stop()
    assert world.receiver.names == []
    assert world.status(a) == "PROCESSING"
    world.start()
    world.start_recovery()
    world.travel(6)
    world.receiver.got("a", "b")
    world.all_end()
    assert [x.outcome for x in Attempt.objects.filter(message=a)] == ["lapsed", "delivered"]
    assert world.status(b) == "COMPLETED"


def test_attempt_that_barely_fits_renews_its_lease_first(world: World) -> None:
    # Contract 15
    erp = world.endpoint(timeout_s=20)
    message = world.send_one(erp, "a")
    jumps = iter([50.0])
    with fault_injection.arm_crash_point("outbox.start.committed", lambda: clock.travel(next(jumps, 0.0))):
        world.start()
        found = world.becomes(message, "COMPLETED")
    assert found.calls == 1
    assert world.receiver.names == ["a"]


def test_message_that_keeps_crashing_processes_becomes_an_error(world: World, settings: object) -> None:
    # Contract 15
    settings.OUTBOX_LAPSES = 2  # type: ignore[attr-defined]
    from dispatch.outbox.services import attempts

    erp = world.endpoint()
    killer = world.send_one(erp, "killer")
    for epoch in (1, 2):
        world.poll()
        assert isinstance(attempts.start_attempts([(killer, epoch)])[0][0], attempts.DeliveryAttempt)
        world.travel(61)
        world.recover()
        world.travel(6)
    assert world.status(killer) == "ERROR"
    assert "without a result" in world.message(killer).last_error


def test_lapses_count_in_a_row(world: World, settings: object) -> None:
    # Contract 15
    settings.OUTBOX_LAPSES = 2  # type: ignore[attr-defined]
    from dispatch.outbox.rules.responses import FAILED, Verdict
    from dispatch.outbox.services import attempt_results, attempts

    message = world.send_one(world.endpoint(retry_schedule_s=[0, 0, 0]), "a")
    for epoch in (1, 2, 3):
        world.poll()
        (call,), _ = attempts.start_attempts([(message, epoch)])
        assert isinstance(call, attempts.DeliveryAttempt)
        if epoch == 2:
            now = attempt_results.clock.now()
            result = attempt_results.AttemptResult(call, Verdict(FAILED), now, now, 0.1, 500)
            attempt_results.finish_attempts([result])
            continue
        world.travel(61)
        world.recover()
        world.travel(6)
    assert (world.status(message), world.message(message).lapses) == ("PENDING", 1)


def test_an_intake_that_dies_before_its_commit_leaves_nothing(world: World) -> None:
    erp = world.endpoint()
    with (
        fault_injection.arm_crash_point("outbox.accept.before_commit"),
        pytest.raises(fault_injection.Interrupted),
    ):
        accept_messages(world.organization.pk, [NewMessage(type="t", payload="{}", endpoint=erp)])
    assert not Message.objects.exists()


def test_a_redis_that_lost_its_data_delays_nothing_by_more_than_a_minute(world: World) -> None:
    from dispatch.core.redis import generation
    from tests.conftest import forget_redis

    generation.ensure_generation()
    erp = world.endpoint()
    world.send(erp, "a", "b")
    world.poll()
    forget_redis()
    generation.ensure_generation()
    world.start()
    world.receiver.got("a", "b")
