"""Cause every fault between several hosts under a gentle load, and check what was lost, doubled and delayed.

PostgreSQL, Redis, two hosts of the application, the provider and a proxy are network namespaces that the test
makes. After each fault, the rows are compared with what clients were promised and with the provider's and the
receiver's records, and the event log is checked. At the end a table is printed, and written to the file SOAK_TABLE
if it is set.

Run by `make soak`; `SOAK_FAULTS=all` causes all faults, and `ARGS="-k 'hosts and clock'"` chooses among them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.outbox.receiver import Receiver
from tests.soak import network
from tests.soak.faults import FAULTS, Fault
from tests.soak.hosts import Hosts, several_hosts
from tests.soak.hosts_load import Load, Watch
from tests.support.histories import history_is_legal
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

BEFORE_S = 6.0  # of load before the fault
GOES_ON_WITHIN_S = 60.0  # after the fault, as docs/architecture.md promises
CALM_WITHIN_S = 240.0  # a call whose end was not reported is asked about after its longest time and a minute

LOOK_EVERY_S = 5.0  # the interval of the lines printed during the fault

COLUMNS = ("Fault", "Promise", "Lost", "Doubled", "Longest silence during it (s)", "Goes on after it (s)", "Notes")


class Site(NamedTuple):
    hosts: Hosts
    load: Load
    table: list[tuple[str, ...]]


@pytest.fixture(scope="module")
def site(django_db_blocker: Any) -> Iterator[Site]:
    """One site for all faults; skipped with the reason where namespaces cannot be made."""
    if reason := network.missing():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    table: list[tuple[str, ...]] = []
    try:
        with django_db_blocker.unblock(), several_hosts(folder) as hosts:
            receiver = Receiver(hosts.address("tester"))
            try:
                yield Site(hosts, Load(hosts.sim, receiver), table)
            finally:
                receiver.close()
    finally:
        write(table)
        shutil.rmtree(folder, ignore_errors=True)


def write(table: list[tuple[str, ...]]) -> None:
    lines = [f"| {' | '.join(row)} |" for row in (COLUMNS, ("---",) * len(COLUMNS), *table)]
    print("\n".join(["", *lines]))  # noqa: T201
    if path := os.environ.get("SOAK_TABLE"):
        Path(path).write_text("\n".join([*lines, ""]))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_between_hosts_loses_nothing_and_doubles_nothing(site: Site, fault: Fault) -> None:
    if fault.missing:
        pytest.skip(fault.missing)
    hosts, load = site.hosts, site.load
    hosts.restarts.clear()
    sending = load.start(hosts.base_url)
    watch, moment = Watch(sending), threading.Event()
    try:
        wait_until(watch.all_grew, CALM_WITHIN_S, hosts.logs)
        moment.wait(BEFORE_S)
        watch.restart()
        with fault.during(hosts, hosts.leader()):
            for _ in range(round(fault.seconds / LOOK_EVERY_S)):
                moment.wait(LOOK_EVERY_S)
                print(described(watch.silences_now()), load.waiting(), flush=True)  # noqa: T201
            silences = dict(watch.silence_s)
        watch.restart()
        ended_at = time.monotonic()
        wait_until(lambda: goes_on(hosts, watch), CALM_WITHIN_S, hosts.logs)
        after = {name: at - ended_at for name, at in watch.first_growth.items()}
        sending.finish()
        wait_until(lambda: sending.done, CALM_WITHIN_S, hosts.logs)
    finally:
        watch.stop()
        sending.stop()
    wait_until(lambda: is_calm(site), CALM_WITHIN_S, lambda: f"{load.left()}\n{hosts.logs()}", 0.5)
    lost, doubled, history = load.lost(), load.doubled(), history_is_legal()
    notes = f"{load.notes()}; restarts {dict(hosts.restarts)}; {history}"
    times = (described(silences), described(after))
    site.table.append((fault.name, fault.promise, str(len(lost)), str(len(doubled)), *times, notes))
    print("\n", site.table[-1])  # noqa: T201
    assert (lost, doubled) == ([], [])
    assert max(after.values()) < GOES_ON_WITHIN_S


def goes_on(hosts: Hosts, watch: Watch) -> bool:
    hosts.revive()
    return watch.all_grew()


def is_calm(site: Site) -> bool:
    site.hosts.revive()
    return site.load.settled()


def described(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
