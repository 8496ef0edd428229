"""Write `dispatch/core/db/schema.sql` from the migrations: `python -m tests.initial_schema`.

Do this after each change to a migration; DISPATCH_DEVELOPMENT must be 1.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess

import django
import psycopg
from psycopg import sql

# Django fills these after each migration, with different ids.
FILLED_LATER = ("auth_permission", "django_content_type")
_MIGRATIONS = re.compile(r"(INSERT INTO public\.django_migrations VALUES\n)((?:\t.*\n)+)")


def dump(database: str) -> str:
    """Return the tables and rows of the database on the tests' server as SQL, without what differs each time."""
    from tests.harness.postgres_pair import BIN
    from tests.support.processes import database_url

    options = ["--no-owner", "--no-privileges", "--no-comments", "--inserts", "--rows-per-insert=1000"]
    options += [f"--exclude-table-data=public.{table}" for table in FILLED_LATER]
    command = [str(BIN / "pg_dump"), *options, "--dbname", database_url(database)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    dropped = r"--.*|SET .*;|\\.*|SELECT pg_catalog\.set_config.*|.*setval\('.*, false\);"
    text = re.sub(rf"^(?:{dropped})\n", "", text, flags=re.MULTILINE)
    filled = "|".join(FILLED_LATER)
    text = re.sub(rf"^.*setval\('public\.(?:{filled})_id_seq'.*\n", "", text, flags=re.MULTILINE)
    text = _MIGRATIONS.sub(_sort_migrations, text)
    return re.sub(r"\n{2,}", "\n\n", text).strip() + "\n"


def _sort_migrations(insert: re.Match[str]) -> str:
    """Return the statement with its rows in alphabetical order, because the order of application can differ."""
    names = sorted(re.findall(r"\d+, ('\w+', '\w+'), ", insert[2]))
    return insert[1] + ",\n".join(f"\t({number}, {name}, now())" for number, name in enumerate(names, 1)) + ";\n"


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from django.core.management import call_command

    from dispatch.core.db.initial_schema import SCHEMA
    from tests.harness.postgres_pair import using
    from tests.support.processes import database_url

    name = f"schema_{secrets.token_hex(4)}"
    with psycopg.connect(database_url("postgres"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            with using(database_url(name)):
                call_command("migrate", step_by_step=True)
            SCHEMA.write_text(dump(name))
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


if __name__ == "__main__":
    main()
