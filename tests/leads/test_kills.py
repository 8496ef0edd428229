"""A dialer dies at each step of a batch, and the others recover.

Nothing is lost, nobody is called twice for one attempt, and no line stays occupied.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from dispatch.core import clock, fault_injection
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call
from tests.harness.leads import Floor
from tests.phones import Simulator, answer
from tests.support.processes import environment, running
from tests.support.waiting import wait_until

PHONES = [f"+1602555010{n}" for n in range(4)]
POINTS = [
    "leads.claim.taken",
    "leads.claim.before_commit",
    "leads.claim.committed",
    "leads.claim.settled",
    "leads.ask.before",
    "leads.ask.after",
    "leads.settle.before_commit",
    "leads.settle.committed",
]
# All intentional delays are shortened; nothing else is different.
QUICK = {
    "LEADER_LEASE_S": "2",
    "LEADER_RENEW_S": "0.5",
    "LEADS_HEARTBEAT_S": "0.3",
    "LEADS_WORKER_DEAD_S": "3",
    "LEADS_CLAIM_LEASE_S": "8",
    "LEADS_WORKERS_INTERVAL_S": "0.5",
    "LEADS_NEAR_INTERVAL_S": "1",
    "LEADS_RETRY_DELAY_S": "1",
    "CALL_RECONCILER_INTERVAL_S": "0.5",
    "PROVIDER_TIMEOUT_S": "3",
    "UNKNOWN_LISTING_GAP_S": "1",
    "LINE_RECONCILER_INTERVAL_S": "1",
    "LEADS_UNTOLD_S": "2",
    "LEADS_STALE_INTERVAL_S": "1",
}
LOOPS = (
    "redis_generation,leads_promoter,leads_dialer,leads_workers,leads_near,leads_stale,lines,"
    "calls_cut_off,calls_unknown,calls_end"
)


@pytest.fixture
def floor(sim: Simulator, app_url: str, settings: Any) -> Floor:
    settings.SIMULATOR_URL = sim.base_url
    sim.others_will(answer(after=0.5))
    return Floor("twilio", lines=2, account_sid=sim.account_sid, auth_token=sim.auth_token)


def everybody_was_called_once(floor: Floor, sim: Simulator) -> None:
    assert floor.outcomes() == {"answered": len(PHONES)}
    assert [sim.creates_to(phone) for phone in PHONES] == [1] * len(PHONES)
    assert sim.max_simultaneous(str(floor.number.phone)) <= 2
    wait_until(lambda: floor.lines_in_use() == 0, message="a line stays taken")
    assert not Call.objects.filter(ended_at=None).exists()


def complains_of_nothing_but_the_kill(sim: Simulator) -> None:
    """Expect only the errors of a process killed while it requested a call."""
    assert [complaint for complaint in sim.complaints() if "Connection lost" not in complaint] == []
    sim.forgive()


def reconcile(floor: Floor, seconds: float) -> None:
    clock.travel(seconds)
    for loop in (
        "leads_workers", "leads_near", "leads_stale", "calls_cut_off", "calls_unknown", "calls_end", "lines",
    ):  # fmt: skip
        floor.step(loop)


@pytest.mark.parametrize("point", POINTS)
def test_a_dialer_that_dies_anywhere_loses_nobody_and_calls_nobody_twice(
    floor: Floor, sim: Simulator, point: str
) -> None:
    ids = floor.add(*PHONES)
    floor.promote()
    with fault_injection.arm_crash_point(point), pytest.raises(fault_injection.Interrupted):
        claimed = floor.claim(worker="the one that dies")
        fault_injection.crash_point("leads.ask.before")
        answers = floor.ask(claimed)
        fault_injection.crash_point("leads.ask.after")
        floor.settle(answers)

    waits = itertools.chain([0.0, 21.0, 61.0], itertools.repeat(3700.0))

    def all_over() -> bool:
        reconcile(floor, next(waits))
        floor.work()
        wait_until(lambda: not sim.open_calls(), message="calls go on for ever")
        wait_until(lambda: not Call.objects.filter(status__in=["submitted", "ringing", "answered"]).exists())
        return not Lead.objects.filter(pk__in=ids).exclude(status="finished").exists()

    wait_until(
        all_over, message=lambda: f"{floor.outcomes()}, {list(Call.objects.values_list('status', flat=True))}"
    )
    everybody_was_called_once(floor, sim)


def killed(floor: Floor, sim: Simulator, kill: Callable[[Any], None], **fault: str) -> None:
    floor.add(*PHONES)
    with running("dispatcher", "--only", "leads_promoter,leads_dialer", env={**_quick(sim), **fault}) as first:
        kill(first)
        assert first.ends() == -signal.SIGKILL, first.log()
    while not _is_taken_over(floor, sim):
        clock.travel(61)  # a lead whose call was not placed waits for a minute
    complains_of_nothing_but_the_kill(sim)


def _quick(sim: Simulator) -> dict[str, str]:
    return environment(connection.settings_dict["NAME"], SIMULATOR_URL=sim.base_url, **QUICK)


def _is_taken_over(floor: Floor, sim: Simulator) -> bool:
    """Run a dispatcher as long as it has work; return whether every lead is finished and called once."""
    unfinished = Lead.objects.exclude(status="finished")
    with running("dispatcher", "--only", LOOPS, env=_quick(sim)) as process:
        wait_until(
            lambda: not unfinished.exclude(due_at__gt=clock.now() + timedelta(seconds=15)).exists(),
            message=lambda: f"{list(Lead.objects.values_list('status', 'reason'))}\n{process.log()}",
        )
        if unfinished.exists():
            return False
        # While it still runs, it has to release a line that was taken for a lead which is over by now.
        everybody_was_called_once(floor, sim)
    return True


SUITE = {"leads.claim.committed", "leads.ask.after"}


@pytest.mark.parametrize(
    "point", [point if point in SUITE else pytest.param(point, marks=pytest.mark.soak) for point in POINTS]
)
def test_a_dispatcher_process_killed_there_is_taken_over(floor: Floor, sim: Simulator, point: str) -> None:
    killed(floor, sim, lambda process: None, DISPATCH_FAULTS=f"{point}=kill")


@pytest.mark.soak
def test_a_dispatcher_process_killed_during_the_request(floor: Floor, sim: Simulator) -> None:
    sim.slow_create(40, times=1)

    def during(process: Any) -> None:
        wait_until(lambda: sum(sim.asked_for(phone) for phone in PHONES) > 0)
        process.kill()

    killed(floor, sim, during)
