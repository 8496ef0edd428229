"""The upgrade guide is followed under load: the previous release and this one work side by side and lose nothing.

The previous release makes its database and runs on it. Then the commands of docs/operations/upgrade.md run as they
are written, while forms, leads, messages and schedules arrive. Processes of both versions run side by side for a
while, before the old ones are stopped in the order of the guide.

Run by `make soak`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from dispatch.core.models import Event, Leadership
from tests.core.outages import own_valkey
from tests.harness.postgres_pair import BIN, own_postgres, using
from tests.harness.releases import clone_at, previous_release, working_commit
from tests.outbox.receiver import Receiver
from tests.phones import Simulator
from tests.soak.hosts_load import Load, Seed, Sending, Watch
from tests.soak.site import HURRIED
from tests.soak.test_failover_soak import QUICK_LEADS
from tests.soak.versions import (
    COMMANDS,
    WEBS,
    Operator,
    Version,
    commands_of_the_guide,
    offline_python,
    path_with,
    reverse_proxy,
)
from tests.support.processes import environment, free_port
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

DATABASE = "dispatch"
PACE = 2.0  # a form, a lead every two seconds, and so on: a dozen and a half processes share the machine
ALONE_S = 8.0  # of load on the old version
SIDE_BY_SIDE_S = 25.0
CALM_WITHIN_S = 300.0
SETTINGS = {
    **HURRIED,
    **QUICK_LEADS,
    "UNKNOWN_LISTING_GAP_S": "10",
    "CALL_TIME_LIMIT_S": "40",
}  # consistent for `check --deploy`
# A word of each block of commands, in the order of the guide.
STEPS = ("pg_dump", "git worktree add", "check --deploy", "manage.py migrate", "/readyz", "verify_audit_log")

# Run by the previous release: an organization with lines, technicians and a campaign. Prints a Seed.
SEED = """
import json, sys, django
django.setup()
from dispatch.jobs.models import DispatchPolicy
from dispatch.leads.models import CallingRule, Campaign, LeadDispatch
try:
    from tests.support import factories as make
except ImportError:  # in 0.1.0
    from tests import factories as make
given = json.loads(sys.argv[1])
CallingRule.objects.all().delete()  # the usual hours
made = make.organization("Copper State Plumbing")
account = make.account(made, provider="twilio", calls_per_second=30.0, **given)
pool = make.pool(made, concurrency=1000)
make.number(made, account=account, pool=pool, max_channels=5)
make.number(made, account=account, pool=pool, max_channels=8, reserved_for_offers=6)
make.service_type(made, "plumbing")
DispatchPolicy.objects.create(organization=made, answer_timeout_s=15, ring_timeout_s=14, max_candidates=5,
                              line_wait_s=600, technician_wait_s=600, auto_pause_misses=0)
phones = [f"+1480255{n:04d}" for n in range(20)]
for n, phone in enumerate(phones):
    make.technician(made, f"Technician {n}", max_open_jobs=10_000, phone=phone)
make.dispatcher(made, "Dora")
LeadDispatch.objects.create(organization=made, mode="live")
Campaign.objects.create(organization=made, pool=pool, code="autumn", name="Autumn", script="Hello.",
                        window_from="00:00", window_until="00:00", keeps_holidays=False, time_limit_s=30,
                        max_attempts=10)
