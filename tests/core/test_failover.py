"""With several hosts, sessions are opened at the one that accepts writes, and a promotion needs no restart."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from psycopg.pq import TransactionStatus
from structlog.testing import capture_logs

from dispatch.core.checks import servers
from dispatch.core.db import pooler
from dispatch.core.db.postgres import former_primary
from dispatch.core.runtime import preflight
from dispatch.core.server_addresses import postgres_settings
from dispatch.core.web import health, probes
from dispatch.jobs.models import Job, Submission
from dispatch.telephony.models import Call
from tests.harness.postgres_pair import PostgresPair, database_pair, pair
from tests.phones import Simulator, answer
from tests.soak.clients import Clients
from tests.soak.site import site
from tests.support import factories as make
from tests.support.database import reconnect
from tests.support.waiting import wait_until

__all__ = ["database_pair", "pair"]

pytestmark = pytest.mark.django_db(transaction=True)

FORMS = 24
WRITABLE = "SELECT NOT pg_is_in_recovery()"


def connect(url: str) -> psycopg.Connection[Any]:
    config = postgres_settings(url)
    return psycopg.connect(
        host=config["HOST"], port=config["PORT"], user=config["USER"], dbname=config["NAME"], **config["OPTIONS"]
    )


@pytest.fixture
def probe() -> Iterator[None]:
    """Make the probes connect with the current settings; restore them afterwards."""
    probes.reset()
    yield
    probes.reset()


@pytest.mark.usefixtures("probe")
def test_every_session_is_opened_at_the_host_that_accepts_writes(
    database_pair: PostgresPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database_pair.url(standby_first=True, options="")  # read-write is the default with several hosts
    config = postgres_settings(url)
    for name in ("HOST", "PORT"):
        monkeypatch.setitem(connection.settings_dict, name, config[name])
    reconnect()
    with connect(url) as session:
        assert session.execute(WRITABLE).fetchone() == (True,)
    with connection.cursor() as cursor:
        cursor.execute(WRITABLE)
        assert cursor.fetchone() == (True,)
    assert health.missing_database() is None
    assert health.database_link._raw is not None
    assert health.database_link._raw.execute(WRITABLE).fetchone() == (True,)
    assert pooler.fault() is None
    assert servers(None, databases=["default"]) == []
    with capture_logs() as logs:
        preflight.check()
    assert logs == []

    database_pair.kill_primary()
    found = health.missing_database()
    assert found is not None
    assert found.part == "database"
    with capture_logs() as logs:
        preflight.check()  # an outage is no reason not to start
    assert [line["event"] for line in logs] == ["preflight_skipped"]
    database_pair.promote()
    assert health.missing_database() is None
    assert health.database_link._raw.execute(WRITABLE).fetchone() == (True,)


def test_a_host_that_does_not_answer_does_not_use_up_the_wait_for_a_connection(pair: PostgresPair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and says nothing
        silent_host = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with connect(f"postgresql://postgres@{silent_host},{pair.primary.address}/{pair.database}") as session:
            assert session.execute(WRITABLE).fetchone() == (True,)
    assert time.monotonic() - began >= 2.0
    assert postgres_settings(pair.url())["OPTIONS"]["connect_timeout"] < 5


@pytest.mark.usefixtures("probe")
def test_connections_to_a_primary_that_hangs_are_cut_after_the_promotion(
    database_pair: PostgresPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host still acknowledges what is sent, so no timeout of the connection ends the wait."""
    for name in ("LOOK_EVERY_S", "STUCK_AFTER_S", "ASK_EVERY_S"):
        monkeypatch.setattr(former_primary, name, 0.1)
    monkeypatch.setattr(former_primary, "watch", former_primary.Watch())
    config = postgres_settings(database_pair.url(standby_first=True))
    for name in ("HOST", "PORT"):
        monkeypatch.setitem(connection.settings_dict, name, config[name])
    reconnect()

    def ask() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT inet_server_port()::text")
            return str(cursor.fetchone()[0])

    assert ask() == str(database_pair.primary.port)
    assert health.missing_database() is None
    database_pair.primary.hang()
    with ThreadPoolExecutor(2) as beside, pytest.raises(OperationalError):
        probe = beside.submit(health.missing_database)
        beside.submit(database_pair.promote)
        ask()
    connection.close()
    assert ask() == str(database_pair.standby.port)
    assert probe.result() is None  # it is asked once more, at the new primary


