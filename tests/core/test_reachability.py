"""A process that is cut from the phone provider gives way to one that reaches it, and to nobody else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from django.db import connection
from django.test import Client

from dispatch.console import health
from dispatch.core.models import Leadership, Reachability
from dispatch.core.observability import gauges
from dispatch.core.runtime import leader_election, loop_runner, reachability
from dispatch.core.runtime.leader_election import Election
from dispatch.core.runtime.loops import Loop
from dispatch.core.runtime.reachability import Process
from tests.core.loops import runs
from tests.support import factories
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

# A candidate that a slow machine delays comes first nevertheless.
SLOW_CANDIDATE_RENEWALS = 1000
PROVIDER, OTHER = "https://provider.example", "https://provider.other.example"


@pytest.fixture(autouse=True)
def soon(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elections and probes that take a moment instead of seconds."""
    settings.LEADER_RENEW_S = 0.05
    settings.PROVIDER_LOST_AFTER_S = 0.1
    monkeypatch.setattr(reachability, "PROBE_S", 0.0)


def unreachable(server: str) -> None:
    raise ConnectionError(server)


def a_host(name: str, *unreached: str, loops: str = "alone") -> Process:
    """Return a process of another host that reaches all servers except these."""
    process = Process(name)
    process.loops = frozenset(loops.split())
    process.probe = lambda server: unreachable(server) if server in unreached else None
    return process


def exchange(*processes: Process) -> None:
    """Let all processes learn from each other what each one reaches."""

    def all_know() -> bool:
        for process in processes:
            process.step()
        rows = set(Reachability.objects.values_list("process", "server"))
        servers = {server for _, server in rows}
        return rows == {(process.name, server) for process in processes for server in servers}

    wait_until(all_know)
    for process in processes:
        process.step()


def test_only_a_process_with_the_loop_that_reaches_more_relieves_another() -> None:
    cut, other = a_host("a", PROVIDER), a_host("b")
    cut.record_failure(PROVIDER, "unplugged")
    assert not cut.is_relieved("alone")
    exchange(cut, other)

    assert cut.is_relieved("alone")
    assert not cut.is_relieved("neighbor"), "nobody else runs it"
    assert not other.is_relieved("alone")
    assert reachability.cut_off_hosts() == ["a"]
    assert list(gauges.hosts_cut_off()) == [((), 1.0)]

    cut.probe = lambda server: None
    wait_until(lambda: cut.step() or not cut.failing())
    assert not cut.is_relieved("alone")
    assert reachability.cut_off_hosts() == []


def test_processes_that_miss_different_servers_do_not_relieve_each_other() -> None:
    one, two = a_host("a", PROVIDER), a_host("b", OTHER)
    one.record_failure(PROVIDER, "unplugged")
    two.record_failure(OTHER, "unplugged")
    exchange(one, two)

    assert not one.is_relieved("alone")
    assert not two.is_relieved("alone")


def test_old_reports_relieve_nobody() -> None:
    cut, other = a_host("a", PROVIDER), a_host("b")
    cut.record_failure(PROVIDER, "unplugged")
    exchange(cut, other)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE core_reachability SET reported_at = reported_at - interval '1 minute'")
    cut._read()

    assert not cut.is_relieved("alone")
    assert reachability.cut_off_hosts() == []


