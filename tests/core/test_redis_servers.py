"""A separate Redis for each purpose; a full one and one that evicts are reported, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from django.conf import settings as site
from django.test import Client

from dispatch.core.checks import servers
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.redis import generation, state
from dispatch.core.redis.client import LEADS, OUTBOX, PURPOSES, QUEUES, breaker, client, server_url
from dispatch.core.runtime.queues import enqueue, rq_queue
from dispatch.core.web import probes
from notifications import live_updates
from tests.api.client import Api
from tests.benchmarks import noop_provider
from tests.capacity.conftest import OwnRedis, own_redis
from tests.core.test_checks import ids
from tests.harness.jobs import Floor as JobFloor
from tests.harness.leads import Floor
from tests.jobs.conftest import floor as jobs
from tests.jobs.test_auditor import audit_soon
from tests.phones import answer
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until

__all__ = ["jobs", "own_redis"]
pytestmark = pytest.mark.django_db(transaction=True)

VARIABLES = {"queues": "REDIS_QUEUES_URL", "leads": "REDIS_LEADS_URL", "channels": "REDIS_CHANNELS_URL"}


@pytest.fixture
def separate(settings: Any) -> Iterator[dict[str, OwnRedis]]:
    """Give each purpose a server; `""` is that of REDIS_URL."""
    found = {purpose: OwnRedis() for purpose in ("", *PURPOSES)}
    before = {name: getattr(settings, name) for name in ("REDIS_URL", "OUTBOX_QUEUE_URL", *VARIABLES.values())}
    settings.REDIS_URL, settings.OUTBOX_QUEUE_URL = found[""].url, found["outbox"].url
    for purpose, name in VARIABLES.items():
        setattr(settings, name, found[purpose].url)
    client.cache_clear()
    yield found
    for name, value in before.items():
        setattr(settings, name, value)
    client.cache_clear()
    for server in found.values():
        server.remove()


@pytest.fixture
def leads(settings: Any) -> Floor:
    settings.PROVIDER_MODULES = noop_provider.MODULES
    settings.LEADS_JITTER_S = 0.0
    return Floor()


def names_in(server: OwnRedis) -> set[str]:
    with server._client() as connection:
        return {name.decode().removeprefix(site.REDIS_PREFIX) for name in connection.keys("*")}


def test_one_server_serves_all_purposes_by_default() -> None:
    assert {server_url(purpose) for purpose in PURPOSES} == {site.REDIS_URL}
    assert all(client(purpose) is client() for purpose in PURPOSES)


def test_each_purpose_uses_its_server(separate: dict[str, OwnRedis], leads: Floor) -> None:
    leads.add_many(2)
    enqueue(site.DISPATCH_QUEUE, "tests.core.jobs.leave", "a")
    assert rq_queue(site.DISPATCH_QUEUE).count == 1
    with separate["channels"]._client() as connection:
        listener = connection.pubsub(ignore_subscribe_messages=True)
        listener.psubscribe("*")
        listener.get_message(timeout=1)
        live_updates.notify_members_changed(leads.organization.pk)
        assert wait_until(lambda: listener.get_message(timeout=1))
    found = {purpose: names_in(server) for purpose, server in separate.items()}
    assert found["queues"] >= {f"rq:queue:{site.DISPATCH_QUEUE}"}
    assert found["leads"] >= {"generation", "leads:schedule"}
    assert not {name for purpose in ("", "channels", "outbox") for name in found[purpose] if "probe" not in name}
    assert leads.work() == 2


def test_an_outage_of_one_purpose_leaves_the_others(separate: dict[str, OwnRedis], leads: Floor) -> None:
    separate["queues"].stop()
    enqueue(site.DISPATCH_QUEUE, "tests.core.jobs.leave", "a")  # logged; the auditor does it
    leads.add_many(2)
    assert leads.work() == 2
    assert not breaker(server_url(QUEUES)).is_closed
    assert breaker(server_url(LEADS)).is_closed
    assert breaker(server_url(OUTBOX)).is_closed
    (fault,) = state.find_faults()
    assert (fault.server, fault.words) == (breaker(server_url(QUEUES)).name, state.AWAY)
    assert ids(servers(None, databases=["default"])) == ["dispatch.W052"]


class Memory:
    """The memory of the server that `client()` uses, as its administrator sets it."""

    def __init__(self, server: OwnRedis) -> None:
        self._server = server

    def set(self, name: str, value: str) -> None:
        with self._server._client() as connection:
            connection.config_set(name, value)
        CircuitBreaker.reset_all()


@pytest.fixture
def memory(own_redis: OwnRedis) -> Iterator[Memory]:
    probes.reset()
    yield Memory(own_redis)
    probes.reset()


def health_bar(browser: Client) -> str:
    from dispatch.console import health

    health.reset()
    return browser.get("/health/").content.decode()


def test_a_full_redis_is_reported_and_leads_are_called_when_it_has_room(
    memory: Memory, leads: Floor, app_url: str
) -> None:
    api = Api(key=factories.api_key(leads.organization, "leads:write", "read"))
    browser = factories.browser(factories.dispatcher(leads.organization))
    leads.add_many(1)
    memory.set("maxmemory", "1")
    answer = api.post("leads/", {"campaign": leads.campaign.code, "phone": factories.phone()})
    assert answer.status_code == 201
    assert not breaker().is_closed
    assert "Redis is full and rejects writes." in health_bar(browser)
    ready = requests.get(f"{app_url}/readyz", timeout=30)
    assert (ready.status_code, ready.json()["errors"][0]["detail"]) == (503, "Redis is full and rejects writes.")
    assert requests.get(f"{app_url}/servez", timeout=30).status_code == 200
    memory.set("maxmemory", "0")
    assert generation.ensure_generation()
    leads.step("leads_near")
    assert leads.work() == 2
    assert leads.outcomes() == {"answered": 2}
    assert requests.get(f"{app_url}/readyz", timeout=30).status_code == 200
    assert "Redis is full" not in health_bar(browser)


def test_a_job_finds_its_technician_while_redis_is_full(memory: Memory, jobs: JobFloor) -> None:
    (ann,) = jobs.crew("Ann")
    jobs.phone(ann).will(answer(press="1"))
    memory.set("maxmemory", "1")
    submission = jobs.submit()
    jobs.sim.until(
        lambda: jobs.status(submission) == "assigned" or (audit_soon(jobs), False)[1], PATIENCE, jobs.story
    )
    assert jobs.offers(jobs.job(submission)) == [("Ann", "accepted")]


def test_a_redis_that_evicts_is_reported(memory: Memory, app_url: str) -> None:
    browser = factories.browser(factories.dispatcher(factories.organization()))
    memory.set("maxmemory-policy", "allkeys-lru")
    said = "Redis evicts keys when memory runs low (maxmemory-policy allkeys-lru)."
    ready = requests.get(f"{app_url}/readyz", timeout=30)
    assert (ready.status_code, ready.json()["warnings"]) == (200, [said])
    assert said in health_bar(browser)
    assert f'dispatch_redis_evicts{{server="{breaker().name}"}} 1.0' in browser.get("/metrics").content.decode()
    assert ids(servers(None, databases=["default"])) == ["dispatch.E054"]
    memory.set("maxmemory-policy", "noeviction")
    assert requests.get(f"{app_url}/readyz", timeout=30).json() == {"status": "ready"}
    assert "evicts" not in health_bar(browser)
