"""The age of the most overdue message, in the metric and on the outbox's pages, whatever its mode."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.capacity.models import DispatchPool
from dispatch.console.outbox.queries import count_outbox
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.outbox import metrics
from dispatch.outbox.models import Endpoint, Target
from dispatch.outbox.services import target_health
from tests.harness.outbox import World
from tests.support import factories

HOUR = 3600.0
MODES = ["BLOCK_ON_ERROR", "IMMEDIATE"]


def seconds_overdue(world: World) -> float:
    """Return the age that the metric reports, which must be what the pages show."""
    ((_, seconds),) = metrics.oldest_due()
    since = count_outbox(world.organization.pk).due_since
    assert (since is not None) == (seconds > 0)
    if since is not None:
        # Read at two times.
        assert 0 <= (clock.now() - since).total_seconds() - seconds < 60
    return seconds


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("to", ["endpoint", "URL"])
def test_an_overdue_message_is_reported(world: World, mode: str, to: str) -> None:
    erp = world.endpoint() if to == "endpoint" else None
    world.send(erp, "later", mode=mode, group="later", scheduled_for=clock.now() + timedelta(days=2))
    assert seconds_overdue(world) == 0.0
    message = world.send_one(erp, "a", mode=mode)
    world.travel(HOUR)
    world.send(erp, "newer", mode=mode, group="newer")
    assert HOUR <= seconds_overdue(world) < 2 * HOUR
    world.act("cancel", message)
    assert 0.0 < seconds_overdue(world) < HOUR
    assert count_outbox(factories.organization("Other").pk).due_since is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("to", "why"),
    [
        *[("endpoint", why) for why in ("paused", "disabled", "paused pool", "open circuit")],
        *[("URL", why) for why in ("paused pool", "open circuit")],
    ],
)
def test_a_message_that_is_held_on_purpose_is_not_overdue(world: World, mode: str, to: str, why: str) -> None:
    erp = world.endpoint() if to == "endpoint" else None
    world.send(erp, "a", mode=mode)
    world.travel(HOUR)
    hold(erp, why)
    assert seconds_overdue(world) == 0.0


def hold(endpoint: Endpoint | None, why: str) -> None:
    if why == "paused pool":
        DispatchPool.objects.update(is_paused=True)
    elif why == "open circuit":
        Target.objects.update(open_until=clock.now() + timedelta(minutes=5))
    elif endpoint:
        act = target_health.pause_endpoint if why == "paused" else target_health.disable_endpoint
        act(endpoint.pk, "An outage", actor=SYSTEM)
