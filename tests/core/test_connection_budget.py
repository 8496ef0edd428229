"""Each kind of process has its own limit of database connections, and says if PostgreSQL allows fewer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml
from django.conf import settings as site
from django.db import connection
from structlog.testing import capture_logs

from dispatch.core import checks
from dispatch.core.db import batcher
from dispatch.core.runtime import connection_budget
from dispatch.core.runtime.fair_threads import FairThreads
from dispatch.core.runtime.loops import Service, all_loops
from dispatch.dev import embedded_servers
from dispatch.leads.dialer import Dialer
from dispatch.outbox.processor import Processor
from dispatch.outbox.router import Router
from tests.core.test_checks import ids
from tests.support.processes import ROOT

SCALING = (ROOT / "docs" / "operations" / "scaling.md").read_text()
# The settings of a process, before and after it is known to be a web process.
SHOW_POOL = """
import importlib
from dispatch.core.db import session_limits
import dispatch.settings as found

def show():
    database = importlib.reload(found).DATABASES["default"]
    print(database["OPTIONS"].get("pool", {}).get("max_size"), database["CONN_MAX_AGE"])

show()
session_limits.apply(session_limits.BACKGROUND)
show()
session_limits.apply(session_limits.WEB)
show()
"""


def service(name: str) -> Service:
    (found,) = [loop for loop in all_loops() if loop.name == name]
    assert isinstance(found, Service)
    return found


def test_the_pool_size_applies_to_the_web_process_only() -> None:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "dispatch.settings", "DB_POOL_SIZE": "4"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHOW_POOL],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["None 600", "None 600", "5 0"]


def test_the_page_has_the_figures_of_each_process() -> None:
    dialer = connection_budget.of_dispatcher([service("leads_dialer")])
    figures = [int(found) for found in re.findall(r"^\| [^|]+ \| (\d+)\b[^|]* \| ", SCALING, re.MULTILINE)]
    assert figures[:5] == [
        connection_budget.of_web(),
        connection_budget.of_dispatcher(all_loops()),
        dialer,
        connection_budget.of_worker(site.DISPATCH_QUEUE),
        connection_budget.of_worker(site.SCHEDULE_STATUS_QUEUE),
    ]
    assert f"with the default `WORKERS_MAX`, {connection_budget.of_machine()['workers']}" in SCALING
    assert f"{FairThreads.count()} for requests to the phone provider" in SCALING


def test_the_compose_file_allows_the_connections_of_its_processes() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    (allowed,) = re.findall(r"max_connections=(\d+)", " ".join(services["postgres"]["command"]))
    most = connection_budget.of_machine()
    total = (
        services["web"]["deploy"]["replicas"] * most["web"]
        + services["dispatcher"]["deploy"]["replicas"] * most["dispatcher"]
        + most["workers"] + 1  # the autoscaler
    )  # fmt: skip
    assert total <= int(allowed) - 3  # superuser_reserved_connections


def test_the_embedded_server_allows_the_connections_of_one_machine() -> None:
    most = connection_budget.of_machine()
    others = 3  # `make up` itself, the autoscaler, and the process that submits forms
    reserved = 3  # superuser_reserved_connections
    assert sum(most.values()) + others <= embedded_servers.MAX_CONNECTIONS - reserved


def test_sizes_limit_the_connections(settings: Any) -> None:
    before = connection_budget.of_machine()
    settings.DB_POOL_SIZE, settings.WORKER_REQUEST_THREADS, settings.DISPATCHER_REQUEST_THREADS = 8, 2, 4
    after = connection_budget.of_machine()
    assert after["web"] == before["web"] - 8
    assert after["workers"] == before["workers"] - 6 * site.WORKERS_MAX[site.DISPATCH_QUEUE] - 6 * 2
    assert after["dispatcher"] == before["dispatcher"] - FairThreads.count() + FairThreads.count(4)
    holding = [threads for threads in FairThreads._all if threads._keeps_connection]
    assert FairThreads.count(4) == 4 * len(holding)


def test_services_count_their_threads_with_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    begin = batcher.DatabaseThread.__init__

    def record(self: batcher.DatabaseThread, name: str) -> None:
        made.append(name)
        begin(self, name)

    monkeypatch.setattr(batcher.DatabaseThread, "__init__", record)
    Dialer()
    assert len(made) == service("leads_dialer").connections
    made.clear()
    Router()
    Processor()  # the one that its router uses
    assert len(made) == service("outbox_router").connections


@pytest.mark.django_db(transaction=True)
def test_a_process_that_may_not_fit_says_so(settings: Any) -> None:
    allowed, others = connection_budget.read_limits()
    assert allowed > others
    with capture_logs() as logs:
        connection_budget.warn_if_too_many("web", 1)
        connection_budget.warn_if_too_many("dispatcher", allowed + 1)
        settings.DB_SESSION_LIMITS = False  # a pooler
        connection_budget.warn_if_too_many("web", allowed + 1)
    (found,) = [entry for entry in logs if entry["event"] == "connections_do_not_fit"]
    assert (found["process"], found["most"], found["allowed"]) == ("dispatcher", allowed + 1, allowed)


@pytest.mark.django_db
def test_a_limit_of_the_database_counts() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {connection.settings_dict['NAME']} CONNECTION LIMIT 7")
    assert connection_budget.read_limits().allowed == 7


@pytest.mark.django_db
def test_check_compares_one_machine_with_the_limit(settings: Any) -> None:
    settings.DEVELOPMENT, settings.DB_POOL_SIZE = False, 10_000
    assert ids(checks.connection_limits(None, databases=["default"])) == ["dispatch.I058"]
    assert checks.connection_limits(None, databases=None) == []
    settings.DB_POOL_SIZE, settings.WORKERS, settings.DISPATCHER_REQUEST_THREADS = 1, {}, 1
    assert checks.connection_limits(None, databases=["default"]) == []


@pytest.mark.parametrize("name", ["DB_POOL_SIZE", "WORKER_REQUEST_THREADS", "DISPATCHER_REQUEST_THREADS"])
def test_negative_sizes_are_refused(settings: Any, name: str) -> None:
    setattr(settings, name, -1)
    assert ids(checks.named(None)) == ["dispatch.E029"]
