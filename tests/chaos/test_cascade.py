"""Kill real workers with SIGKILL at every point of a cascade, and empty Redis.

The dispatcher process alone gets the job to a technician: nobody is called twice for one offer, and the job is
assigned once.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack

import pytest
from django.conf import settings
from django.db import connection

from dispatch.jobs.models import Job
from tests.conftest import forget_redis
from tests.harness.jobs import Floor
from tests.phones import answer, busy
from tests.support.processes import environment, running
from tests.support.waiting import wait_until


def child(floor: Floor, **more: str) -> dict[str, str]:
    """The environment of a process that works on this floor, with timers short enough to wait for."""
    return environment(
        connection.settings_dict["NAME"],
        SIMULATOR_URL=floor.sim.base_url,
        DISPATCH_DATA_DIR=str(settings.DATA_DIR),
        AUDITOR_INTERVAL_S="0.5",
        LEADER_LEASE_S="2",
        LEADER_RENEW_S="0.5",
        CALL_RECONCILER_INTERVAL_S="0.5",
        UNKNOWN_LISTING_GAP_S="1",
        **more,
    )


def dies_working(floor: Floor, point: str, queue: str = settings.DISPATCH_QUEUE) -> None:
    """A worker takes what is on the queue and is killed at `point`."""
    with running("worker", queue, "--burst", env=child(floor, DISPATCH_FAULTS=f"{point}=kill")) as worker:
        assert worker.ends() == -signal.SIGKILL, worker.log()


def goes_on(floor: Floor, job: Job | None = None, *, workers: bool) -> None:
    """Only the dispatcher (and fresh workers, if asked) until every job is assigned."""
    with ExitStack() as stack:
        stack.enter_context(running("dispatcher", env=child(floor)))
        if workers:
            for queue in (settings.DISPATCH_QUEUE, settings.DISPATCH_TIMEOUT_QUEUE):
                stack.enter_context(running("worker", queue, env=child(floor)))
        wait_until(
            lambda: Job.objects.exists() and not Job.objects.exclude(status="assigned").exists(),
            message=floor.story,
        )


@pytest.mark.parametrize(
    "point", ["jobs.start.claimed", "jobs.start.committed", "jobs.offer.committed", "telephony.place.written"]
)
def test_a_worker_killed_while_starting_a_job(floor, point):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="1"))
    floor.phone(bob).will(answer(press="1"))
    floor.submit()
    dies_working(floor, point)
    forget_redis()
    floor.later(31)  # longer than a claimed start may take
    goes_on(floor, workers=False)
    assert Job.objects.get().technician == ann
    assert (floor.calls_made(ann), floor.calls_made(bob)) == (1, 0)


@pytest.mark.parametrize("point", ["jobs.expire.committed", "jobs.offer.committed"])
def test_a_worker_killed_at_the_deadline(floor, point):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(answer_timeout_s=700, ring_timeout_s=600)
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.rings(ann)
    floor.later(701)
    dies_working(floor, point, settings.DISPATCH_TIMEOUT_QUEUE)
    forget_redis()
    floor.later(5)
    goes_on(floor, workers=False)
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "accepted")]
    assert (floor.calls_made(ann), floor.calls_made(bob)) == (1, 1)


def test_all_processes_die_and_come_back_without_redis_contents(floor):
    """Several jobs at once, killed in the middle, everything in Redis lost."""
    crew = floor.crew("Ann", "Bob", "Cid", "Dee")
    for one in crew:
        floor.phone(one).will(busy(), answer(press="1"))
    floor.set_policy(rounds=3, technician_wait_s=900)
    for _ in range(3):
        floor.submit()
    with (
        running("worker", settings.DISPATCH_QUEUE, env=child(floor)),
        running("dispatcher", env=child(floor)),
    ):
        wait_until(lambda: sum(floor.calls_made(one) for one in crew) >= 2, message=floor.story)
    forget_redis()
    floor.later(31)
    goes_on(floor, workers=True)
    technicians = list(Job.objects.values_list("technician", flat=True))
    assert len(technicians) == len(set(technicians)) == 3
