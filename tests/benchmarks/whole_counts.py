"""Count what a unit of work takes from the servers: SQL statements, commits, bytes of the log, Redis commands.

The embedded PostgreSQL has no `pg_stat_statements`, so the statements of a separate short run are read from the
server's log, by the name of the connected process. Unlike times, counts do not depend on the machine's load.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection

from dispatch.core.redis.client import client

_LOG = re.compile(r"^DISPATCH (?P<who>[^|]*)\|.*?LOG:  (?:statement|execute [^:]+): (?P<sql>.*)$")
_PREFIX = "DISPATCH %a|"
_POSITIONS = """
SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, xact_commit
FROM pg_stat_database WHERE datname = current_database()
"""


class Counts:
    """What the servers did while the block ran."""

    commits: float = 0.0
    wal_bytes: float = 0.0
    redis_commands: float = 0.0


@contextmanager
def counted() -> Iterator[Counts]:
    """Yield the counts of the block, complete when it has ended."""
    counts, before = Counts(), _now()
    yield counts
    counts.wal_bytes, counts.commits, counts.redis_commands = (
        after - since for after, since in zip(_now(), before, strict=True)
    )


def _now() -> tuple[float, float, float]:
    with connection.cursor() as cursor:
        cursor.execute(_POSITIONS)
        wal, commits = cursor.fetchone()
    stats: Any = client().info("commandstats")
    return float(wal), float(commits), float(sum(command["calls"] for command in stats.values()))


@contextmanager
def statements() -> Iterator[Counter[tuple[str, str]]]:
    """Yield a counter of (process, first words of the statement), filled when the block has ended.

    For embedded servers. The statements of sessions that were open before the block are counted as well.
    """
    found: Counter[tuple[str, str]] = Counter()
    log = Path(settings.DATA_DIR) / "postgres" / "log"
    start = log.stat().st_size
    _log_statements("all")
    try:
        yield found
    finally:
        _log_statements("none")
    with log.open("rb") as lines:
        lines.seek(start)
        for line in lines.read().decode(errors="replace").replace("\n\t", " ").splitlines():
            if match := _LOG.match(line):
                found[match["who"], " ".join(match["sql"].split())[:400]] += 1


def _log_statements(which: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SYSTEM SET log_line_prefix = '{_PREFIX}'")
        cursor.execute(f"ALTER SYSTEM SET log_statement = '{which}'")
        cursor.execute("SELECT pg_reload_conf()")
