"""Time limits toward PostgreSQL, on both sides, by the kind of process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from dispatch.core.checks.connectivity import servers
from dispatch.core.db import session_limits
from tests.support.database import reconnect
from tests.support.processes import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("tcp_keepalives_idle", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Make this process one of that kind until the end of the test."""

    def apply(kind: str) -> None:
        monkeypatch.setattr(session_limits, "_kind", kind)
        reconnect()

    yield apply
    monkeypatch.undo()
    reconnect()


def shown(*names: str) -> list[str]:
    with connection.cursor() as cursor:
        found = []
        for name in names:
            cursor.execute(f"SHOW {name}")
            found.append(cursor.fetchone()[0])
    return found


def run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_limits_depend_on_the_kind_of_process(limited: Callable[[str], None]) -> None:
    # on a Unix socket there are no keepalives to show
    limited("")
    assert shown(*NAMES[1:]) == ["0", "0", "0"]
    limited(session_limits.WEB)
    assert shown(*NAMES[1:]) == ["3s", "1min", "30s"]
    limited(session_limits.BACKGROUND)
    assert shown(*NAMES[1:]) == ["5s", "0", "30s"]


@pytest.mark.parametrize("kind", ["", session_limits.WEB, session_limits.BACKGROUND])
def test_plans_are_not_compiled(limited: Callable[[str], None], kind: str) -> None:
    """Compiling the plans of one batch of leads took PostgreSQL 15 two seconds."""
    limited(kind)
    assert shown("jit") == ["off"]


def test_compiling_is_reported_behind_a_pooler(
    limited: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """The function hides PostgreSQL's own: the embedded one cannot compile."""
    settings.DB_SESSION_LIMITS = False
    role = "-c lock_timeout=5s -c idle_in_transaction_session_timeout=30s -c search_path=llvm,public,pg_catalog"
    options = connection.settings_dict["OPTIONS"]
    run("CREATE SCHEMA llvm", "CREATE FUNCTION llvm.pg_jit_available() RETURNS bool RETURN true")
    try:
        for jit, expected in (("on", ["dispatch.W059"]), ("off", [])):
            monkeypatch.setitem(options, "options", f"{role} -c jit={jit}")
            limited(session_limits.WEB)
            assert [message.id for message in servers(None, ["default"])] == expected
    finally:
        run("DROP SCHEMA llvm CASCADE")


def test_options_of_the_settings_are_kept_and_win(
    limited: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "options", "-c synchronous_commit=off -c lock_timeout=7s")
    limited(session_limits.WEB)
    assert shown("synchronous_commit", "lock_timeout", "statement_timeout") == ["off", "7s", "1min"]


def test_no_session_limits_are_sent_to_a_pooler(
    limited: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.DB_SESSION_LIMITS = False
    monkeypatch.delitem(connection.settings_dict["OPTIONS"], "options")
    limited(session_limits.WEB)
    assert "options" not in connection.get_connection_params()


def test_the_url_may_override_the_client_limits() -> None:
    code = (
        "from django.conf import settings; o = settings.DATABASES['default']['OPTIONS'];"
        "print(o['connect_timeout'], o['tcp_user_timeout'], o['options'])"
    )
    url = "postgresql://u@127.0.0.1:1/x?connect_timeout=9&options=-c%20lock_timeout%3D1s"
    env = {
        "DJANGO_SETTINGS_MODULE": "dispatch.settings", "DATABASE_URL": url, "REDIS_URL": "redis://127.0.0.1:1",
        "SECRET_KEY": "x", "PATH": "/usr/bin",
    }  # fmt: skip
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert told.stdout.split(maxsplit=2) == ["9", "15000", "-c lock_timeout=1s\n"], told.stderr


def test_a_dispatcher_process_has_the_limits_of_its_kind(test_environment: dict[str, str], tmp_path: Path) -> None:
    """Sessions end when their transaction is idle too long, as those of a paused process do."""
    env = {**test_environment, "DB_IDLE_TRANSACTION_TIMEOUT_S": "0.5", "DISPATCH_DEVELOPMENT": "1"}
    program = tmp_path / "idle.py"
    program.write_text(
        "import time, django; django.setup()\n"
        "from django.db import connection, transaction\n"
        "from dispatch.core.db import session_limits\n"
        "session_limits.apply(session_limits.BACKGROUND)\n"
        "try:\n"
        "    with transaction.atomic(), connection.cursor() as cursor:\n"
        "        cursor.execute('SELECT 1'); time.sleep(3); cursor.execute('SELECT 1')\n"
        "except Exception as error:\n"
        "    from dispatch.core.db.errors import is_temporary\n"
        "    print('cut off', is_temporary(error))\n"
    )
    env["PYTHONPATH"] = str(ROOT)
    told = subprocess.run([sys.executable, program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert told.stdout == "cut off True\n", told.stderr


def test_migrations_are_not_cut_off() -> None:
    assert session_limits._kind == ""  # this process is a management command
    assert set(session_limits.parameters()) == {
        "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout", "jit"
    }  # fmt: skip
