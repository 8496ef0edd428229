"""PostgreSQL and Redis really restart while dispatcher processes call leads through the simulator."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection

from dispatch.core import clock
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call
from tests.capacity.conftest import OwnRedis, own_redis
from tests.harness.leads import Floor
from tests.leads.test_kills import LOOPS, QUICK
from tests.phones import Simulator, answer, manual
from tests.support.database import crash_server, durable_commits, restart_server
from tests.support.processes import Process, environment, running
from tests.support.waiting import wait_until

__all__ = ["own_redis"]
LEADS, LINES = 10, 2
OUTAGE_S = 10.0


@pytest.fixture
def floor(sim: Simulator, app_url: str, settings: Any) -> Floor:
    settings.SIMULATOR_URL = sim.base_url
    sim.others_will(manual())  # until it continues
    return Floor("twilio", lines=LINES, account_sid=sim.account_sid, auth_token=sim.auth_token)


@pytest.fixture
def durable() -> Iterator[None]:
    with durable_commits():
        yield


def dispatcher(sim: Simulator) -> Any:
    env = environment(connection.settings_dict["NAME"], SIMULATOR_URL=sim.base_url, LEADS_JITTER_S="1", **QUICK)
    return running("dispatcher", "--only", LOOPS, env=env)


def stops_in_the_middle(sim: Simulator, process: Process) -> None:
    """Stop in the middle: some leads were called, some are ringing and keep ringing, some wait."""
    wait_until(sim.open_calls, message=process.log)
    sim.open_calls()[0].answer().hears("hello").hang_up()

    def in_the_middle() -> bool:
        found = set(Lead.objects.values_list("status", flat=True))
        return found == {"backlog", "processing", "finished"} and len(sim.open_calls()) == LINES

    wait_until(in_the_middle, message=process.log)


def goes_on(sim: Simulator) -> None:
    """Continue: everyone who is called answers."""
    sim.others_will(answer(after=0.5))
    for call in sim.open_calls():
        if call.is_manual:
            call.answer().told("in-progress").hang_up()  # a call that heard no script is tried again


def left(leads: Any) -> list[Any]:
    """Return leads that are not over, and their calls."""
    calls = Call.objects.filter(purpose="lead", subject_id__in=leads.values("pk"))
    return [*leads.values_list("pk", "status", "token", "claimed_at"), *calls.values()]


def everybody_was_called_once(floor: Floor, sim: Simulator, process: Process, count: int) -> None:
    leads = Lead.objects.exclude(status="finished")
    minutes_later = itertools.count(10, 2)

    def all_are_over() -> bool:
        # An end that nobody reported during the outage is polled minutes later: now.
        with clock.restored():
            clock.travel(60 * next(minutes_later))
            floor.step("calls_end")
        return not leads.exists()

    wait_until(all_are_over, interval=0.5, message=lambda: f"{left(leads)}\n{process.log()[-6000:]}")
    assert floor.outcomes() == {"answered": count}
    placed = {str(phone): sim.creates_to(str(phone)) for phone in Lead.objects.values_list("phone", flat=True)}
    assert placed == dict.fromkeys(placed, 1)
    assert sim.max_simultaneous(str(floor.number.phone)) <= LINES
    assert not Call.objects.filter(ended_at=None).exists()
    wait_until(lambda: floor.lines_in_use() == 0, message="a line stays taken")


@pytest.mark.parametrize("comes_back", ["empty", pytest.param("as it was", marks=pytest.mark.soak)])
def test_redis_stopped_for_ten_seconds_in_the_middle(
    own_redis: OwnRedis, floor: Floor, sim: Simulator, comes_back: str
) -> None:
    floor.add_many(LEADS)
    with dispatcher(sim) as process:
        stops_in_the_middle(sim, process)
        if comes_back == "empty":
            own_redis.flush()
        own_redis.stop()
        goes_on(sim)
        floor.add_many(2)
        threading.Event().wait(OUTAGE_S)
        own_redis.start()
        CircuitBreaker.reset_all()
        everybody_was_called_once(floor, sim, process, LEADS + 2)


@pytest.mark.skipif(not django_settings.EMBEDDED_POSTGRES, reason="a server that was given is not ours to stop")
@pytest.mark.usefixtures("durable")
def test_postgresql_crashes_and_starts_again_in_the_middle(floor: Floor, sim: Simulator) -> None:
    floor.add_many(LEADS)
    with dispatcher(sim) as process:
        stops_in_the_middle(sim, process)
        crash_server()
        process.says("leadership_renewal_failed")
        restart_server()
        # A person who answers while no script can be served hears an apology, and is called again
        # (`test_unheard_calls`). The recovery's duration would decide how many people that are.
        goes_on(sim)
        everybody_was_called_once(floor, sim, process, LEADS)
