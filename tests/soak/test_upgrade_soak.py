"""The upgrade guide is followed under load: the previous release and this one work side by side and lose nothing.

The previous release creates its database and runs on it. Then this release checks the environment and migrates
while everything runs, and its processes replace the others one after another (docs/operations/upgrade.md).

Run by `make soak`.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from psycopg import sql

from dispatch.core.models import Event
from dispatch.jobs.models import Job, Submission
from dispatch.telephony.models import Call
from tests.harness.releases import export_release, previous_release
from tests.phones import Simulator, answer, busy, ignore, mix
from tests.soak.clients import Clients
from tests.soak.site import Site, site
from tests.soak.test_jobs_soak import lines_are_never_exceeded, nobody_is_assigned_twice, nobody_is_called_twice
from tests.support.database import reconnect
from tests.support.factories import form
from tests.support.histories import history_is_legal
from tests.support.processes import ROOT, database_url, environment
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.django_db(transaction=True), pytest.mark.timeout(3000)]

EVERY_S = 0.5
CALM_WITHIN_S = 300
# Of the guide: dispatchers, then workers, then web.
ORDER = ("dispatcher 1", "dispatcher 2", "worker 1", "worker 2", "timeout worker", "web")

# Run by the previous release: an organization with lines and technicians. Prints the API key.
SEED = """
import json, sys, django
django.setup()
from dispatch.jobs.models import DispatchPolicy
from tests import factories as make
given = json.loads(sys.argv[1])
made = make.organization("Copper State Plumbing")
account = make.account(made, calls_per_second=30.0, **given)
pool = make.pool(made, concurrency=22)
for _ in range(5):
    make.number(made, account=account, pool=pool, max_channels=5)
make.service_type(made, "plumbing")
DispatchPolicy.objects.create(organization=made, answer_timeout_s=15, ring_timeout_s=14, max_candidates=3,
                              line_wait_s=600, technician_wait_s=600)
for n in range(40):
    make.technician(made, f"Technician {n}", max_open_jobs=100)
make.dispatcher(made, "Dora")
print(make.api_key(made))
"""


@pytest.fixture
def sim() -> Iterator[Simulator]:
    """Slower than that of the other tests, so that replacements meet calls under way."""
    with Simulator.start(speed=4.0) as simulator:
        yield simulator


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The code of the previous release."""
    commit = previous_release()
    if commit is None:
        pytest.skip("The history of this repository does not contain the previous release (a shallow clone?)")
    return export_release(commit, tmp_path / "release")


@contextmanager
def empty_database(name: str) -> Iterator[None]:
    """A database of this name, to which this process is connected."""
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(database_url("postgres"), autocommit=True) as server:
        server.execute(drop)
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        before = connection.settings_dict["NAME"]
        reconnect()
        connection.settings_dict["NAME"] = name
        try:
            yield
        finally:
            reconnect()
            connection.settings_dict["NAME"] = before
            server.execute(drop)


def run(folder: Path, env: dict[str, str], *command: str) -> str:
    """Run a command with the code in `folder`; return what it printed."""
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_upgrade_guide_under_load(release: Path, sim: Simulator, tmp_path: Path, settings: Any) -> None:
    settings.SIMULATOR_URL = sim.base_url
    sim.others_will(mix((6, answer(press="1")), (1, answer(press="2")), (1, ignore()), (1, busy())))
    with empty_database(f"{connection.settings_dict['NAME']}_upgrade"):
        env = command_environment()
        run(release, env, "manage.py", "migrate", "--verbosity=0")
        credentials = json.dumps({"account_sid": sim.account_sid, "auth_token": sim.auth_token})
        key = run(release, env, "-c", SEED, credentials).strip().splitlines()[-1]
        with site(sim, tmp_path, source=release, **keys()) as here:
            is_over = threading.Event()
            url = f"{here.base_url}/api/v1/submissions/"
            clients = Clients(url, key, forms_until(is_over), EVERY_S, seed=1)
            clients.start()
            try:
                goes_on(here, clients)
                run(ROOT, env, "manage.py", "check")
                print(run(ROOT, env, "manage.py", "migrate"))  # noqa: T201
                goes_on(here, clients)
                here.source = ROOT
                for name in ORDER:
                    here.replace(name)
                    wait_until(here.ready, CALM_WITHIN_S, here.logs)
                    goes_on(here, clients)
                is_over.set()
                wait_until(lambda: clients.done, CALM_WITHIN_S, here.logs)
            finally:
                clients.stop()
            everything_settles(here, sim)
            assert here.ended() == []
        assert not clients.refused
        assert all(len(ids) == 1 for ids in clients.answered.values()), "one key, two submissions"
        answered = {next(iter(ids)) for ids in clients.answered.values()}
        assert set(Job.objects.values_list("submission_id", flat=True)) == answered
        nobody_is_called_twice(sim)
        nobody_is_assigned_twice(sim)
        lines_are_never_exceeded(sim)
        print(history_is_legal())  # noqa: T201


def forms_until(is_over: threading.Event) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield forms with their keys until the upgrade is over."""
    for number in itertools.count():
        if is_over.is_set():
            return
        yield f"form-{number}", form("plumbing")


def keys() -> dict[str, str]:
    """The keys that both releases use."""
    return {"SECRET_KEY": settings.SECRET_KEY, "FIELD_ENCRYPTION_KEYS": ",".join(settings.FIELD_ENCRYPTION_KEYS)}


def command_environment() -> dict[str, str]:
    """Return the environment of commands on the database in use."""
    return environment(connection.settings_dict["NAME"], **keys())


def goes_on(here: Site, clients: Clients) -> None:
    """Wait until more forms were accepted and more jobs assigned than now."""
    accepted = len(clients.answered)
    last = Event.objects.order_by("-id").values_list("id", flat=True).first() or 0

    def has_moved() -> bool:
        assigned = Event.objects.filter(id__gt=last, kind="job.assigned").count()
        return assigned >= 3 and len(clients.answered) >= accepted + 3

    wait_until(has_moved, CALM_WITHIN_S, here.logs)


def everything_settles(here: Site, sim: Simulator) -> None:
    """All jobs end, and all calls too."""
    moment = threading.Event()

    def settled() -> bool:
        moment.wait(0.5)
        return not (
            Submission.objects.filter(status="received").exists()
            or Job.objects.filter(status="dispatching").exists()
            or Call.objects.filter(ended_at=None).exists()
            or sim.open_calls()
        )

    wait_until(settled, CALM_WITHIN_S, here.logs)
