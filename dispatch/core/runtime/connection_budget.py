"""Compute how many database connections each kind of process opens at most, and whether PostgreSQL allows them.

Web processes share a pool among their request threads. Everything else keeps one connection per thread, and its
number of threads is limited: one for each loop, those of services, and those for requests to the phone provider.
docs/operations/scaling.md has the figures. With a pooler (DB_SESSION_LIMITS=false), nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import psycopg
import structlog
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from dispatch.core.db.session_limits import WEB_THREADS
from dispatch.core.runtime.fair_threads import FairThreads
from dispatch.core.runtime.loops import Loop, Service, all_loops

log = structlog.get_logger(__name__)

# The thread that applies webhooks in groups.
WEBHOOK_GROUPS = 1
# The connections of a web process's probes, outside its pool: one is kept, one is opened for each probe of writes.
PROBES = 2
# Leaderships are renewed on a separate connection.
ELECTIONS = 1
# The conditions of resting loops are checked in a separate thread.
DUE_CHECKS = 1

_ALLOWED = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - COALESCE(current_setting('reserved_connections', true), '0')::int,
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
       (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())
"""


class Connections(NamedTuple):
    """How many connections the server allows to this role, and how many other sessions are open."""

    allowed: int
    open: int


def of_web() -> int:
    """Return the most connections of one web process."""
    return (settings.DB_POOL_SIZE or WEB_THREADS) + WEBHOOK_GROUPS + PROBES


def of_worker(queue: str) -> int:
    """Return the most connections of one worker of this queue. Those of jobs also place calls, in threads."""
    places_calls = queue in (settings.DISPATCH_QUEUE, settings.DISPATCH_TIMEOUT_QUEUE)
    return 1 + (settings.WORKER_REQUEST_THREADS if places_calls else 0)


def of_dispatcher(loops: Iterable[Loop | Service]) -> int:
    """Return the most connections of a dispatcher that runs these loops."""
    steps = [loop for loop in loops if isinstance(loop, Loop)]
    services = sum(loop.connections for loop in loops if isinstance(loop, Service))
    requests = FairThreads.count(settings.DISPATCHER_REQUEST_THREADS or None) if steps else 0
    checks = DUE_CHECKS if any(loop.due for loop in steps) else 0
    return len(steps) + checks + services + requests + ELECTIONS


def of_machine() -> dict[str, int]:
    """Return the most connections of a web process, a dispatcher and an autoscaler with its workers."""
    workers = sum(
        max(least, settings.WORKERS_MAX.get(queue, least)) * of_worker(queue)
        for queue, least in settings.WORKERS.items()
    )
    return {"web": of_web(), "dispatcher": of_dispatcher(all_loops()), "workers": workers}


def read_limits(alias: str = DEFAULT_DB_ALIAS) -> Connections:
    """Return the limits of the server, the role and the database. Raises DatabaseError."""
    with connections[alias].cursor() as cursor:
        cursor.execute(_ALLOWED)
        allowed, of_role, of_database, others = cursor.fetchone()
    return Connections(min(limit for limit in (allowed, of_role, of_database) if limit >= 0), others)


def warn_if_too_many(process: str, most: int) -> None:
    """Log a warning if this process, with the sessions that are open now, could exceed the server's limit."""
    if not settings.DB_SESSION_LIMITS:
        return
    try:
        allowed, others = read_limits()
    except (DatabaseError, psycopg.Error) as error:  # an outage: the process starts and waits until it is over
        log.warning("connections_not_counted", reason=str(error).strip())
        return
    finally:
        connections.close_all()
    if most + others > allowed:
        log.warning(
            "connections_do_not_fit",
            process=process,
            most=most,
            open=others,
            allowed=allowed,
            hint="Raise max_connections, or see Connections in docs/operations/scaling.md.",
        )
