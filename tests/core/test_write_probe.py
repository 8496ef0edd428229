"""A PostgreSQL that answers and rejects writes is reported: its disk is full, or it is read-only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
import requests
from django.db import connection, connections
from django.test import Client

from dispatch.console import health as console_health
from dispatch.core.db import write_probe
from dispatch.core.models import WriteProbe
from dispatch.core.web import probes
from notifications import heartbeat
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

GAUGE = "dispatch_database_rejects_writes"


@pytest.fixture(autouse=True)
def fresh_probes(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Probe at each request, and wait for the result."""
    monkeypatch.setattr(write_probe, "EVERY_S", 0.0)
    monkeypatch.setattr(write_probe, "WAIT_S", PATIENCE)
    monkeypatch.setattr(write_probe, "SLOW_S", PATIENCE)
    monkeypatch.setattr(probes, "LIMIT_S", PATIENCE)
    probes.reset()
    WriteProbe.objects.all().delete()
    yield
    probes.reset()


@contextmanager
def writes_raise(sqlstate: str) -> Iterator[None]:
    """Make every change of the probe's row fail in PostgreSQL, like a disk without space."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse_writes() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'secret details' USING ERRCODE = '{sqlstate}'; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER refuse_writes BEFORE INSERT OR UPDATE ON core_writeprobe "
            "EXECUTE FUNCTION refuse_writes()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse_writes CASCADE")


@contextmanager
def read_only_sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give new sessions of the probes read-only transactions, like those of a standby."""
    given = connection.settings_dict["OPTIONS"]
    options = f"{given.get('options', '')} -c default_transaction_read_only=on"
    with monkeypatch.context() as patch:
        patch.setitem(given, "options", options)
        yield


def ready(url: str) -> tuple[int, list[tuple[str, str]]]:
    """Return the status of /readyz, and what is missing."""
    answer = requests.get(f"{url}/readyz", timeout=PATIENCE)
    return answer.status_code, [(error["code"], error["detail"]) for error in answer.json().get("errors", [])]


def health_bar(browser: Client) -> str:
    console_health.reset()
    return browser.get("/health/").content.decode()


def figure(browser: Client) -> str:
    (line,) = [
        line for line in browser.get("/metrics").content.decode().splitlines() if line.startswith(f"{GAUGE} ")
    ]
    return line.removeprefix(f"{GAUGE} ")


@pytest.mark.parametrize(
    ("sqlstate", "words"),
    [
        ("53100", write_probe.FULL),  # disk full
        ("58030", write_probe.REJECTED),  # an I/O error
    ],
)
def test_failing_writes_are_reported_until_they_succeed(app_url: str, sqlstate: str, words: str) -> None:
    browser = factories.browser(factories.dispatcher(factories.organization()))
    assert (ready(app_url), figure(browser)) == ((200, []), "0.0")
    with writes_raise(sqlstate):
        assert ready(app_url) == (503, [("database", words)])
        assert requests.get(f"{app_url}/servez", timeout=PATIENCE).status_code == 200
        assert (words in health_bar(browser), figure(browser)) == (True, "1.0")
        assert "secret details" not in health_bar(browser)
        assert words in heartbeat.find_problems()
    assert ready(app_url) == (200, [])
    assert ("saved" in health_bar(browser), figure(browser)) == (False, "0.0")


def test_read_only_sessions_are_reported(app_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ready(app_url) == (200, [])
    with read_only_sessions(monkeypatch):
        assert ready(app_url) == (503, [("database", write_probe.READ_ONLY)])
    assert ready(app_url) == (200, [])


def test_the_probe_needs_space_on_the_disk() -> None:
    """A change of a row alone succeeds on a full disk while the table's pages have room."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(write_probe._LIMITS, [write_probe.WORK_MEM, "6s", "1s"])
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {write_probe.FILE}")
        (plan,) = cursor.fetchone()[0]
        cursor.execute("ROLLBACK")
    assert plan["Plan"]["Temp Written Blocks"] > 0


def test_a_limit_of_temporary_files_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    given = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(given, "options", f"{given.get('options', '')} -c temp_file_limit=8kB")
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded), write_probe.probe_link.connect() as raw:
        raw.execute("SET work_mem = '64kB'")
        raw.execute(write_probe.FILE)
    assert write_probe.find_fault() is None
    assert WriteProbe.objects.count() == 1


def test_each_process_writes_one_row() -> None:
    for _ in range(3):
        assert write_probe.find_fault() is None
    (row,) = WriteProbe.objects.all()
    assert row.slot == write_probe._slot


def test_a_row_that_another_session_holds_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_probe.find_fault() is None
    monkeypatch.setattr(write_probe, "LOCK_S", 0.05)
    session = connections.create_connection("default")
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("SELECT FROM core_writeprobe FOR UPDATE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            write_probe.write()
        assert write_probe.find_fault() is None
    finally:
        session.rollback()
        session.close()


def test_a_database_without_connections_says_nothing_about_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    with writes_raise("53100"):
        assert write_probe.find_fault() is not None
        with monkeypatch.context() as patch:
            patch.setitem(connection.settings_dict, "HOST", "/nonexistent")
            fault = write_probe.find_fault()
            assert fault is not None
            assert fault.words == write_probe.FULL
    assert write_probe.find_fault() is None


def test_many_callers_share_one_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, release = [], threading.Event()

    def ask() -> None:
        asked.append(threading.current_thread().name)
        release.wait(PATIENCE)

    monkeypatch.setattr(write_probe, "EVERY_S", 3600.0)
    prober = write_probe.Prober(ask)
    with ThreadPoolExecutor(20) as callers:
        waiting = [callers.submit(prober.find_fault, PATIENCE) for _ in range(20)]
        wait_until(lambda: asked)
        release.set()
        assert [caller.result() for caller in waiting] == [None] * 20
    assert prober.find_fault() is None
    assert asked == ["probe-writes"]


def test_a_write_that_does_not_end_is_a_fault_and_holds_up_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    prober = write_probe.Prober(lambda: release.wait(PATIENCE) or None)
    monkeypatch.setattr(write_probe, "SLOW_S", 0.0)
    assert prober.find_fault(wait_s=0.0) == write_probe.SLOW
    monkeypatch.setattr(write_probe, "SLOW_S", PATIENCE)
    release.set()
    wait_until(lambda: prober.find_fault() is None)


def test_postgresql_cancels_a_write_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_probe, "STATEMENT_S", 0.05)
    monkeypatch.setattr(write_probe, "FILE", "SELECT pg_sleep(60)")
    fault = write_probe.find_fault()
    assert fault is not None
    assert fault.words == write_probe.SLOW.words
