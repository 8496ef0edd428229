"""Patroni moves PostgreSQL's primary under load: by a planned switchover, after a power cut, and after a hang.

Forms, leads, messages and schedules arrive all the while. Nothing acknowledged is lost, nothing is done twice, and
everything goes on within GOES_ON_WITHIN_S of each promotion, without a restart of any process.

Run by `make soak`; it needs Debian's `patroni` and `etcd-server`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings

from tests.core.outages import own_valkey
from tests.harness import patroni
from tests.harness.patroni import Node, PatroniCluster, patroni_cluster
from tests.harness.postgres_pair import using
from tests.outbox.receiver import Receiver
from tests.phones import Simulator
from tests.soak.hosts_load import Load, Watch
from tests.soak.site import HURRIED
from tests.soak.test_failover_soak import QUICK_LEADS
from tests.soak.versions import Version, answers
from tests.support.database import reconnect
from tests.support.histories import history_is_legal
from tests.support.processes import ROOT, Process, environment, free_port
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

DATABASE = "dispatch"
BEFORE_S = 5.0  # of load before each fault
GOES_ON_WITHIN_S = 30.0  # of the promotion
CALM_WITHIN_S = 300.0
NAMES = ("dispatcher 1", "dispatcher 2", "worker 1", "timeout worker", "message worker", "status worker", "web 1")
PACE = 1.5


def switch_over(primary: Node) -> None:
    """A planned switchover: nothing is broken, and the former primary becomes a standby."""
    primary.switch_over()


def cut_power(primary: Node) -> None:
    primary.kill()


def hang(primary: Node) -> None:
    primary.hang()


FAULTS = (switch_over, cut_power, hang)


@pytest.fixture
def cluster() -> Iterator[PatroniCluster]:
    if reason := patroni.missing():
        pytest.skip(reason)
    with patroni_cluster() as made:
        yield made


def test_patroni_moves_the_primary_under_load(
    cluster: PatroniCluster, slow_sim: Simulator, receiver: Receiver, tmp_path: Path, django_db_blocker: Any
) -> None:
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        redis = stack.enter_context(own_valkey(tmp_path / "redis"))
        with psycopg.connect(cluster.primary().url("postgres"), autocommit=True) as session:
            session.execute(f"CREATE DATABASE {DATABASE}".encode())
        stack.enter_context(using(cluster.url(DATABASE)))
        port = free_port()
        env = environment(
            DATABASE,
            **HURRIED,
            **QUICK_LEADS,
            DATABASE_URL=cluster.url(DATABASE),
            REDIS_URL=redis.url,
            PUBLIC_BASE_URL=f"http://127.0.0.1:{port}",
            SIMULATOR_URL=slow_sim.base_url,
            DISPATCH_DATA_DIR=str(settings.DATA_DIR),
        )
        migration = Process(("migrate", "--skip-checks"), env)
        assert migration.ends(10 * PATIENCE) == 0, migration.log()
        here = Version("patroni", ROOT, env, {"web 1": port})
        stack.callback(here.kill)
        load = Load(slow_sim, receiver, pace=PACE)
        here.start_all(*NAMES)
        sending = load.start(f"http://127.0.0.1:{port}")
        stack.callback(sending.stop)
        watch = Watch(sending)
        stack.callback(watch.stop)
        took = [move_primary(fault, cluster, watch, here) for fault in FAULTS]
        sending.finish()
        wait_until(lambda: sending.done, CALM_WITHIN_S, here.logs)
        watch.stop()
        sending.stop()
        reconnect()
        wait_until(load.settled, CALM_WITHIN_S, lambda: f"{load.left()}\n{here.logs()}", 0.5)
        print("\n".join(took), load.notes(), history_is_legal(), sep="\n")  # noqa: T201
        assert (load.lost(), load.doubled()) == ([], [])
        assert here.ended() == []


def move_primary(fault: Any, cluster: PatroniCluster, watch: Watch, here: Version) -> str:
    """Cause the fault under load, and wait until everything goes on; return how long it took."""
    goes_on(watch, here)
    threading.Event().wait(BEFORE_S)
    primary, began = cluster.primary(), time.monotonic()
    fault(primary)
    _, promoted_at = cluster.wait_for_primary(other_than=primary)
    goes_on(watch, here)
    after = {name: round(at - promoted_at, 1) for name, at in watch.first_growth.items()}
    summary = f"{fault.__name__}: promoted after {promoted_at - began:.1f} s, goes on after it (s): {after}"
    print(summary, flush=True)  # noqa: T201
    if fault is not switch_over:
        primary.kill()
        primary.start()
    cluster.wait_for_standby()
    wait_until(lambda: answers(here.port("web 1"), "readyz"), message=here.logs)
    assert here.ended() == []
    assert max(after.values()) < GOES_ON_WITHIN_S, summary
    return summary


def goes_on(watch: Watch, here: Version) -> None:
    """Wait until each part of the site has done something more."""
    watch.restart()
    wait_until(watch.all_grew, CALM_WITHIN_S, lambda: f"no progress: {watch.standing_still()}\n{here.logs()}")
