"""Hold an open transaction with an id, in this database or in another of the cluster.

Every durable reader of the event log waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connection

APPLICATION = "nightly-etl"


@contextmanager
def held_horizon(database: str = "") -> Iterator[int]:
    """Yield the process id of the session that holds the horizon, in `database` (default: the tests')."""
    parameters = connection.get_connection_params()
    wanted = ("host", "port", "user", "password", "dbname")
    arguments = {name: parameters[name] for name in wanted if parameters.get(name)}
    if database:
        arguments["dbname"] = database
    with psycopg.connect(**arguments, application_name=APPLICATION) as session:
        session.execute("SELECT pg_current_xact_id()")
        yield session.info.backend_pid
        session.rollback()
