"""The image builds, and the services of the compose file work from it, each as the image's unprivileged user.

A form comes in over the API, the technician is called, accepts, and has the job. Run by `make image-test`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from django.conf import settings
from django.db import connection

from dispatch.core.server_addresses import postgres_settings
from dispatch.jobs.models import DispatchPolicy, Job
from tests.harness.postgres_pair import Server, own_postgres
from tests.harness.redis_sentinels import ValkeyProcess
from tests.image.builder import Container, build_image, container, missing
from tests.phones import Simulator, answer
from tests.support import factories as make
from tests.support.database import reconnect
from tests.support.histories import history_is_legal
from tests.support.processes import ROOT, free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.image, pytest.mark.timeout(1800)]

SERVICES = {
    name: service
    for name, service in yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"].items()
    if service["image"] == "dispatch"
}
RUNNING = ("web", "dispatcher", "workers")
DATABASE = "dispatch"
LONG_S = 600.0  # a process in a new container starts slowly


@pytest.fixture(scope="module")
def image() -> str:
    if why := missing():
        pytest.skip(f"No image can be built here: {why}")
    return build_image()


@pytest.fixture
def postgres(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An empty database that containers can reach, which this process uses too."""
    with own_postgres() as server:
        server.execute(f"CREATE DATABASE {DATABASE}")
        config = postgres_settings(server.url(DATABASE))
        reconnect()
        for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT"):
            monkeypatch.setitem(connection.settings_dict, name, config[name])
        yield server
        reconnect()
        monkeypatch.undo()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[ValkeyProcess]:
    server = ValkeyProcess(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def services(
    image: str, postgres: Server, redis: ValkeyProcess, sim: Simulator
) -> Iterator[dict[str, tuple[Container, dict[str, str]]]]:
    """A container and its environment for each service of the compose file."""
    web_port = str(free_port())
    shared = {
        "DATABASE_URL": postgres.url(DATABASE),
        "REDIS_URL": f"redis://127.0.0.1:{redis.port}/0",
        "PUBLIC_BASE_URL": f"http://127.0.0.1:{web_port}",
        "SECRET_KEY": settings.SECRET_KEY,
        "FIELD_ENCRYPTION_KEYS": ",".join(settings.FIELD_ENCRYPTION_KEYS),
        "DISPATCH_DEVELOPMENT": "1",  # only then is the simulator a phone provider
        "SIMULATOR_URL": sim.base_url,
        "WEB_HOST": "127.0.0.1",
        "WEB_PORT": web_port,
        "METRICS_HOST": "127.0.0.1",
    }
    with ExitStack() as stack:
        made = {}
        for name in SERVICES:
            env = {**shared, "METRICS_PORT": str(free_port())}
            made[name] = (stack.enter_context(container(image, env)), env)
        yield made


def answers(service: str, env: dict[str, str]) -> bool:
    """Ask the address that the healthcheck names, from outside the container."""
    port, path = (env["WEB_PORT"], "/servez") if service == "web" else (env["METRICS_PORT"], "/healthz")
    try:
        return requests.get(f"http://127.0.0.1:{port}{path}", timeout=5).ok
    except requests.RequestException:
        return False


def is_healthy(service: str, box: Container, env: dict[str, str]) -> bool:
    """Run the service's healthcheck in its container, on the ports of this test."""
    _, *words = SERVICES[service]["healthcheck"]["test"]
    for used, port in (("8000", env["WEB_PORT"]), ("9100", env["METRICS_PORT"])):
        words = [word.replace(f":{used}/", f":{port}/") for word in words]
    return box.run(*words).returncode == 0


def test_services_of_the_compose_file_work_from_the_image(services: Any, sim: Simulator) -> None:
    migrate, _ = services["migrate"]
    migrated = migrate.run(*SERVICES["migrate"]["command"])
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr

    organization = make.organization("Copper State Plumbing")
    account = make.account(organization, account_sid=sim.account_sid, auth_token=sim.auth_token)
    make.number(organization, account=account, pool=make.pool(organization))
    make.service_type(organization, "plumbing")
    make.dispatcher(organization)
    DispatchPolicy.objects.create(organization=organization)
    technician = make.technician(organization, "Ann")
    sim.others_will(answer(press="1"))

    def logs() -> str:
        return "\n".join(f"--- {name}\n{services[name][0].log()[-6000:]}" for name in RUNNING)

    for name in RUNNING:
        services[name][0].start(*SERVICES[name]["command"])
    for name in RUNNING:
        wait_until(lambda name=name: answers(name, services[name][1]), LONG_S, logs, interval=0.5)
        wait_until(lambda name=name: is_healthy(name, *services[name]), LONG_S, logs, interval=0.5)

    answered = requests.post(
        f"{services['web'][1]['PUBLIC_BASE_URL']}/api/v1/submissions/",
        json=make.form("plumbing"),
        headers={"Authorization": f"Bearer {make.api_key(organization)}", "Idempotency-Key": "form-1"},
        timeout=60,
    )
    assert answered.status_code in (201, 202), answered.text
    wait_until(lambda: Job.objects.filter(status="assigned", technician=technician).exists(), LONG_S, logs)
    assert sim.creates_to(str(technician.phone)) == 1
    wait_until(lambda: not sim.open_calls(), LONG_S, logs)
    history_is_legal()
    codes = {name: services[name][0].stop() for name in RUNNING}
    assert (codes["dispatcher"], codes["workers"]) == (0, 0), logs()
    assert "exited on terminated" in services["web"][0].log()  # uvicorn stops cleanly, then repeats the signal


def test_the_image_is_unprivileged_and_has_production_settings(image: str) -> None:
    with container(image, {}) as box:
        told = box.run(
            "python", "-c", "import os; print(os.getuid(), os.access('.', os.W_OK), os.environ['LOG_FORMAT'])"
        )
        assert told.stdout.split() == ["10001", "False", "json"], told.stderr
        files = set(box.run("ls", "-A").stdout.split())
        assert files == {"accounts", "dispatch", "manage.py", "notifications", "static", "templates"}
        refused = box.run("python", "manage.py", "web")
        assert refused.returncode != 0
        assert "must be set outside development" in refused.stderr