def test_a_long_statement_on_a_host_that_accepts_writes_is_not_cut(database_pair: PostgresPair) -> None:
    """Neither if another host accepts them too, as a second pooler does."""
    watch = former_primary.Watch()
    used = ("127.0.0.1", database_pair.primary.port)
    other = ("127.0.0.1", database_pair.standby.port)

    def find_used(only: former_primary.Address | None = None) -> former_primary.Address:
        return only or used

    def find_both(only: former_primary.Address | None = None) -> former_primary.Address:
        return only or other

    def find_other(only: former_primary.Address | None = None) -> former_primary.Address:
        if only in (None, other):
            return other
        raise psycopg.OperationalError("the session is read-only")

    with connect(database_pair.url()) as session, ThreadPoolExecutor(1) as running:
        watch.add(session, find_used)
        statement = running.submit(session.execute, "SELECT pg_sleep(600)")
        wait_until(lambda: session.pgconn.transaction_status == TransactionStatus.ACTIVE)
        now = time.monotonic()
        assert [watch.look(find_used, now + later) for later in (0, 60, 120)] == [0, 0, 0]
        assert watch.look(find_both, now + 180) == 0
        assert not session.closed
        assert watch.look(find_other, now + 240) == 1
        with pytest.raises(psycopg.OperationalError):
            statement.result()


def test_processes_go_on_after_the_standby_is_promoted(
    database_pair: PostgresPair, sim: Simulator, tmp_path: Path
) -> None:
    sim.others_will(answer(press="1"))
    organization = make.organization()
    account = make.account(organization, account_sid=sim.account_sid, auth_token=sim.auth_token)
    make.number(organization, account=account, max_channels=8)
    make.service_type(organization, "plumbing")
    for _ in range(8):
        make.technician(organization, max_open_jobs=FORMS)
    forms = [(f"form-{n}", make.form("plumbing")) for n in range(FORMS)]
    names = ("web", "worker 1", "dispatcher 1")
    with site(sim, tmp_path, names, DATABASE_URL=database_pair.url()) as here:
        url = f"{here.base_url}/api/v1/submissions/"
        clients = Clients(url, make.api_key(organization), forms, every_s=0.1, seed=1)
        clients.start()
        try:
            wait_until(lambda: len(clients.answered) >= 6 and Call.objects.exists(), message=here.logs)
            database_pair.kill_primary()
            reconnect()
            acknowledged = dict(clients.answered)
            database_pair.promote()
            wait_until(lambda: clients.done, message=here.logs)
        finally:
            clients.stop()
        assert len(acknowledged) < FORMS, "all was accepted before the primary was killed"
        wait_until(
            lambda: Job.objects.filter(status="assigned").count() == FORMS,
            message=lambda: f"{list(Job.objects.values_list('status', 'waiting_for'))}\n{here.logs()}",
        )
        wait_until(
            lambda: made_calls(sim) == set(Call.objects.filter(sid__isnull=False).values_list("sid", flat=True)),
            message=here.logs,
        )
        assert here.ended() == []
    assert not clients.refused
    accepted = {identity for identities in clients.answered.values() for identity in identities}
    assert len(accepted) == FORMS
    assert set(Submission.objects.values_list("pk", flat=True)) == accepted
    assert set(Job.objects.values_list("submission_id", flat=True)) == accepted
    calls = Call.objects.filter(purpose="offer")
    assert len(set(calls.values_list("subject_id", flat=True))) == calls.count(), "an offer with two calls"


def made_calls(sim: Simulator) -> set[str]:
    return {call["sid"] for call in sim.calls(limit="100000")}
