"""Connect the probes to PostgreSQL, outside the pool.

A process thus does not seem broken while requests hold every connection of the pool, or while the server has no
free connection.
"""

from __future__ import annotations

from typing import Any

import psycopg
from django.db import connection

from dispatch.core.db import pooler

# So that a vanished server is detected within seconds.
_TIMEOUTS = {
    "connect_timeout": 2,
    "tcp_user_timeout": 2000,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 3,
}


def connect() -> psycopg.Connection[Any]:
    """Return a new connection in autocommit mode. Raises psycopg.Error."""
    parameters = {**_TIMEOUTS, "application_name": "dispatch-probe", "autocommit": True}
    wrapper: Any = connection
    raw: psycopg.Connection[Any] = wrapper.watched(psycopg.connect(**{**pooler.parameters(), **parameters}))
    return raw


class DatabaseLink:
    """A connection that is kept between probes."""

    def __init__(self) -> None:
        self._raw: psycopg.Connection[Any] | None = None

    def ask(self) -> None:
        """Raise psycopg.Error if PostgreSQL does not respond, even over a new connection."""
        if self._raw is not None:
            try:
                self._raw.execute("SELECT 1")
                return
            except psycopg.Error:  # the server may have restarted since the last probe
                self.close()
        self._raw = connect()
        self._raw.execute("SELECT 1")

    def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()
