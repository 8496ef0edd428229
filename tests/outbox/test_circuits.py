"""What is reported of an open circuit is true, and ends with it."""

from __future__ import annotations

import pytest

from dispatch.core.events import SYSTEM, Actor
from dispatch.core.models import Event
from dispatch.outbox.metrics import open_circuits
from dispatch.outbox.models import Endpoint, Target
from dispatch.outbox.services import endpoints, target_health
from dispatch.outbox.services.endpoints import health_of
from notifications.loops import reader
from notifications.models import Notification
from tests.core.horizon import all_readable
from tests.harness.outbox import World
from tests.support import factories

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


@pytest.mark.parametrize("how", ["another URL", "enabled"])
def test_a_reset_reports_the_closed_circuit_and_ends_its_alert(world: World, how: str) -> None:
    boss = factories.admin(world.organization, "Boss")
    actor = Actor("user", boss.pk, boss.name)
    erp = world.endpoint(retry_schedule_s=[0, 0, 0, 0])
    fail_until_circuit_opens(world, erp)
    all_readable()
    reader.step()
    alert = Notification.objects.get(user=boss, kind="endpoint.circuit_opened")
    assert alert.settled_at is None

    if how == "another URL":
        endpoints.change_endpoint(erp.pk, {"url": world.receiver.url + "/new"}, actor=actor)
    else:
        target_health.disable_endpoint(erp.pk, "An outage", actor=actor)
        target_health.enable_endpoint(erp.pk, actor=actor)
    assert health_words(erp) == "No recent failures."
    closed = Event.objects.get(kind="endpoint.circuit_closed", subject_id=erp.pk)
    assert closed.actor_label == "Boss"
    all_readable()
    reader.step()
    alert.refresh_from_db()
    assert (alert.settled_at is not None, alert.settled_how) == (True, "Boss resumed delivery to the endpoint")


def test_a_reset_of_a_closed_circuit_reports_nothing(world: World) -> None:
    erp = world.endpoint()
    world.send(erp, "a")
    endpoints.change_endpoint(erp.pk, {"url": world.receiver.url + "/new"}, actor=SYSTEM)
    target_health.disable_endpoint(erp.pk, "An outage", actor=SYSTEM)
    target_health.enable_endpoint(erp.pk, actor=SYSTEM)
    assert not Event.objects.filter(kind="endpoint.circuit_closed").exists()