print(json.dumps({"key": make.api_key(made), "campaign": "autumn", "technicians": phones}))
"""


@pytest.fixture
def release() -> str:
    """The commit of the previous release."""
    commit = previous_release()
    if not commit:
        pytest.skip("the history of this repository does not contain the previous release (a shallow clone?)")
    return commit


def test_the_upgrade_guide_under_load(
    release: str, slow_sim: Simulator, receiver: Receiver, tmp_path: Path, django_db_blocker: Any
) -> None:
    steps = commands_of_the_guide()
    assert [word for word, block in zip(STEPS, steps, strict=True) if word not in block] == []
    back_up, install, check, migrate, ready, check_logs = steps
    old_source = clone_at(release, tmp_path / "dispatch")
    ports = {version: {web: free_port() for web in WEBS} for version in ("old", "new")}
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        server, redis = stack.enter_context(own_postgres()), stack.enter_context(own_valkey(tmp_path / "redis"))
        server.execute(f"CREATE DATABASE {DATABASE}")
        stack.enter_context(using(server.url(DATABASE)))
        url = stack.enter_context(reverse_proxy([*ports["old"].values(), *ports["new"].values()]))
        env = environment(
            DATABASE,
            **SETTINGS,
            DATABASE_URL=server.url(DATABASE),
            REDIS_URL=redis.url,
            PUBLIC_BASE_URL=url,
            SIMULATOR_URL=slow_sim.base_url,
            DISPATCH_DATA_DIR=str(settings.DATA_DIR),
            SECRET_KEY=settings.SECRET_KEY,
            FIELD_ENCRYPTION_KEYS=",".join(settings.FIELD_ENCRYPTION_KEYS),
        )
        run(old_source, env, "manage.py", "migrate", "--verbosity=0")
        seed = seed_with(old_source, env, slow_sim)
        old = Version("old", old_source, env, ports["old"])
        stack.callback(old.kill)
        old.start_all()
        load = Load(slow_sim, receiver, seed, PACE)
        sending = load.start(url)
        stack.callback(sending.stop)
        watch = Watch(sending)
        stack.callback(watch.stop)
        goes_on(watch, old)
        for_a_while(ALONE_S)

        more = {
            "COMMIT": working_commit(),
            "SITE": url,
            "PYTHON": str(offline_python(tmp_path)),
            "PATH": path_with(BIN),
        }
        operator = Operator(old_source, {**env, **more})
        for block in (back_up, install, check, migrate):
            print(operator.run(block))  # noqa: T201
            goes_on(watch, old)
        assert operator.folder == tmp_path / "dispatch-new"

        new = Version("new", operator.folder, env, ports["new"])
        stack.callback(new.kill)
        for name in COMMANDS:
            new.start(name)
            operator.run(ready)
        for_a_while(SIDE_BY_SIDE_S)
        goes_on(watch, old, new)
        for kind in ("dispatcher", "worker", "web"):
            for name in [name for name, command in COMMANDS.items() if command[0] == kind]:
                old.stop(name)
                operator.run(ready)
            goes_on(watch, old, new)
        print(operator.run(check_logs))  # noqa: T201

        sending.finish()
        wait_until(lambda: sending.done, CALM_WITHIN_S, new.logs)
        watch.stop()
        sending.stop()
        wait_until(load.settled, CALM_WITHIN_S, lambda: f"{load.left()}\n{new.logs()}", 0.5)
        print(operator.run(check_logs), load.notes(), described(sending, watch))  # noqa: T201
        assert (load.lost(), load.doubled()) == ([], [])
        assert load.failed == [], "\n".join(load.failed)
        assert new.ended() == []
        assert new.errors() == []
        slow_sim.assert_no_complaints()


def run(folder: Path, env: dict[str, str], *command: str) -> str:
    """Run a command with the code in `folder`; return what it printed."""
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def seed_with(source: Path, env: dict[str, str], sim: Simulator) -> Seed:
    """Make the organization with the code in `source`."""
    credentials = json.dumps({"account_sid": sim.account_sid, "auth_token": sim.auth_token})
    made = json.loads(run(source, env, "-c", SEED, credentials).strip().splitlines()[-1])
    return Seed(made["key"], made["campaign"], frozenset(made["technicians"]))


def for_a_while(seconds: float) -> None:
    """Leave the load on for a time. What is proved does not depend on it."""
    threading.Event().wait(seconds)


def goes_on(watch: Watch, *versions: Version) -> None:
    """Wait until each part of the site has done something more, and no process has ended."""
    watch.restart()

    def found() -> str:
        errors = [line for version in versions for line in version.errors()]
        return "\n".join([f"no progress: {watch.standing_still()}", *errors[-40:]])

    wait_until(watch.all_grew, PATIENCE, found)
    assert [ended for version in versions for ended in version.ended()] == []


def described(sending: Sending, watch: Watch) -> str:
    counts = {name: count() for name, count in sending.progress().items()}
    return f"{counts}; {Event.objects.count()} events; {Leadership.objects.count()} leaderships"
