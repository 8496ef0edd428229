"""A process starts although Redis accepts connections and never answers, or says that it waits, and goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise

import pytest
import requests
from django.conf import settings

from dispatch.core import clock
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.events import SYSTEM
from dispatch.core.models import EventCursor
from dispatch.core.redis import generation
from dispatch.core.runtime.queues import enqueue
from dispatch.jobs.models import Job, Submission
from dispatch.leads.models import Lead
from dispatch.outbox.models import Message
from dispatch.outbox.services.intake import NewMessage, accept_messages
from dispatch.schedules.models import Run
from dispatch.schedules.services.schedules import create_schedule
from tests.conftest import forget_redis
from tests.harness.leads import Floor
from tests.harness.redis_proxy import RedisProxy
from tests.outbox.receiver import Receiver
from tests.phones import Simulator
from tests.support import factories
from tests.support.processes import free_port, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE, LATER = settings.DISPATCH_QUEUE, settings.DISPATCH_TIMEOUT_QUEUE
WAITS, TIMEOUT_S = "worker_waiting_for_redis", 1
Env = dict[str, str]


@pytest.fixture
def hanging() -> Iterator[RedisProxy]:
    proxy = RedisProxy(settings.REDIS_URL)
    proxy.hang()
    yield proxy
    proxy.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def env(test_environment: Env, hanging: RedisProxy) -> Env:
    return {**test_environment, "REDIS_URL": hanging.url, "REDIS_TIMEOUT_S": str(TIMEOUT_S)}


def answers(url: str, status: int = 200) -> bool:
    with suppress(requests.RequestException):
        return requests.get(url, timeout=10).status_code == status
    return False


def test_web_serves_and_accepts_forms(env: Env, hanging: RedisProxy) -> None:
    organization = factories.organization()
    factories.service_type(organization, "plumbing")
    key, url = factories.api_key(organization), f"http://127.0.0.1:{(port := free_port())}"
    with running("web", "--port", str(port), env=env) as web:
        wait_until(lambda: answers(f"{url}/servez"), message=web.log)
        headers = {"Authorization": f"Bearer {key}"}
        form = factories.form("plumbing")
        accepted = requests.post(f"{url}/api/v1/submissions/", json=form, headers=headers, timeout=60)
        assert accepted.status_code == 202, accepted.text
        assert hanging.unanswered >= 1
        wait_until(lambda: answers(f"{url}/readyz", 503), message=web.log)
        hanging.pass_on()
        wait_until(lambda: answers(f"{url}/readyz"), message=web.log)


@pytest.mark.parametrize("queue", [QUEUE, LATER])
def test_a_worker_says_that_it_waits_and_goes_on(env: Env, hanging: RedisProxy, queue: str) -> None:
    enqueue(queue, "tests.core.jobs.leave", queue)
    with running("worker", queue, env=env) as worker:
        worker.says(WAITS)
        hanging.pass_on()
        wait_until(lambda: EventCursor.objects.filter(name=queue).exists(), message=worker.log)
        assert worker.log().count(WAITS) == 1


def test_the_autoscaler_starts_workers_that_wait(env: Env, hanging: RedisProxy) -> None:
    enqueue(QUEUE, "tests.core.jobs.leave", "a")
    with running("autoscale", env={**env, "WORKERS": f"{QUEUE}=1"}) as scaler:
        scaler.says(WAITS)
        hanging.pass_on()
        wait_until(lambda: EventCursor.objects.filter(name="a").exists(), message=scaler.log)


@pytest.mark.parametrize("command", [("check", "--database", "default"), ("migrate",)], ids=" ".join)
def test_a_command_costs_one_timeout(env: Env, hanging: RedisProxy, command: tuple[str, ...]) -> None:
    with running(*command, env=env) as process:
        assert process.ends() == 0, process.log()
        assert process.log().count("Redis does not respond") == 1, process.log()
    assert hanging.unanswered >= 1
    # A command that takes long may try again, but not while the circuit is open: a time-out and a pause later.
    gaps = [later - earlier for earlier, later in pairwise(hanging.unanswered_at)]
    assert all(gap > TIMEOUT_S + CircuitBreaker("").pause_s - 0.1 for gap in gaps), gaps


def due_submission() -> Callable[[], bool]:
    organization = factories.organization()
    submission = Submission.objects.create(
        organization=organization, service_type=factories.service_type(organization, "plumbing"), form={},
        customer_name="Pat", customer_phone=factories.phone(), next_start_at=clock.now(),
    )  # fmt: skip
    return lambda: Job.objects.filter(submission=submission).exists()


def due_message(receiver: Receiver) -> Callable[[], bool]:
    item = NewMessage(type="a", payload=json.dumps({"name": "a"}), url=receiver.url)
    (accepted,) = accept_messages(factories.organization().pk, [item])
    return lambda: Message.objects.filter(pk=accepted.id, status="COMPLETED").exists()


def due_lead(sim: Simulator) -> Callable[[], bool]:
    floor = Floor("twilio", account_sid=sim.account_sid, auth_token=sim.auth_token)
    (lead,) = floor.add(factories.phone())
    return lambda: Lead.objects.filter(pk=lead, attempts__gt=0).exists()


def due_run() -> Callable[[], bool]:
    given = {"name": "once", "kind": "http", "payload": {"url": "https://example.com/"}, "trigger_at": clock.now()}
    given |= {"time_zone": "UTC", "retry_schedule_s": [60]}
    made = create_schedule(factories.organization().pk, given, actor=SYSTEM)
    return lambda: Run.objects.filter(schedule=made).exclude(status="scheduled").exists()


def test_the_loops_work_from_postgresql_and_then_with_redis(
    env: Env, hanging: RedisProxy, receiver: Receiver, sim: Simulator
) -> None:
    done = {"message": due_message(receiver), "lead": due_lead(sim), "run": due_run()}
    job_exists = due_submission()
    with running("dispatcher", env={**env, "SIMULATOR_URL": sim.base_url}) as dispatcher:
        wait_until(job_exists, message=dispatcher.log)
        assert hanging.unanswered >= 1
        forget_redis()
        hanging.pass_on()
        wait_until(lambda: generation.current_generation() is not None, message=dispatcher.log)
        for name, is_done in done.items():
            wait_until(is_done, message=lambda name=name: f"no {name}\n{dispatcher.log()}")
