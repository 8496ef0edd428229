"""Read the addresses of PostgreSQL with its hosts, of Redis with its sentinels, and of the mail server.

Settings import this module, so it must not import models or apps. Errors are one sentence without the address,
because it contains a password.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import environ
from django.core.exceptions import ImproperlyConfigured
from redis.connection import parse_url

POSTGRES = ("postgres", "postgresql", "psql", "pgsql")
REDIS = ("redis", "rediss", "unix")
SENTINEL = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT = 26379

# Values of target_session_attrs with which a session can write.
WRITABLE = ("read-write", "primary", "any")
# For each of several hosts, in seconds: one that vanished must not use up the wait for a pooled connection (5 s).
CONNECT_TIMEOUT_S = 3

_URL = re.compile(r"(?P<scheme>[a-z+]+)://(?:(?P<login>[^/?#]*)@)?(?P<hosts>[^/?#@]*)(?P<rest>[/?].*)?")
_HOST = re.compile(r"(?:\[(?P<ip6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<name>[^:\[\]\s]+))(?::(?P<port>\d{1,5}))?")


def postgres_settings(url: str) -> dict[str, Any]:
    """Return Django's settings for the database at `url`; empty if `url` is empty.

    Several hosts are separated by commas, each with its port. Unless target_session_attrs is given, the host that
    accepts writes is used. Raises ImproperlyConfigured.
    """
    if not url:
        return {}
    match = _URL.fullmatch(url)
    path = (match["rest"] or "").partition("?")[0] if match else ""
    if not match or match["scheme"] not in POSTGRES or len(path) < 2 or "@" in path:
        raise ImproperlyConfigured(
            "DATABASE_URL must look like postgresql://user:password@host:5432/name, or "
            "postgresql://user:password@host1:5432,host2:5432/name; characters such as / in the password are "
            "written as %2F."
        )
    hosts = _hosts("DATABASE_URL", match["hosts"])
    login = f"{match['login']}@" if match["login"] is not None else ""
    config: dict[str, Any] = environ.Env.db_url_config(f"{match['scheme']}://{login}{match['rest']}")
    if hosts:
        config["HOST"] = ",".join(name for name, _ in hosts)
        is_given = len(hosts) > 1 and any(port for _, port in hosts)
        config["PORT"] = ",".join(str(port or 5432) for _, port in hosts) if is_given else str(hosts[0][1] or "")
    options = config.setdefault("OPTIONS", {})
    _check_session(options)
    if len(hosts) > 1 or "," in str(options.get("host", "")):
        options.setdefault("target_session_attrs", "read-write")
        options.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    return config


def email_settings(url: str) -> dict[str, Any]:
    """Return Django's settings for the mail server at `url`. Raises ImproperlyConfigured."""
    match = _URL.fullmatch(url)
    is_smtp = match is not None and match["scheme"].startswith("smtp")
    # With an unencoded character, a part of the password would be taken for the host or the port.
    if match and not (is_smtp and (not _HOST.fullmatch(match["hosts"]) or "@" in (match["rest"] or ""))):
        with suppress(ValueError, ImproperlyConfigured):  # their texts may show a part of the password
            config: dict[str, Any] = environ.Env.email_url_config(url)
            return config
    raise ImproperlyConfigured(
        "EMAIL_URL must look like smtp+tls://user:password@host:587; characters such as / in the password are "
        "written as %2F."
    )


def _check_session(options: dict[str, Any]) -> None:
    if options.get("target_session_attrs", "any") not in WRITABLE:
        raise ImproperlyConfigured(
            "DATABASE_URL: target_session_attrs must be read-write (or primary, or any), because Dispatch writes."
        )


class Sentinels(NamedTuple):
    """A Redis that sentinels monitor under the name `service`.

    `login`: username and password of Redis, those that are given; `own_login`: of the sentinels.
    """

    nodes: tuple[tuple[str, int], ...]
    service: str
    db: int
    tls: bool
    login: dict[str, str]
    own_login: dict[str, str]

    @property
    def name(self) -> str:
        """Return the address without passwords, for logs and metrics."""
        return f"{self.service}@{','.join(f'{host}:{port}' for host, port in self.nodes)}"


