"""A receiver that keeps deferring is shown and reported, and does not defer a message forever."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.outbox import http_delivery
from dispatch.outbox.metrics import deferring
from dispatch.outbox.models import Endpoint, Message, Target
from dispatch.outbox.rules import responses
from dispatch.outbox.services import attempt_results, attempts, endpoints, target_health
from dispatch.outbox.services.attempts import DeliveryAttempt
from dispatch.outbox.services.endpoints import health_of
from notifications.loops import reader
from notifications.models import Notification
from tests.core.horizon import all_readable
from tests.harness.outbox import World
from tests.support import factories

HOUR = 3600.0


def attempt(world: World, message_id: int) -> str:
    """Make one attempt for the message; return its status afterwards."""
    early_s = (world.message(message_id).due_at - clock.now()).total_seconds()
    world.travel(max(early_s, 0.0) + 0.1)
    Target.objects.update(open_until=None, failures=0)  # the circuit is not the subject here
    world.poll()
    (call,), _ = attempts.start_attempts([(message_id, world.message(message_id).epoch)])
    assert isinstance(call, DeliveryAttempt)

    async def deliver() -> attempt_results.AttemptResult:
        try:
            return await http_delivery.deliver_message(call)
        finally:
            await http_delivery.client.close()

    attempt_results.finish_attempts([asyncio.run(deliver())])
    return world.status(message_id)


def fresh(endpoint: Endpoint) -> Endpoint:
    return Endpoint.objects.select_related("target").get(pk=endpoint.pk)


@pytest.mark.parametrize(("status", "body"), [(429, ""), (200, '{"ack": false}')])
def test_a_message_deferred_for_a_day_fails(world: World, status: int, body: str) -> None:
    # Contract 7
    erp = world.endpoint(retry_schedule_s=[60])
    world.receiver.answer("a", status, body)
    message = world.send_one(erp, "a")
    assert attempt(world, message) == "PENDING"
    world.travel(23 * HOUR)
    assert attempt(world, message) == "PENDING"
    assert world.message(message).attempts == 0
    world.travel(1 * HOUR)
    assert attempt(world, message) == "PENDING"
    assert world.message(message).attempts == 1
    assert attempt(world, message) == "ERROR"
    assert "too long" in world.message(message).last_error
    world.act("retry", message)
    assert attempt(world, message) == "PENDING"
    assert world.message(message).attempts == 0


def test_a_weekend_in_which_the_endpoint_is_paused_is_no_deferral(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[60])
    world.receiver.answer("a", 429, times=3)
    message = world.send_one(erp, "a")
    attempt(world, message)
    target_health.pause_endpoint(erp.pk, "Until Monday", actor=SYSTEM)
    world.travel(60 * HOUR)
    target_health.resume_endpoint(erp.pk, actor=SYSTEM)
    assert attempt(world, message) == "PENDING"
    assert world.message(message).attempts == 0
    world.travel(23 * HOUR)
    attempt(world, message)
    assert world.message(message).attempts == 0
    assert attempt(world, message) == "COMPLETED"


@pytest.mark.parametrize(
    ("error_class", "counts"),
    [(responses.LOOKUP, False), (responses.TOKEN_PENDING, True), ("too_many_requests", True)],
)
def test_a_wait_for_a_lookup_is_no_deferral_by_the_receiver(world: World, error_class: str, counts: bool) -> None:
    message = world.send_one(world.endpoint(), "a")
    world.poll()
    (call,), _ = attempts.start_attempts([(message, 1)])
    assert isinstance(call, DeliveryAttempt)
    Message.objects.update(lapses=1)
    verdict, now = responses.Verdict(responses.DEFERRED, 5.0, error_class, "Later."), clock.now()
    attempt_results.finish_attempts([attempt_results.AttemptResult(call, verdict, now, now, 0.0)])
    assert world.status(message) == "PENDING"
    assert (world.message(message).deferred_since is not None) == counts
    assert world.message(message).lapses == 0, "an attempt that ended is no lapse"


def test_an_endpoint_that_only_defers_is_shown_and_reported_once(world: World) -> None:
    boss = factories.admin(world.organization, "Boss")
    erp = world.endpoint()
    world.receiver.answer("a", 429, times=4)
    message = world.send_one(erp, "a")
    assert attempt(world, message) == "PENDING"
    assert health_of(fresh(erp)).state == "deferring"
    assert not Event.objects.filter(kind="endpoint.deferring").exists()
    for _ in range(3):
        world.travel(HOUR)
        attempt(world, message)
    assert Event.objects.filter(kind="endpoint.deferring", subject_id=erp.pk).count() == 1
    ((_, seconds),) = deferring()
    assert 3 * HOUR <= seconds < 4 * HOUR
    all_readable()
    reader.step()
    notice = Notification.objects.get(user=boss, kind="endpoint.deferring")
    assert notice.title == "Endpoint ERP accepts no messages at the moment"
    assert notice.settled_at is None

    assert attempt(world, message) == "COMPLETED"
    assert health_of(fresh(erp)).state == "healthy"
    assert deferring() == [((), 0.0)]
    all_readable()
    reader.step()
    notice.refresh_from_db()
    assert notice.settled_at is not None


@pytest.mark.parametrize("what", ["another URL", "no attempt for two weeks"])
def test_report_of_deferrals_ends_with_the_next_delivery(world: World, what: str) -> None:
    erp = world.endpoint(mode="IMMEDIATE")
    world.receiver.answer("a", 429)
    message = world.send_one(erp, "a")
    for _ in range(4):
        attempt(world, message)
        world.travel(HOUR)
    if what == "another URL":
        endpoints.change_endpoint(erp.pk, {"url": world.receiver.url + "/new"}, actor=SYSTEM)
        assert health_of(fresh(erp)).state == "healthy"
    else:
        world.travel(14 * 24 * HOUR)
    attempt(world, message)  # deferred: another series, of the same report
    kinds = Event.objects.filter(subject_type="endpoint", subject_id=erp.pk).exclude(kind="endpoint.changed")
    assert list(kinds.values_list("kind", flat=True)) == ["endpoint.deferring"]
    attempt(world, world.send_one(erp, "b"))
    assert list(kinds.order_by("id").values_list("kind", flat=True)) == [
        "endpoint.deferring",
        "endpoint.accepting",
    ]
    attempt(world, world.send_one(erp, "c"))
    assert kinds.count() == 2


def test_delivery_to_another_url_ends_the_report_without_a_deferral_there(world: World) -> None:
    erp = world.endpoint()
    world.receiver.answer("a", 429, times=4)
    message = world.send_one(erp, "a")
    for _ in range(4):
        attempt(world, message)
        world.travel(HOUR)
    endpoints.change_endpoint(erp.pk, {"url": world.receiver.url + "/new"}, actor=SYSTEM)
    assert attempt(world, message) == "COMPLETED"
    assert Event.objects.filter(kind="endpoint.accepting", subject_id=erp.pk).count() == 1


def test_deferrals_far_apart_are_not_reported(world: World) -> None:
    erp = world.endpoint()
    for name in ("a", "b"):
        world.receiver.answer(name, 429)
        message = world.send_one(erp, name, mode="IMMEDIATE")
        attempt(world, message)
        world.act("cancel", message)
        world.travel(14 * 24 * HOUR)
    assert not Event.objects.filter(kind="endpoint.deferring").exists()
