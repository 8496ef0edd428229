"""Endpoints are disabled only if they fail for days, over several messages, and deliver nothing."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.outbox.models import Endpoint, Target
from dispatch.outbox.rules.responses import DELIVERED, FAILED, PERMANENT, Verdict
from dispatch.outbox.services import attempt_results, attempts, endpoints, target_health
from dispatch.outbox.services.attempt_results import AttemptResult
from dispatch.outbox.services.attempts import DeliveryAttempt
from tests.harness.outbox import World
from tests.support.waiting import wait_until

HOUR = 3600.0
DAY = 24 * HOUR


def begin(world: World, endpoint: Endpoint, name: str = "a") -> DeliveryAttempt:
    """Send an unordered message and start its attempt."""
    message = world.send_one(endpoint, name, mode="IMMEDIATE")
    world.poll()
    (call,), _ = attempts.start_attempts([(message, 1)])
    assert isinstance(call, DeliveryAttempt)
    return call


def end(call: DeliveryAttempt, outcome: str, status: int, *, at: datetime | None = None) -> None:
    moment = at or clock.now()
    verdict = Verdict(outcome, error_class=f"http_{status}", error=f"The receiver answered {status}.")
    attempt_results.finish_attempts([AttemptResult(call, verdict, moment, moment, 0.1, status)])


def fail(world: World, endpoint: Endpoint, status: int = 500, *, name: str = "a") -> None:
    Target.objects.update(open_until=None, failures=0)  # the circuit is not the subject here
    end(begin(world, endpoint, name), PERMANENT if status < 500 else FAILED, status)


def fail_for_days(world: World, endpoint: Endpoint, status: int, days: float = 3.1) -> None:
    """Fail every six hours, each time with a different message."""
    for _ in range(int(days * 4) + 1):
        fail(world, endpoint, status)
        world.travel(6 * HOUR)


@pytest.mark.parametrize("status", [400, 404, 500])
def test_one_failure_does_not_disable_a_quiet_endpoint(world: World, status: int) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    end(begin(world, erp), DELIVERED, 200)
    fail(world, erp, status)
    world.travel(3 * DAY + 60)
    assert target_health.disable_failing() == 0
    world.travel(30 * DAY)
    assert target_health.disable_failing() == 0


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_failing_for_three_days_disables(world: World, status: int) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    fail_for_days(world, erp, status, days=2.5)
    assert target_health.disable_failing() == 0
    fail_for_days(world, erp, status, days=0.8)
    assert target_health.disable_failing() == 1
    erp.refresh_from_db()
    assert "No deliveries" in erp.disabled_reason
    assert Event.objects.filter(kind="endpoint.disabled").count() == 1
    target_health.enable_endpoint(erp.pk, actor=SYSTEM)
    assert target_health.disable_failing() == 0


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_receiver_that_refuses_for_a_moment_gets_its_message(world: World, status: int) -> None:
    erp = world.endpoint(retry_schedule_s=[0])
    world.receiver.answer("a", status, times=1)
    message = world.send_one(erp, "a")
    world.start()
    world.becomes(message, "COMPLETED")
    assert world.receiver.names == ["a", "a"]


def test_gone_disables_at_once_and_keeps_the_message(world: World) -> None:
    erp = world.endpoint()
    world.receiver.answer("a", 410, times=1)
    message = world.send_one(erp, "a")
    world.start()
    wait_until(lambda: Endpoint.objects.filter(disabled_at__isnull=False).exists())
    assert world.status(message) == "PENDING"
    notice = Event.objects.get(kind="endpoint.disabled")
    assert (notice.subject_id, notice.data["reason"]) == (erp.pk, "The receiver answered 410: it is gone.")


def test_gone_from_a_former_url_does_not_disable(world: World) -> None:
    erp = world.endpoint()
    calls = [begin(world, erp, "a"), begin(world, erp, "b")]
    endpoints.change_endpoint(erp.pk, {"url": world.receiver.url + "/new"}, actor=SYSTEM)
    now = clock.now()
    verdict = Verdict(FAILED, error_class="http_410", error="The receiver answered 410.")
    target_health.disable_gone([AttemptResult(call, verdict, now, now, 0.1, 410) for call in calls])
    assert Endpoint.objects.get(pk=erp.pk).disabled_at is None
    call = begin(world, erp, "c")
    target_health.disable_gone([AttemptResult(call, verdict, now, now, 0.1, 410)])
    assert Endpoint.objects.get(pk=erp.pk).disabled_at is not None


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refusals_of_single_messages_never_disable(world: World, status: int) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    fail_for_days(world, erp, status)
    assert target_health.disable_failing() == 0


def test_one_message_alone_never_disables(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[int(6 * HOUR)] * 20)
    message = world.send_one(erp, "a")
    for epoch in range(1, 15):
        Target.objects.update(open_until=None, failures=0)
        world.poll()
        (call,), _ = attempts.start_attempts([(message, epoch)])
        assert isinstance(call, DeliveryAttempt)
        end(call, FAILED, 500)
        world.travel(6 * HOUR)
    assert target_health.disable_failing() == 0


def test_failures_far_apart_never_disable(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    for _ in range(15):
        fail(world, erp)
        world.travel(7 * DAY)
        assert target_health.disable_failing() == 0
    fail(world, erp)
    assert target_health.disable_failing() == 0


def test_failures_that_ended_days_ago_do_not_disable(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    fail_for_days(world, erp, 500)
    world.travel(2 * DAY)
    assert target_health.disable_failing() == 0


def test_a_delivery_in_between_begins_the_count_again(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    fail_for_days(world, erp, 500, days=2.5)
    end(begin(world, erp), DELIVERED, 200)
    fail_for_days(world, erp, 500, days=1)
    assert target_health.disable_failing() == 0


def test_a_delivery_after_a_failure_ends_the_failing(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    well, ill = begin(world, erp, "well"), begin(world, erp, "ill")
    end(ill, FAILED, 500)
    assert Target.objects.get(endpoint=erp).failing_since is not None
    world.travel(1.0)
    end(well, DELIVERED, 200)  # it began before anything failed
    target = Target.objects.get(endpoint=erp)
    assert (target.failing_since, target.failures, target.failed_attempts) == (None, 0, 0)


def test_a_delivery_before_a_failure_does_not_end_the_failing(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    well, ill = begin(world, erp, "well"), begin(world, erp, "ill")
    before = clock.now() - timedelta(seconds=5)
    end(ill, FAILED, 500)
    end(well, DELIVERED, 200, at=before)
    assert Target.objects.get(endpoint=erp).failing_since is not None


def test_a_failure_and_a_delivery_in_one_batch_count_in_their_order(world: World) -> None:
    erp, other = world.endpoint(retry_schedule_s=[]), world.endpoint("other", retry_schedule_s=[])
    now = clock.now()

    def result(call: DeliveryAttempt, outcome: str, after_s: float) -> AttemptResult:
        at = now + timedelta(seconds=after_s)
        return AttemptResult(call, Verdict(outcome), at, at, 0.1, 200)

    calls = [begin(world, erp, "a"), begin(world, erp, "b"), begin(world, other, "c"), begin(world, other, "d")]
    outcomes = [(FAILED, 0.1), (DELIVERED, 0.2), (DELIVERED, 0.1), (FAILED, 0.2)]
    attempt_results.finish_attempts([result(call, *given) for call, given in zip(calls, outcomes, strict=True)])
    assert Target.objects.get(endpoint=erp).failing_since is None
    assert Target.objects.get(endpoint=other).failing_since is not None
