"""A process checks before it works: prepared statements that last, keys that decrypt."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from dispatch.core.checks import servers
from dispatch.core.db import pooler
from dispatch.core.runtime import preflight
from tests.harness.pgbouncer import KEEPS_STATEMENTS, bouncer, connected_through
from tests.support import factories
from tests.support.database import reconnect
from tests.support.processes import running

__all__ = ["bouncer"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_postgresql_itself_keeps_prepared_statements() -> None:
    assert pooler.fault() is None


class Shared:
    """Two connections that share one session, as through a pooler without support for prepared statements."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw
        self._names: dict[bytes, str] = {}

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def execute(self, query: bytes, values: list[str], prepare: bool) -> Any:
        assert prepare
        if query not in self._names:
            self._names[query] = f"s{len(self._names)}"
            self._raw.execute(
                f"PREPARE {self._names[query]} (text) AS {query.decode().replace('%s', '$1')}".encode()
            )
        return self._raw.execute(f"EXECUTE {self._names[query]} ('{values[0]}')".encode())


def test_a_session_that_is_shared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(**pooler.parameters(), autocommit=True) as raw:
        monkeypatch.setattr(pooler, "_connected", lambda alias: Shared(raw))
        assert "loses prepared statements" in str(pooler.fault())
        assert [found.id for found in servers(None, databases=["default"]) if found.id == "dispatch.E055"]
        with pytest.raises(ImproperlyConfigured, match="max_prepared_statements"):
            preflight.check()


def test_a_pgbouncer_without_prepared_statements_is_refused(
    bouncer: int, settings: Any, monkeypatch: pytest.MonkeyPatch, test_environment: dict[str, str]
) -> None:
    name, user = connection.settings_dict["NAME"], connection.settings_dict["USER"] or "postgres"
    with connected_through(bouncer, monkeypatch):
        assert "DB_SESSION_LIMITS" in str(pooler.fault())
        settings.DB_SESSION_LIMITS = False
        assert (pooler.fault() is None) is KEEPS_STATEMENTS
    if not KEEPS_STATEMENTS:
        env = {**test_environment, "DATABASE_URL": f"postgresql://{user}@127.0.0.1:{bouncer}/{name}"}
        with running("dispatcher", "--only", "retention", env={**env, "DB_SESSION_LIMITS": "0"}) as process:
            assert process.ends() != 0
            assert "max_prepared_statements" in process.log()
            assert len(process.log().strip().splitlines()) == 1


@pytest.mark.parametrize("command", [("dispatcher",), ("worker", "dispatch-queue"), ("web", "--port", "0")])
def test_a_process_with_other_keys_refuses_to_start(
    command: tuple[str, ...], test_environment: dict[str, str]
) -> None:
    factories.account(factories.organization())
    env = {**test_environment, "FIELD_ENCRYPTION_KEYS": Fernet.generate_key().decode()}
    with running(*command, env=env) as process:
        assert process.ends() != 0
        (line,) = process.log().strip().splitlines()
        assert "FIELD_ENCRYPTION_KEYS" in line


def test_keys_that_decrypt_and_a_database_that_is_away_are_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    factories.account(factories.organization())
    preflight.check()
    reconnect()
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")
    preflight.check()
    monkeypatch.undo()
    settings.FIELD_ENCRYPTION_KEYS = [Fernet.generate_key().decode()]
    with pytest.raises(ImproperlyConfigured):
        preflight.check()
    assert [found.id for found in servers(None, databases=["default"]) if found.id == "dispatch.E057"]
