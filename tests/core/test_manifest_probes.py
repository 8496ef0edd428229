"""The probes of the manifests and the compose file, asked of processes started with the commands named there."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import yaml
from django.conf import settings
from django.db import connection

from dispatch.core.observability import liveness, metrics
from dispatch.core.redis.client import client
from dispatch.core.runtime.autoscaler import Autoscaler
from dispatch.core.runtime.loops import Service
from dispatch.core.runtime.queues import rq_queue
from dispatch.core.runtime.supervisor import Supervisor
from tests.core.loops import runs
from tests.core.outages import redis_away
from tests.harness.jobs import Worker
from tests.support.processes import ROOT, Process, environment, free_port
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
# One Deployment of each kind of process; `test_each_kind_has_the_probes_of_the_deployment_tested` has the others.
TESTED = ("web", "dispatcher", "worker-timeout")
LOCAL = {"WEB_HOST": "127.0.0.1", "METRICS_HOST": "127.0.0.1", "WORKERS": "dispatch-lead-queue=1"}


def containers() -> dict[str, dict[str, Any]]:
    """Return the container of each Deployment by the Deployment's name."""
    documents = (
        document
        for path in sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    )
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]
        for one in documents
        if one["kind"] == "Deployment"
    }


CONTAINERS = containers()


class Site:
    """The processes by name, with the port on which each one's probes are asked."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.ports: dict[str, int] = {}

    def start(self, name: str, command: list[str]) -> None:
        ports = {"WEB_PORT": str(free_port()), "METRICS_PORT": str(free_port())}
        self.ports[name] = int(ports["WEB_PORT" if name == "web" else "METRICS_PORT"])
        arguments = tuple(word.replace("$(POD_NAME)", f"{name}-0") for word in command[2:])
        env = environment(connection.settings_dict["NAME"], **LOCAL, **ports)
        self.processes[name] = Process(arguments, env)

    def asks(self, name: str, kind: str, timeout: float | None = None) -> bool:
        """Ask one of the manifest's probes as the kubelet does."""
        probe = CONTAINERS[name][f"{kind}Probe"]
        (port,) = CONTAINERS[name]["ports"]
        assert probe["httpGet"]["port"] == port["name"]
        url = f"http://127.0.0.1:{self.ports[name]}{probe['httpGet']['path']}"
        try:
            found = requests.get(url, timeout=timeout or probe["timeoutSeconds"])
        except requests.RequestException:
            return False
        return 200 <= found.status_code < 400

    def checks(self, service: str) -> bool:
        """Run a service's healthcheck of the compose file, on the port of this process."""
        shell, command, *rest = COMPOSE[service]["healthcheck"]["test"]
        assert (shell, command) == ("CMD", "python")
        used = str(CONTAINERS["web" if service == "web" else "dispatcher"]["ports"][0]["containerPort"])
        arguments = [word.replace(f":{used}/", f":{self.ports[service]}/") for word in rest]
        assert arguments != rest
        return subprocess.run([sys.executable, *arguments], capture_output=True).returncode == 0

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{one.log()}" for name, one in self.processes.items())


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.signal(signal.SIGCONT)
            process.kill()


def test_probes_answer_until_the_process_is_stuck(site: Site) -> None:
    for name in TESTED:
        site.start(name, CONTAINERS[name]["command"])
    site.start("workers", COMPOSE["workers"]["command"])
    for name in TESTED:
        wait_until(lambda name=name: site.asks(name, "startup"), message=site.logs)
        wait_until(lambda name=name: site.asks(name, "liveness"), message=site.logs)
    wait_until(lambda: site.asks("web", "readiness"), message=site.logs)
    for service in ("web", "dispatcher", "workers"):
        wait_until(lambda service=service: site.checks(service), message=site.logs)
    for name in TESTED:
        site.processes[name].signal(signal.SIGSTOP)
    for name in TESTED:
        assert not site.asks(name, "liveness", timeout=0.2), name
    for name in TESTED:
        site.processes[name].signal(signal.SIGCONT)
        wait_until(lambda name=name: site.asks(name, "liveness"), message=site.logs)


def test_each_kind_has_the_probes_of_the_deployment_tested() -> None:
    for name, container in CONTAINERS.items():
        kind = "worker-timeout" if name.startswith("worker-") else "web" if name == "web" else "dispatcher"
        probes = {key: value for key, value in container.items() if key.endswith("Probe")}
        assert probes == {key: value for key, value in CONTAINERS[kind].items() if key.endswith("Probe")}, name
        assert {"startupProbe", "livenessProbe"} <= set(probes), name
    ours = {name for name, service in COMPOSE.items() if service["image"] == "dispatch"}
    assert {name for name in ours if "healthcheck" in COMPOSE[name]} == ours - {"migrate"}


@pytest.fixture
def health(settings: Any) -> Iterator[str]:
    """Return the address of this process's liveness probe."""
    settings.METRICS_PORT, settings.METRICS_HOST = free_port(), "127.0.0.1"
    settings.METRICS_TOKEN = "secret"
    metrics.serve()
    yield f"http://127.0.0.1:{settings.METRICS_PORT}{liveness.PATH}"
    liveness.reset()


def test_a_process_that_does_not_report_is_stuck(health: str) -> None:
    assert requests.get(health, timeout=30).status_code == 200  # it has only started
    liveness.set_deadline("worker", 600)
    assert requests.get(health, timeout=30).text == "ok\n"
    liveness.set_deadline("worker", -1)
    stuck = requests.get(health, timeout=30)
    assert (stuck.status_code, stuck.text) == (503, "stuck: worker\n")
    liveness.set_deadline("worker", 600)
    assert requests.get(health, timeout=30).status_code == 200


def test_the_event_loop_reports_unless_something_blocks_it(health: str) -> None:
    is_blocked, release = threading.Event(), threading.Event()

    async def block(stop: asyncio.Event) -> None:
        is_blocked.set()
        release.wait()  # not awaited: nothing else runs in this event loop
        await stop.wait()

    try:
        with runs(Service("blocks", block)):
            assert is_blocked.wait(PATIENCE)
            liveness.set_deadline("event loop", -1)
            assert liveness.find_overdue() == ["event loop"]
            release.set()
            wait_until(lambda: not liveness.find_overdue())
    finally:
        release.set()


def test_a_worker_reports_when_redis_is_away(health: str) -> None:
    worker = Worker([rq_queue(settings.DISPATCH_QUEUE)], connection=client())
    worker._is_due("beat", 3600)
    liveness.set_deadline("worker", -1)
    with redis_away():
        worker.heartbeat()  # RQ calls it before each attempt to reach Redis
    assert not liveness.find_overdue()


def test_an_autoscaler_reports_at_each_step(health: str) -> None:
    liveness.set_deadline("autoscaler", -1)
    Autoscaler({}, Supervisor([], {}), 1).run(lambda seconds: True)
    assert not liveness.find_overdue()
