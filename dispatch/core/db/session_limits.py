"""Limit how long this process waits for PostgreSQL, and PostgreSQL for this process.

A host that vanishes sends no FIN. Without limits, its clients wait for hours, and its open transactions keep their
locks as long. The client's limits are libpq's parameters. The server's limits belong to
each session: how soon it detects a lost client, how long a statement waits for a lock, how long a transaction may
be idle. They depend on the kind of process; migrations and other commands wait for locks without a limit.
"""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings

# libpq's parameters; DATABASE_URL may override them. No effect on a Unix socket.
CLIENT: dict[str, int] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
# Keepalives detect a lost client that owes nothing; the last limit one that does not acknowledge an answer.
_SERVER = {
    "tcp_keepalives_idle": "10s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15s",
}
# Compiling a plan takes longer than running it. PostgreSQL 17 and older would compile each plan that avoids
# sequential scans (`prepared.prefer_index_plans`), because they estimate an enormous cost for it.
_PLANNER = {"jit": "off"}

WEB, BACKGROUND = "web", "background"
# The request threads of a web process, and the size of its pool of connections, if DB_POOL_SIZE is not set.
WEB_THREADS = 16
_kind = ""


def apply(kind: str) -> None:
    """Use the limits of this kind of process, WEB or BACKGROUND, for new connections."""
    global _kind
    _kind = kind


def prepare_web() -> None:
    """Use the limits of a web process, and its pool of connections. Call it before the settings are loaded."""
    apply(WEB)
    os.environ.setdefault("DB_POOL_SIZE", str(WEB_THREADS))


def is_web() -> bool:
    """Return whether this is a web process."""
    return _kind == WEB


def parameters() -> dict[str, str]:
    """Return PostgreSQL's parameters for each session of this process, by name."""
    return {**_SERVER, **_PLANNER, **_of_kind()}


def options() -> str:
    """Return the parameters as libpq's `options`; empty if DB_SESSION_LIMITS is off."""
    if not settings.DB_SESSION_LIMITS:
        return ""
    return " ".join(f"-c {name}={value}" for name, value in parameters().items())


def _of_kind() -> dict[str, Any]:
    if not _kind:
        return {}
    limits = {
        "idle_in_transaction_session_timeout": settings.DB_IDLE_TRANSACTION_TIMEOUT_S,
        "lock_timeout": settings.WEB_LOCK_TIMEOUT_S if _kind == WEB else settings.DB_LOCK_TIMEOUT_S,
        "statement_timeout": settings.WEB_STATEMENT_TIMEOUT_S if _kind == WEB else 0,
    }
    return {name: f"{round(seconds * 1000)}ms" for name, seconds in limits.items() if seconds}
