"""Jobs, leads, messages and runs work through a PgBouncer in transaction mode that keeps prepared statements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from dispatch.core.runtime import preflight
from dispatch.jobs.models import Offer
from dispatch.telephony.models import Call
from tests.benchmarks import noop_provider
from tests.harness import jobs, leads, outbox, schedules
from tests.harness.pgbouncer import KEEPS_STATEMENTS, PGBOUNCER, bouncer, connected_through, version
from tests.phones import Simulator
from tests.support.histories import history_is_legal

__all__ = ["bouncer"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        PGBOUNCER is not None and not KEEPS_STATEMENTS,
        reason=f"PgBouncer {'.'.join(map(str, version()))} keeps no prepared statements; 1.21 and newer do",
    ),
]


@pytest.fixture(autouse=True)
def _through_pgbouncer(bouncer: int, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[None]:
    settings.DB_SESSION_LIMITS = False
    with connected_through(bouncer, monkeypatch):
        preflight.check()
        yield


def test_every_plane_works_through_pgbouncer(app_url: str, sim: Simulator, settings: Any) -> None:
    settings.SIMULATOR_URL = sim.base_url
    assert connection.settings_dict["HOST"] == "127.0.0.1"
    floor = jobs.Floor(sim)
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann).answer().press("1")
    floor.until(lambda: floor.status(job) == "assigned" and not Call.objects.filter(ended_at=None).exists())
    assert Offer.objects.get().status == "accepted"

    settings.PROVIDER_MODULES = noop_provider.MODULES
    room = leads.Floor(lines=3)
    room.add_many(5)
    room.work()
    assert room.outcomes() == {"answered": 5}

    with outbox.open_world() as world:
        ids = world.send(world.endpoint(), "a", "b", "c")
        world.start()
        world.all_end()
        assert world.receiver.names == ["a", "b", "c"]
        assert world.statuses(ids) == ["COMPLETED"] * 3

    calendar = schedules.World()
    with schedules.noting(calendar.note):
        schedule = calendar.schedule(every=1, unit="hour")
        calendar.travel(3600.0)
        calendar.go()
        assert calendar.statuses(schedule)[0] == "succeeded"

    connections.close_all()
    history_is_legal()
