"""Check whether the pooler between this process and PostgreSQL supports prepared statements.

The hot paths run prepared statements. A pooler that shares sessions without tracking them (PgBouncer before 1.21,
or with max_prepared_statements=0) loses statements, or runs another process's statement of the same name.
"""

from __future__ import annotations

from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections
from psycopg import errors

HINT = (
    "Use PgBouncer 1.21 or newer with max_prepared_statements of 200 or more, use session pooling "
    "(pool_mode=session), or connect to PostgreSQL directly."
)
ROUNDS = 5
# Errors of a lost, duplicate or mistaken statement.
_CONFUSED = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement, errors.ProtocolViolation)
_REFUSED = "unsupported startup parameter"


def fault(alias: str = DEFAULT_DB_ALIAS) -> str | None:
    """Return a sentence about the pooler's fault, or None if it has none.

    Raises psycopg.Error if the database does not respond.
    """
    try:
        with _connected(alias) as first, _connected(alias) as second:
            for number in range(ROUNDS):
                for name, raw in (("first", first), ("second", second)):
                    if not _runs_own_statements(raw, name, number):
                        return "A pooler in front of PostgreSQL runs other processes' prepared statements."
    except _CONFUSED as error:
        return f"A pooler in front of PostgreSQL loses prepared statements ({str(error).splitlines()[0]})."
    except psycopg.OperationalError as error:
        if _REFUSED in str(error):
            return "A pooler in front of PostgreSQL rejects session parameters. Set DB_SESSION_LIMITS=false."
        raise
    return None


def parameters(alias: str = DEFAULT_DB_ALIAS) -> dict[str, Any]:
    """Return Django's connection parameters for psycopg, without Django's own types."""
    parameters = connections[alias].get_connection_params()
    return {name: value for name, value in parameters.items() if name not in ("context", "cursor_factory")}


def _connected(alias: str) -> psycopg.Connection[Any]:
    return psycopg.connect(**{**parameters(alias), "autocommit": True, "prepare_threshold": 0})


def _runs_own_statements(raw: psycopg.Connection[Any], name: str, number: int) -> bool:
    """Return whether this connection runs its own statements; each runs in a separate transaction."""
    for known in range(number + 1):
        # psycopg numbers names per connection from 0, so both connections use the same names
        query = f"SELECT '{name} {known}' || %s::text"
        row = raw.execute(query.encode(), ["!"], prepare=True).fetchone()
        if row != (f"{name} {known}!",):
            return False
    return True
