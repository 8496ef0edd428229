"""Migrate while the processes of the previous version run."""

from __future__ import annotations

import random
import re
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import DatabaseError, OperationalError, connections
from django.db.migrations.recorder import MigrationRecorder

from dispatch.core.counts import count_noun
from dispatch.core.db import blockers
from dispatch.core.db.errors import sqlstate
from dispatch.core.db.initial_schema import create_tables

# While a migration waits for a table, all statements on that table wait behind it: less than WEB_LOCK_TIMEOUT_S.
LOCK_TIMEOUT_S = 2.0
# While it waits with a table locked already, a running process may wait for that one: a deadlock. Less than
# PostgreSQL's deadlock_timeout (1 s), so that the migration gives up, and not the process.
SECOND_LOCK_TIMEOUT_S = 0.5
# After this many failed attempts, it waits for further tables as long as for the first.
BRIEF_ATTEMPTS = 8
GIVE_UP_AFTER_S = 600.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 15.0
# The tables of a statement. A migration that failed at one of them locks them first when it is repeated. Otherwise
# a slow migration could fail each time: processes would wait for its first table with the second one in use.
_TABLES = re.compile(r'(?:\bTABLE(?: IF EXISTS)?(?: ONLY)?|\bON|\bREFERENCES) "(\w+)"')
# With one of these options, not everything is to be migrated, or nothing is.
_PARTIAL = ("app_label", "check_unapplied", "fake", "fake_initial", "plan", "prune", "step_by_step")
_CONFLICTS = {"40P01": "deadlock", "55P03": "lock timeout"}
_HOLDS_A_TABLE = """
SELECT EXISTS (
  SELECT FROM pg_locks
  WHERE pid = pg_backend_pid() AND locktype = 'relation' AND granted
    AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
)
"""


class Command(migrate.Command):
    """Django's command, which repeats a migration that met a lock of a running process.

    Each migration is one transaction, or can be repeated if it is not. So whatever was applied stays, and the next
    attempt continues there.
    """

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--lock-timeout",
            type=_seconds,
            default=LOCK_TIMEOUT_S,
            help="how long a migration waits for a lock until it is repeated, in seconds; 0: no limit "
            "(default: %(default)s)",
        )
        parser.add_argument(
            "--give-up-after",
            type=_seconds,
            default=GIVE_UP_AFTER_S,
            help="end if the same migration is locked for this many seconds (default: %(default)s)",
        )
        parser.add_argument(
            "--step-by-step", action="store_true", help="apply each migration, also to an empty database"
        )

    def handle(self, *args: Any, **options: Any) -> Any:
        """Migrate. Raises CommandError if a migration cannot get its locks for `--give-up-after` seconds."""
        connection = connections[options["database"]]
        if not any(options[name] for name in _PARTIAL) and (count := create_tables(connection)):
            self.stdout.write(f"  Created the tables of an empty database: {count_noun(count, 'migration')}.")
        applied, since, failures = -1, 0.0, 0
        contended: list[str] = []
        while True:
            try:
                brief_s = SECOND_LOCK_TIMEOUT_S if failures < BRIEF_ATTEMPTS else float("inf")
                with _lock_timeout(connection, options["lock_timeout"], brief_s, contended):
                    return super().handle(*args, **options)
            except OperationalError as error:
                conflict = _CONFLICTS.get(sqlstate(error))
                if conflict is None:
                    raise
                count = len(MigrationRecorder(connection).applied_migrations())
                if count != applied:
                    applied, since, failures = count, time.monotonic(), 0
                    del contended[2:]  # what the failed statement named; the others were for another migration
                if time.monotonic() - since >= options["give_up_after"]:
                    raise CommandError(_give_up_message(conflict, options["give_up_after"])) from error
            failures += 1
            pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0)
            self.stdout.write(
                f"\n  Locked by a running process ({conflict}). Attempt {failures + 1} in {pause:.1f} s."
            )
            time.sleep(pause)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _give_up_message(conflict: str, after_s: float) -> str:
    _, oldest = blockers.describe_wait(None)
    return (
        f"Another session has locked a table for {after_s:g} s ({conflict}). Migrations that were applied stay. "
        f"End that session, then run `manage.py migrate` again. Oldest transaction: {oldest or 'none'}."
    )


@contextmanager
def _lock_timeout(
    connection: Any, seconds: float, second_s: float = SECOND_LOCK_TIMEOUT_S, contended: list[str] | None = None
) -> Iterator[None]:
    """Limit how long each statement waits for locks, except those that lock nobody out while they wait.

    In a transaction that has locked a table already, the limit is `second_s` if that is less. The tables in
    `contended` are locked at the beginning of the first transaction. If a statement fails, its tables are put in
    front of them.

    Behind a pooler (DB_SESSION_LIMITS is off), sessions are shared, so nothing is set.
    """
    if not settings.DB_SESSION_LIMITS or connection.vendor != "postgresql":
        yield
        return

    def set_timeout(limit: str) -> str:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, false)", [limit]
            )
            before: str = cursor.fetchone()[0]
            return before

    def holds_a_table() -> bool:
        with connection.cursor() as cursor:
            cursor.cursor.execute(_HOLDS_A_TABLE)
            return bool(cursor.cursor.fetchone()[0])

    def exists(table: str) -> bool:
        with connection.cursor() as cursor:
            cursor.cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [f'"{table}"'])
            return bool(cursor.cursor.fetchone()[0])

    def choose_limit(statement: str) -> str:
        if connection.in_atomic_block:
            is_second = seconds > second_s and not statement.startswith("SELECT") and holds_a_table()
            return second_limit if is_second else limit
        # CONCURRENTLY waits for the transactions that run, and others may use the table meanwhile.
        return "0" if "CONCURRENTLY" in statement else limit

    def execute(run: Callable[..., Any], statement: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if to_lock and connection.in_atomic_block and not str(statement).lstrip().upper().startswith("SELECT"):
            tables = [f'"{table}"' for table in to_lock if exists(table)]
            to_lock.clear()
            for table in tables:
                execute(run, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE", None, False, context)
        chosen = choose_limit(str(statement).strip().upper())
        if chosen == limit:
            return run_noting(run, statement, params, many, context)
        set_timeout(chosen)
        try:
            return run_noting(run, statement, params, many, context)
        finally:
            with suppress(DatabaseError):  # a transaction that failed is rolled back, and the limit with it
                set_timeout(limit)

    def run_noting(run: Callable[..., Any], statement: Any, *args: Any) -> Any:
        try:
            return run(statement, *args)
        except OperationalError as error:
            if contended is not None and sqlstate(error) in _CONFLICTS:
                contended[:] = dict.fromkeys([*_TABLES.findall(str(statement)), *contended])
            raise

    to_lock = list(contended or ())
    limit, second_limit = f"{round(seconds * 1000)}ms", f"{round(min(second_s, seconds) * 1000)}ms"
    before = set_timeout(limit)
    try:
        with connection.execute_wrapper(execute):
            yield
    finally:
        with suppress(DatabaseError):  # the connection may be lost, which is what the caller reports
            set_timeout(before)
