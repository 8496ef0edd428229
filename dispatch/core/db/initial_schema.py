"""Create the tables of an empty database from `schema.sql`, which holds the result of all migrations.

Applying each migration takes a minute, nearly all of it Django's rendering of the models before and after each
operation. `python -m tests.initial_schema` writes the file, and a test compares it with the migrations.
"""

from __future__ import annotations

from pathlib import Path

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

SCHEMA = Path(__file__).with_name("schema.sql")
# The file names its objects in full, and its functions may name tables that are created later.
_SETTINGS = "SET LOCAL search_path = ''; SET LOCAL check_function_bodies = off"


class _UnknownMigrations(Exception):
    """The file contains migrations that the installed packages do not have."""


def create_tables(connection: BaseDatabaseWrapper) -> int:
    """Create all tables, and record the migrations they contain; return how many these are.

    Return 0, and change nothing, if the schema "public" is not the current one or has a table, or if an installed
    package is older than the file. Processes that do this at the same time wait for each other.
    """
    known = set(MigrationLoader(None).graph.nodes)
    try:
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('dispatch schema.sql'))")
            cursor.execute(
                "SELECT current_schema() = 'public'"
                " AND NOT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'public')"
            )
            if not cursor.fetchone()[0]:
                return 0
            cursor.execute(_SETTINGS)
            cursor.execute(SCHEMA.read_text())
            cursor.execute("SET LOCAL search_path = public")
            contained = set(MigrationRecorder(connection).applied_migrations())
            if not contained <= known:
                raise _UnknownMigrations
            return len(contained)
    except _UnknownMigrations:
        return 0
