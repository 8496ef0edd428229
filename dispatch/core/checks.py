"""Django system checks: what is wrong or dangerous in the configuration, each with an id and a hint.

Those that ask the servers are tagged `database`: `manage.py check --database default` (and `migrate`) run them."""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import urlsplit

from cryptography.fernet import Fernet
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004  (Django's name)
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from dispatch.core.http_targets import parse_networks
from dispatch.core.redis import REDIS_ERRORS, client

_RATE = re.compile(r"[1-9]\d*/(s|sec|second|m|min|minute|h|hour|d|day)")


@register()
def keys(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    try:
        _ = settings.SECRET_KEY
    except ImproperlyConfigured:  # Django's answer to an empty one
        found.append(Error("SECRET_KEY is empty.", hint="Set SECRET_KEY in the environment.", id="dispatch.E001"))
    if not settings.FIELD_ENCRYPTION_KEYS:
        found.append(
            Error(
                "FIELD_ENCRYPTION_KEYS is empty: credentials cannot be stored.",
                hint="Set it to a key made by `manage.py make_key`.",
                id="dispatch.E002",
            )
        )
    for position, key in enumerate(settings.FIELD_ENCRYPTION_KEYS, start=1):
        try:
            Fernet(key)
        except ValueError:
            found.append(
                Error(
                    f"FIELD_ENCRYPTION_KEYS: key {position} is not a Fernet key.",
                    hint="Make keys with `manage.py make_key`; the newest comes first, commas between them.",
                    id="dispatch.E003",
                )
            )
    return found


@register()
def addresses(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    url = urlsplit(settings.PUBLIC_BASE_URL)
    if url.scheme not in ("http", "https") or not url.hostname or url.path or url.query:
        return [
            Error(
                f"PUBLIC_BASE_URL {settings.PUBLIC_BASE_URL!r} is not the root of a site.",
                hint="Give scheme and host only, as https://dispatch.example.com.",
                id="dispatch.E010",
            )
        ]
    if settings.DEVELOPMENT:
        return []
    found: list[CheckMessage] = []
    if url.scheme != "https":
        found.append(
            Error(
                "PUBLIC_BASE_URL is not https: passwords and the provider's webhooks would travel in the clear.",
                hint="Serve the site over https, and set PUBLIC_BASE_URL to that address.",
                id="dispatch.E011",
            )
        )
    if _is_local(url.hostname):
        found.append(
            Error(
                "PUBLIC_BASE_URL is an address of this machine: no telephone provider can reach it.",
                hint="Set it to the address under which the internet reaches this site.",
                id="dispatch.E012",
            )
        )
    return found


@register()
def timeouts(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    policy = settings.DISPATCH_POLICY_DEFAULTS
    # (what must be less, than what, why, id)
    rules = [
        (("OFFER_RING_S", policy["ring_timeout_s"]), ("OFFER_TIMEOUT_S", policy["answer_timeout_s"]),
         "a phone would still ring when the next technician is called", "dispatch.E020"),
        (("LEADER_RENEW_S", settings.LEADER_RENEW_S), ("LEADER_LEASE_S", settings.LEADER_LEASE_S),
         "a leadership would lapse before it is renewed", "dispatch.E021"),
        (("PROVIDER_TIMEOUT_S", settings.PROVIDER_TIMEOUT_S),
         ("RQ_JOB_TIMEOUT_S", settings.RQ_QUEUES[settings.DISPATCH_QUEUE]["DEFAULT_TIMEOUT"]),
         "a worker would be stopped while it waits for the provider", "dispatch.E022"),
        (("CALL_SEND_WINDOW_S + PROVIDER_TIMEOUT_S", settings.CALL_SEND_WINDOW_S + settings.PROVIDER_TIMEOUT_S),
         ("UNKNOWN_LISTING_GAP_S", settings.UNKNOWN_LISTING_GAP_S),
         "a request could still be on its way when the provider is asked whether it came", "dispatch.E023"),
        (("OFFER_RING_S", policy["ring_timeout_s"]), ("CALL_TIME_LIMIT_S", settings.CALL_TIME_LIMIT_S),
         "calls would be cut off at once", "dispatch.E024"),
    ]  # fmt: skip
    return [
        Error(
            f"{less} ({a:g} s) is not less than {more} ({b:g} s): {why}.",
            hint=f"Lower {less}, or raise {more}.",
            id=check_id,
        )
        for (less, a), (more, b), why, check_id in rules
        if not a < b
    ]


@register()
def named(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Variables whose words must mean something here."""
    found: list[CheckMessage] = []
    for variable in ("WORKERS", "WORKERS_MAX"):
        for queue, count in getattr(settings, variable).items():
            if count < 0:
                found.append(
                    Error(
                        f"{variable} asks for {count} workers of {queue}.",
                        hint="Give a number from 0 on.",
                        id="dispatch.E028",
                    )
                )
            if queue not in settings.RQ_QUEUES:
                found.append(
                    Error(
                        f"{variable} names the queue {queue!r}, which does not exist.",
                        hint=f"There are {', '.join(settings.RQ_QUEUES)}.",
                        id="dispatch.E025",
                    )
                )
    for queue, least in settings.WORKERS.items():
        if least > settings.WORKERS_MAX.get(queue, least):
            found.append(
                Error(
                    f"WORKERS asks for {least} workers of {queue}, more than WORKERS_MAX allows.",
                    hint=f"Raise WORKERS_MAX for {queue}, or lower WORKERS.",
                    id="dispatch.E027",
                )
            )
    rates: Any = settings.REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]
    for name, rate in {**rates, "bad_key": settings.API_BAD_KEY_RATE}.items():
        if not _RATE.fullmatch(rate):
            found.append(
                Error(
                    f"API_{name.upper()}_RATE {rate!r} is not a rate.",
                    hint="Write it as 600/min; s, min, hour and day are understood.",
                    id="dispatch.E026",
                )
            )
    return found


@register()
def development(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.DEBUG and not settings.DEVELOPMENT:
        found.append(
            Error(
                "DEBUG is on without DISPATCH_DEVELOPMENT: errors would show settings and data to anybody.",
                hint="Unset DEBUG.",
                id="dispatch.E030",
            )
        )
    if settings.DEVELOPMENT and not (settings.EMBEDDED_POSTGRES and settings.EMBEDDED_REDIS):
        found.append(
            Warning(
                "DISPATCH_DEVELOPMENT is on with servers given by hand: demo data and demo logins go there.",
                hint="Unset DISPATCH_DEVELOPMENT, unless those servers are for development only.",
                id="dispatch.W031",
            )
        )
    return found


@register(deploy=True)
def production(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for name, embedded in (("DATABASE_URL", settings.EMBEDDED_POSTGRES), ("REDIS_URL", settings.EMBEDDED_REDIS)):
        if embedded:
            found.append(
                Warning(
                    f"{name} is not set: the embedded server, made for development, is used.",
                    hint=f"Set {name} to a server that is backed up and watched.",
                    id="dispatch.W040",
                )
            )
    if not settings.METRICS_TOKEN:
        found.append(
            Warning(
                "METRICS_TOKEN is empty: whoever reaches /metrics can read it.",
                hint="Have Prometheus send it as a bearer token, or block the path in front.",
                id="dispatch.W041",
            )
        )
    return found


@register(Tags.database)
def servers(app_configs: Any, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    return [*_postgres(databases or ()), *_redis()] if databases else []


def _postgres(databases: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for alias in databases:
        try:
            with connections[alias].cursor() as cursor:
                cursor.execute("SHOW server_version_num")
                version = int(cursor.fetchone()[0])
        except DatabaseError as error:
            found.append(
                Error(
                    f"PostgreSQL does not answer: {str(error).strip().splitlines()[0]}",
                    hint="Start it, or correct DATABASE_URL.",
                    id="dispatch.E050",
                )
            )
            continue
        if version < 150_000:
            found.append(
                Error(
                    f"PostgreSQL {version // 10_000} is too old.",
                    hint="PostgreSQL 15 or newer is needed.",
                    id="dispatch.E051",
                )
            )
    return found


def _redis() -> list[CheckMessage]:
    try:
        facts = client().info()
    except REDIS_ERRORS as error:
        return [
            Warning(
                f"Redis does not answer: {error}",
                hint="Start it, or correct REDIS_URL. Work is accepted without it, and goes on more slowly.",
                id="dispatch.W052",
            )
        ]
    found: list[CheckMessage] = []
    if int(str(facts.get("redis_version", "0")).split(".")[0]) < 7:
        found.append(
            Error(
                f"Redis {facts.get('redis_version')} is too old.",
                hint="Redis 7 or newer, or Valkey, is needed.",
                id="dispatch.E053",
            )
        )
    policy = str(facts.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        found.append(
            Error(
                f"Redis evicts keys when memory is short (maxmemory-policy {policy}): queued work would be lost.",
                hint="Set maxmemory-policy to noeviction.",
                id="dispatch.E054",
            )
        )
    return found


@register()
def called_networks(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """HTTP_ALLOWED_NETWORKS must be networks, or every call to an endpoint would fail."""
    try:
        parse_networks(tuple(settings.HTTP_ALLOWED_NETWORKS))
    except ValueError as error:
        hint = "Write networks as 10.20.0.0/16 or fd12::/16, separated by commas."
        return [Error(f"HTTP_ALLOWED_NETWORKS: {error}.", hint=hint, id="dispatch.E060")]
    return []


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_link_local
