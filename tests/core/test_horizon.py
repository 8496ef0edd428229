"""Readers of the event log that wait for an open transaction report it, and whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests
import structlog
from django.db import connection, transaction
from django.test import Client

from accounts.models import User
from dispatch.console import health
from dispatch.core import clock, events
from dispatch.core.events import readers
from dispatch.core.events.horizon import find_holder
from dispatch.core.models import Event
from notifications import loops
from tests.core.horizon import APPLICATION, all_readable, held_horizon
from tests.support import factories as make
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def role_without_privileges() -> Iterator[None]:
    """Run the block as a role that may only read the event log."""
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS plain_reader")
        cursor.execute("CREATE ROLE plain_reader")
        cursor.execute("SET ROLE plain_reader")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP ROLE plain_reader")


def waiting_event() -> None:
    events.append(1, "job.pending", 10**9)
    clock.travel(90)


@pytest.mark.parametrize("database", ["", "postgres"])
def test_the_session_that_holds_the_horizon_is_named(database: str) -> None:
    all_readable()
    with held_horizon(database) as pid:
        holder = find_holder()
        assert holder is not None
        assert (holder.kind, holder.name, holder.application) == ("session", str(pid), APPLICATION)
        assert holder.database == (database or connection.settings_dict["NAME"])
        assert holder.since is not None


def test_a_role_without_privileges_finds_the_holder_too() -> None:
    all_readable()
    with held_horizon() as pid, role_without_privileges():
        holder = find_holder()
    assert holder is not None
    assert (holder.name, holder.application) == (str(pid), APPLICATION)
    assert holder.since is None


def test_a_prepared_transaction_is_named() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SHOW max_prepared_transactions")
        if cursor.fetchone()[0] == "0":
            pytest.skip("this server allows no prepared transactions")
        cursor.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
    try:
        holder = find_holder()
        assert holder is not None
        assert (holder.kind, holder.name) == ("prepared transaction", "forgotten")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK PREPARED 'forgotten'")


def test_a_waiting_reader_logs_the_holder_once_in_a_while() -> None:
    while loops.reader.step():
        pass
    with held_horizon() as pid:
        waiting_event()
        loops.reader._reported_at = loops.reader._measured_at = None
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                loops.reader.step()
    (entry,) = [entry for entry in logs if entry["event"] == "event_reader_waits"]
    assert (entry["reader"], entry["holder_name"], entry["application"]) == (
        "notifications",
        str(pid),
        APPLICATION,
    )
    assert entry["lag_s"] >= 90


def test_readyz_shows_the_lag_and_no_addresses(app_url: str) -> None:
    with held_horizon() as pid:
        waiting_event()
        answer = requests.get(f"{app_url}/readyz", timeout=PATIENCE)
    assert answer.status_code == 200
    body = answer.json()
    assert body["status"] == "ready"
    assert body["lagging_readers"]["notifications"] >= 90
    assert str(pid) not in answer.text
    Event.objects.all().delete()
    assert requests.get(f"{app_url}/readyz", timeout=PATIENCE).json() == {"status": "ready"}


def test_the_health_bar_names_what_waits_and_for_whom(client: Client) -> None:
    organization = make.organization()
    person = make.dispatcher(organization)
    all_readable()
    while loops.reader.step():
        pass
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    health.reset()
    assert "is holding a transaction open" not in client.get("/health/").content.decode()
    with held_horizon() as pid:
        waiting_event()
        health.reset()
        shown = client.get("/health/").content.decode()
        assert "Notifications" in shown
        assert "a database session is holding a transaction open" in shown
        assert APPLICATION not in shown, "it may be of another database"
        User.objects.filter(pk=person.pk).update(is_superuser=True)
        shown = client.get("/health/").content.decode()
    assert f"session {pid} ({APPLICATION}, database {connection.settings_dict['NAME']})" in shown
    assert "is holding a transaction open" in shown


def test_the_health_bar_blames_no_session_for_a_reader_that_does_not_run(client: Client) -> None:
    client.force_login(make.dispatcher(make.organization()), backend="django.contrib.auth.backends.ModelBackend")
    waiting_event()
    all_readable()
    with held_horizon():
        health.reset()
        shown = client.get("/health/").content.decode()
    assert "Notifications" in shown
    assert "is holding a transaction open" not in shown


def test_a_reader_that_keeps_up_is_not_shown() -> None:
    with transaction.atomic():
        events.append(1, "job.created", 1)
    assert readers.lagging() == {}
