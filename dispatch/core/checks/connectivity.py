"""Check that PostgreSQL and Redis respond and are suitable."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register  # noqa: A004  (Django's name)
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from dispatch.core.db import pooler
from dispatch.core.redis.client import REDIS_ERRORS, all_clients
from dispatch.core.redis.state import eviction_policy
from dispatch.core.runtime import connection_budget, preflight


@register(Tags.database)
def servers(app_configs: Any, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that PostgreSQL and Redis respond and are suitable."""
    return [*_postgres(databases or ()), *_redis()] if databases else []


@register(Tags.database)
def connection_limits(app_configs: Any, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Compare the most connections of one machine's processes with PostgreSQL's limit.

    All of them are open at once only under full load, so this informs and does not warn.
    """
    if not databases or not settings.DB_SESSION_LIMITS or settings.DEVELOPMENT:
        return []
    wanted = connection_budget.of_machine()
    total = sum(wanted.values())
    try:
        allowed = connection_budget.read_limits().allowed
    except DatabaseError:  # `servers` reports it
        return []
    if total <= allowed:
        return []
    parts = ", ".join(f"{process} {count}" for process, count in wanted.items())
    return [
        Info(
            f"One machine may open {total} database connections ({parts}), but only {allowed} are allowed.",
            hint="Raise max_connections, lower the sizes in docs/operations/scaling.md (Connections), or use "
            "PgBouncer.",
            id="dispatch.I058",
        )
    ]


def _postgres(databases: Any) -> list[CheckMessage]:
    messages: list[CheckMessage] = []
    for alias in databases:
        try:
            with connections[alias].cursor() as cursor:
                cursor.execute("SHOW server_version_num")
                version = int(cursor.fetchone()[0])
        except DatabaseError as error:
            messages.append(
                Error(
                    f"PostgreSQL does not respond: {str(error).strip().splitlines()[0]}",
                    hint="Start it, or correct DATABASE_URL.",
                    id="dispatch.E050",
                )
            )
            continue
        if version < 150_000:
            messages.append(
                Error(
                    f"PostgreSQL {version // 10_000} is too old.",
                    hint="PostgreSQL 15 or newer is required.",
                    id="dispatch.E051",
                )
            )
        messages += _pooler(alias)
        messages += _stored_credentials(alias)
    return messages


def _pooler(alias: str) -> list[CheckMessage]:
    if fault := pooler.fault(alias):
        return [Error(fault, hint=pooler.HINT, id="dispatch.E055")]
    if settings.DB_SESSION_LIMITS:
        return []
    messages: list[CheckMessage] = []
    for name, limit in (("lock_timeout", "5s"), ("idle_in_transaction_session_timeout", "30s")):
        with connections[alias].cursor() as cursor:
            cursor.execute(f"SHOW {name}")
            if cursor.fetchone()[0] == "0":
                statement = f"ALTER ROLE <role> SET {name} = '{limit}'"
                messages.append(
                    Warning(
                        f"DB_SESSION_LIMITS is off, and the role has no {name}.",
                        hint=f"{statement} (docs/operations/operations.md, Time limits).",
                        id="dispatch.W056",
                    )
                )
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT current_setting('jit')::bool AND pg_jit_available()")
        if cursor.fetchone()[0]:
            messages.append(
                Warning(
                    "DB_SESSION_LIMITS is off, and the role has jit on, which makes calling leads slow.",
                    hint="ALTER ROLE <role> SET jit = off (docs/operations/operations.md, Time limits).",
                    id="dispatch.W059",
                )
            )
    return messages


def _stored_credentials(alias: str) -> list[CheckMessage]:
    try:
        preflight.check_keys(alias)
    except ImproperlyConfigured as error:
        hint = "Use the same FIELD_ENCRYPTION_KEYS on every machine."
        return [Error(str(error), hint=hint, id="dispatch.E057")]
    return []


def _redis() -> list[CheckMessage]:
    return [message for client in all_clients().values() for message in _redis_server(client)]


def _redis_server(client: Any) -> list[CheckMessage]:
    try:
        facts = client.info()
    except REDIS_ERRORS as error:
        return [
            Warning(
                f"Redis does not respond: {error}",
                hint="Start it, or correct REDIS_URL. Without it, work is still accepted but runs more slowly.",
                id="dispatch.W052",
            )
        ]
    messages: list[CheckMessage] = []
    if int(str(facts.get("redis_version", "0")).split(".")[0]) < 7:
        messages.append(
            Error(
                f"Redis {facts.get('redis_version')} is too old.",
                hint="Redis 7 or newer, or Valkey, is required.",
                id="dispatch.E053",
            )
        )
    if policy := eviction_policy(facts):
        messages.append(
            Error(
                f"Redis evicts keys when memory runs low (maxmemory-policy {policy}): queued work would be lost.",
                hint="Set maxmemory-policy to noeviction.",
                id="dispatch.E054",
            )
        )
    return messages
