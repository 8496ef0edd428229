"""What is reported of an open circuit is true, and ends with it."""

from __future__ import annotations

import pytest

from dispatch.core.events import SYSTEM
from dispatch.outbox.metrics import open_circuits
from dispatch.outbox.models import Endpoint, Target
from dispatch.outbox.services import target_health
from dispatch.outbox.services.endpoints import health_of
from tests.harness.outbox import World

WEEK = 7 * 24 * 3600.0


def fail_until_circuit_opens(world: World, endpoint: Endpoint | None) -> int:
    """Send a message that uses all its attempts; return its id."""
    world.receiver.answer("bad", 500)
    message = world.send_one(endpoint, "bad")
    world.start()
    world.becomes(message, "ERROR")
    world.stop()
    assert Target.objects.get().open_until is not None
    return message


def health_words(endpoint: Endpoint) -> str:
    return health_of(Endpoint.objects.select_related("target").get(pk=endpoint.pk)).words


def test_open_circuit_is_not_counted_while_nothing_is_to_be_delivered(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[0, 0, 0, 0])
    message = fail_until_circuit_opens(world, erp)
    assert open_circuits() == [((), 0)]
    world.act("retry", message)
    assert open_circuits() == [((), 1)]
    world.travel(WEEK)  # the message would be a probe
    assert open_circuits() == [((), 1)]
    world.poll()
    assert world.status(message) == "QUEUED"
    assert open_circuits() == [((), 1)]
    world.act("cancel", message)
    assert open_circuits() == [((), 0)]


def test_open_circuit_of_an_origin_is_counted_while_a_message_waits(world: World, settings: object) -> None:
    settings.OUTBOX_RETRY_SCHEDULE_S = [0, 0, 0, 0]  # type: ignore[attr-defined]
    message = fail_until_circuit_opens(world, None)
    world.act("ignore", message)
    assert open_circuits() == [((), 0)]
    world.send_one(None, "next", mode="IMMEDIATE")
    assert open_circuits() == [((), 1)]


@pytest.mark.parametrize("how", ["paused", "disabled"])
def test_open_circuit_of_a_held_endpoint_is_not_counted(world: World, how: str) -> None:
    erp = world.endpoint(retry_schedule_s=[0, 0, 0, 0])
    world.act("retry", fail_until_circuit_opens(world, erp))
    hold = target_health.pause_endpoint if how == "paused" else target_health.disable_endpoint
    hold(erp.pk, "An outage", actor=SYSTEM)
    assert open_circuits() == [((), 0)]


def test_health_says_that_a_message_tests_the_receiver_only_if_one_does(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[0, 0, 0, 0])
    fail_until_circuit_opens(world, erp)
    assert "Delivery stops until" in health_words(erp)
    world.travel(WEEK)
    assert "The next message will test whether it responds again." in health_words(erp)
    world.receiver.hold("probe")
    probe = world.send_one(erp, "probe", group="other")
    world.start()
    world.becomes(probe, "PROCESSING")
    assert "One message is testing whether it responds again." in health_words(erp)
    world.receiver.let_go("probe")
    world.becomes(probe, "COMPLETED")
    assert health_words(erp) == "No recent failures."
