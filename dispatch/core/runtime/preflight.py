"""Check, before a process starts to work, for mistakes with which it would do harm. Outages do not count."""

from __future__ import annotations

import psycopg
import structlog
from django.core.checks import Error, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, ProgrammingError, connection, connections

from dispatch.core import crypto
from dispatch.core.db import pooler

log = structlog.get_logger(__name__)

# The tag of the system checks that need no server and without which no process may work.
ENVIRONMENT = "environment"


def check_environment() -> None:
    """Raise ImproperlyConfigured, with one line, if a check of the environment finds an error."""
    errors = [message for message in run_checks(tags=[ENVIRONMENT]) if isinstance(message, Error)]
    if errors:
        raise ImproperlyConfigured(
            " ".join(f"{message.msg} {message.hint or ''} ({message.id})" for message in errors)
        )


def check() -> None:
    """Raise ImproperlyConfigured, with one line, if the environment is wrong.

    So it does if this process would lose statements or could not decrypt credentials.

    A database that does not respond is an outage: the process starts and waits until it is over.
    """
    check_environment()
    try:
        if fault := pooler.fault():
            raise ImproperlyConfigured(f"{fault} {pooler.HINT}")
        check_keys()
    except (DatabaseError, psycopg.Error) as error:
        log.warning("preflight_skipped", reason=str(error).strip())
    finally:
        connections.close_all()


def check_keys(alias: str = DEFAULT_DB_ALIAS) -> None:
    """Decrypt the latest stored credential of each kind. Raises ImproperlyConfigured if a key is missing."""
    for model, field in crypto.encrypted_fields():
        quote = connection.ops.quote_name
        column, table = quote(str(field.column)), quote(model._meta.db_table)
        try:
            with connections[alias].cursor() as cursor:
                cursor.execute(f"SELECT {column} FROM {table} WHERE {column} <> '' ORDER BY id DESC LIMIT 1")
                row = cursor.fetchone()
        except ProgrammingError:  # before the first migration
            continue
        if row:
            crypto.decrypt(row[0])
