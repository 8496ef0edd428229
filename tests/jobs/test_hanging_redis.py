"""A Redis that accepts connections and never answers costs each process one time-out, and no work is lost."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.core.redis.client import breaker
from dispatch.jobs import services
from dispatch.jobs.models import Job, Offer
from dispatch.telephony.models import Call
from tests.api.client import Api
from tests.harness.jobs import Floor
from tests.harness.redis_proxy import RedisProxy, redis_proxy
from tests.phones import ignore
from tests.support import factories
from tests.support.waiting import wait_until

__all__ = ["redis_proxy"]


@pytest.fixture
def hanging(floor: Floor, redis_proxy: RedisProxy) -> RedisProxy:
    """A proxy whose `hang` opens the circuit for the rest of the test."""
    redis_proxy.hold_circuit_open()
    return redis_proxy


def test_a_submission_costs_one_timeout(floor: Floor, hanging: RedisProxy) -> None:
    api = Api(key=factories.api_key(floor.organization))
    hanging.hang()
    for _ in range(3):
        answer = api.post("submissions/", factories.form("water-heater"))
        assert answer.status_code == 202, answer.content
    assert hanging.unanswered == 1


def test_a_key_that_accepts_and_the_end_of_the_call_cost_one_timeout(floor: Floor, hanging: RedisProxy) -> None:
    (ann,) = floor.crew("Ann")
    job = floor.started()
    call = floor.rings(ann).answer().hears("press 1").told("in-progress")
    hanging.hang()
    call.press("1")
    wait_until(lambda: floor.status(job) == "assigned", message=floor.story)
    wait_until(lambda: not Call.objects.filter(ended_at=None).exists(), message=floor.story)
    assert floor.offers(floor.job(job)) == [("Ann", "accepted")]
    assert hanging.unanswered == 1


def test_a_status_callback_costs_one_timeout(floor: Floor, hanging: RedisProxy) -> None:
    (ann,) = floor.crew("Ann")
    job = floor.started()
    call = floor.rings(ann).answer().hears("press 1").told("in-progress")
    hanging.hang()
    call.hang_up()
    wait_until(lambda: not Call.objects.filter(ended_at=None).exists(), message=floor.story)
    assert floor.offers(floor.job(job))[0][0] == "Ann"
    assert hanging.unanswered == 1


def test_ten_steps_of_the_auditor_cost_one_timeout(floor: Floor, hanging: RedisProxy) -> None:
    crew = floor.crew(*(f"Tech {number}" for number in range(10)))
    floor.sim.lose_callbacks()  # the auditor is alone
    for technician in crew:
        floor.phone(technician).will(ignore())
    jobs = [floor.started() for _ in crew]
    assert Offer.objects.filter(status="pending").count() == len(jobs)
    clock.travel(400)  # every offer has expired
    hanging.hang()
    began = clock.now()
    assert services.audit() >= len(jobs)
    assert hanging.unanswered == 1
    assert not Offer.objects.filter(attempt=1, status="pending").exists()
    assert not Job.objects.filter(status="dispatching", next_action_at__lt=began).exists()


def test_work_is_enqueued_again_once_redis_responds(floor: Floor, hanging: RedisProxy) -> None:
    hanging.hang()
    floor.submit()
    assert breaker().is_open
    hanging.pass_on()
    breaker().reset()
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann).answer().press("1")
    floor.until(lambda: floor.status(job) == "assigned")