def sentinels(url: str, variable: str = "REDIS_URL") -> Sentinels | None:
    """Return what a redis+sentinel:// or rediss+sentinel:// URL names, or None for any other URL.

    `redis+sentinel://user:password@host1:26379,host2:26379/service/0?sentinel_password=…`. Raises
    ImproperlyConfigured, naming `variable`.
    """
    if url.partition("://")[0] not in SENTINEL:
        return None
    match = _URL.fullmatch(url)
    path, _, query = (match["rest"] or "").partition("?") if match else ("", "", "")
    service, _, db = path.removeprefix("/").partition("/")
    nodes = _hosts(variable, match["hosts"]) if match else []
    own = dict(parse_qsl(query))
    if not match or not nodes or not service or not (db or "0").isdecimal():
        raise ImproperlyConfigured(
            f"{variable} must look like redis+sentinel://host1:26379,host2:26379/mymaster/0 (the name of the "
            "monitored primary, and the number of the database)."
        )
    if unknown := set(own) - {"sentinel_username", "sentinel_password"}:
        raise ImproperlyConfigured(
            f"{variable}: {sorted(unknown)[0]} is unknown; sentinel_username and sentinel_password are allowed."
        )
    username, _, password = (match["login"] or "").partition(":")
    login = {"username": unquote(username), "password": unquote(password)}
    return Sentinels(
        tuple((host, port or SENTINEL_PORT) for host, port in nodes),
        unquote(service),
        int(db or 0),
        url.startswith("rediss"),
        {name: value for name, value in login.items() if value},
        {name.removeprefix("sentinel_"): value for name, value in own.items()},
    )


def redis_address(url: str, variable: str = "REDIS_URL") -> str:
    """Return `url` if it is empty, or an address of Redis or its sentinels. Raises ImproperlyConfigured."""
    scheme, _, rest = url.partition("://")
    if not url or sentinels(url, variable):
        return url
    if scheme not in REDIS:
        raise ImproperlyConfigured(
            f"{variable} must look like redis://host:6379/0 (or rediss://, unix://, redis+sentinel://)."
        )
    if scheme != "unix" and "," in rest.partition("/")[0].rpartition("@")[2]:
        raise ImproperlyConfigured(
            f"{variable} names several hosts: use redis+sentinel://host1:26379,host2:26379/mymaster/0."
        )
    try:
        parse_url(url)
    except ValueError:
        raise ImproperlyConfigured(
            f"{variable} can't be read: it must look like redis://user:password@host:6379/0; characters such as "
            "/ in the password are written as %2F."
        ) from None
    return url


def rq_connection(url: str) -> dict[str, Any]:
    """Return the address in django-rq's words."""
    found = sentinels(url)
    if found is None:
        return {"URL": url}
    tls = {"ssl": True} if found.tls else {}
    return {
        "SENTINELS": list(found.nodes),
        "MASTER_NAME": found.service,
        "DB": found.db,
        "CONNECTION_KWARGS": {**found.login, **tls},
        "SENTINEL_KWARGS": {**found.own_login, **tls},
    }


def _hosts(variable: str, text: str) -> list[tuple[str, int | None]]:
    """Return host and port of each entry; empty for no host at all. Raises ImproperlyConfigured."""
    hosts: list[tuple[str, int | None]] = []
    for entry in unquote(text).split(",") if text else []:
        match = _HOST.fullmatch(entry)
        port = int(match["port"]) if match and match["port"] else None
        if not match or port == 0 or (port or 1) > 65535:
            raise ImproperlyConfigured(
                f"{variable}: hosts must look like host:5432, separated by commas. Characters such as / in the "
                "password are written as %2F."
            )
        hosts.append((match["ip6"] or match["name"], port))
    return hosts