def test_failures_count_unless_the_server_was_steady_before(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PROVIDER_LOST_AFTER_S = 10.0
    now, process = 1000.0, Process("a")  # it does not probe
    monkeypatch.setattr(reachability, "time", SimpleNamespace(monotonic=lambda: now))

    def fails() -> bool:
        process.record_failure(PROVIDER, "timeout")
        return process.may_be_cut_off("alone")

    assert not process.may_be_cut_off("alone")
    assert fails()
    now += 8
    process.record_success(PROVIDER)
    assert not process.may_be_cut_off("alone")
    assert fails(), "others have not had time to report"
    now += 8
    assert not fails(), "they have, although it was reached between"
    process.record_success(PROVIDER)
    now += reachability.STEADY_AFTER_S + 1
    assert fails()
    now += reachability.STEADY_AFTER_S + 1
    assert not fails(), "it was not reached between"


def test_while_every_server_is_reached_nothing_is_written() -> None:
    process = a_host("a")
    process.record_success(PROVIDER)
    process.step()
    assert not process.is_relieved("alone")
    assert not Reachability.objects.exists()


def test_a_process_without_the_loop_asks_others_by_itself() -> None:
    worker, other = a_host("a", PROVIDER, loops=""), a_host("b")
    worker.record_failure(PROVIDER, "unplugged")
    assert not worker.is_relieved("alone")  # it asks
    wait_until(lambda: other.step() or Reachability.objects.filter(failing_since=None).exists())
    worker._read_at = float("-inf")  # as after READ_S

    assert worker.is_relieved("alone")


def test_a_leader_that_is_cut_off_hands_over_and_stays_out(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_election, "PATIENCE_RENEWALS", SLOW_CANDIDATE_RENEWALS)
    cut, other = a_host("a", PROVIDER), a_host("b")
    steps: list[int] = []
    needy = Loop("alone", lambda: steps.append(1), 0.01, elected=True, needs_provider=True)
    neighbor = Loop("neighbor", lambda: None, 0.01, elected=True)
    candidate = Election("loop:alone")
    with structlog.testing.capture_logs() as logs, runs(needy, neighbor, process=cut):
        wait_until(lambda: steps)
        cut.record_failure(PROVIDER, "unplugged")
        wait_until(lambda: exchange(cut, other) or candidate.step(), message="it does not hand over")
        assert Election("loop:neighbor").step() is None  # it needs no provider
        led = Leadership.objects.get(name="loop:alone")
        for _ in range(20):
            exchange(cut, other)
            candidate.step()
        assert Leadership.objects.get(name="loop:alone").epoch == led.epoch
        assert Leadership.objects.get(name="loop:alone").holder == led.holder == candidate.holder
    assert [entry["loops"] for entry in logs if entry["event"] == "leaderships_handed_over"] == ["alone"]
    client.force_login(
        factories.dispatcher(factories.organization()), backend="django.contrib.auth.backends.ModelBackend"
    )
    health.reset()
    assert "1 host can't reach the phone provider" in client.get("/health/").content.decode()


def test_a_leader_hands_over_once_although_it_leads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    renewals = leader_election.PATIENCE_RENEWALS
    monkeypatch.setattr(leader_election, "PATIENCE_RENEWALS", SLOW_CANDIDATE_RENEWALS)
    monkeypatch.setattr(loop_runner, "FIRST_HANDOVER_PAUSE_S", 3600.0)
    cut, other = a_host("a", PROVIDER), a_host("b")
    steps: list[int] = []
    needy = Loop("alone", lambda: steps.append(1), 0.01, elected=True, needs_provider=True)
    candidate = Election("loop:alone")
    with structlog.testing.capture_logs() as logs, runs(needy, process=cut):
        wait_until(lambda: steps)
        cut.record_failure(PROVIDER, "unplugged")
        wait_until(lambda: exchange(cut, other) or candidate.step())
        monkeypatch.setattr(leader_election, "PATIENCE_RENEWALS", renewals)
        candidate.resign()  # the other process ends
        steps.clear()
        wait_until(lambda: steps, message="nobody leads, although no other process wants to")
        wait_until(lambda: exchange(cut, other) or len(steps) > 50)  # several renewals later
    assert len([entry for entry in logs if entry["event"] == "leaderships_handed_over"]) == 1


def test_a_leader_keeps_leading_while_no_other_process_reaches_the_provider() -> None:
    cut, also_cut, without = a_host("a", PROVIDER), a_host("b", PROVIDER), a_host("c", loops="neighbor")
    steps: list[int] = []
    needy = Loop("alone", lambda: steps.append(1), 0.01, elected=True, needs_provider=True)
    candidate = Election("loop:alone")
    with runs(needy, process=cut):
        wait_until(lambda: steps)
        cut.record_failure(PROVIDER, "unplugged")
        exchange(cut, also_cut, without)
        wait_until(lambda: cut.failing_s() > 0.2)
        steps.clear()
        wait_until(lambda: exchange(cut, also_cut, without) or len(steps) > 50)
        assert candidate.step() is None
