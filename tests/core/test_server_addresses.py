"""Addresses of PostgreSQL and Redis are read as documented, and rejected without showing a password."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from dispatch.core.server_addresses import email_settings, postgres_settings, redis_address, sentinels


@pytest.mark.parametrize(
    "url",
    [
        "garbage",
        "mysql://u@host/name",
        "postgresql://u@host",
        "postgresql://u@host/",
        "postgresql://[",
        "postgresql://u:swordfish/1@host/name",
        "postgresql://u:12/swordfish@host/name",
    ],
)
def test_url_of_another_database_is_rejected(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"DATABASE_URL.*%2F") as refused:
        postgres_settings(url)
    assert "swordfish" not in str(refused.value)


@pytest.mark.parametrize(("written", "meant"), [("p%ss", "p%ss"), ("p%2Fss%25", "p/ss%"), ("100%", "100%")])
def test_a_percent_sign_in_a_password_is_read(written: str, meant: str) -> None:
    assert postgres_settings(f"postgresql://u:{written}@h1/name")["PASSWORD"] == meant


@pytest.mark.parametrize(
    "hosts", ["h1,", ",h2", "h1:5432,h2:x", "h1:0,h2", "h1,h2:70000", "[::1,h2", "h1 ,h2", "h1:5432:1,h2"]
)
def test_invalid_host_is_rejected(hosts: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"^DATABASE_URL: hosts must look like host:5432") as refused:
        postgres_settings(f"postgresql://u:swordfish@{hosts}/name")
    assert "swordfish" not in str(refused.value)


@pytest.mark.parametrize(
    ("hosts", "host", "port"),
    [
        ("", "", ""),
        ("h1", "h1", ""),
        ("h1:6432", "h1", "6432"),
        ("[::1]:6432", "::1", "6432"),
        ("h1,h2", "h1,h2", ""),
        ("h1:6432,h2:6433", "h1,h2", "6432,6433"),
        ("h1,h2:6433", "h1,h2", "5432,6433"),
        ("h1:6432,h2", "h1,h2", "6432,5432"),
        ("[::1]:6432,[fe80::1%25eth0]", "::1,fe80::1%eth0", "6432,5432"),
        ("%2Frun%2Fone,%2Frun%2Ftwo", "/run/one,/run/two", ""),
    ],
)
def test_each_host_has_its_port(hosts: str, host: str, port: str) -> None:
    config = postgres_settings(f"postgresql://u:p%2F%25@{hosts}/name")
    assert (config["HOST"], config["PORT"]) == (host, port)
    assert (config["USER"], config["PASSWORD"], config["NAME"]) == ("u", "p/%", "name")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("postgresql://h1/name", {}),
        ("postgresql:///name?host=/run", {"host": "/run"}),
        ("postgresql://h1,h2/name", {"target_session_attrs": "read-write", "connect_timeout": 3}),
        (
            "postgresql:///name?host=/a,/b",
            {"host": "/a,/b", "target_session_attrs": "read-write", "connect_timeout": 3},
        ),
        (
            "postgresql://h1,h2/name?target_session_attrs=any&connect_timeout=9",
            {"target_session_attrs": "any", "connect_timeout": 9},
        ),
    ],
)
def test_with_several_hosts_the_one_that_accepts_writes_is_the_default(url: str, options: dict[str, Any]) -> None:
    assert postgres_settings(url)["OPTIONS"] == options


@pytest.mark.parametrize("attributes", ["standby", "read-only", "prefer-standby", "readwrite"])
def test_a_session_that_cannot_write_is_rejected(attributes: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="target_session_attrs must be read-write"):
        postgres_settings(f"postgresql://h1,h2/name?target_session_attrs={attributes}")


def test_a_missing_url_has_no_settings() -> None:
    assert postgres_settings("") == {}
    assert redis_address("") == ""


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:6379/0",
        "rediss://:p%2F@host/3",
        "unix:///run/redis.sock?db=1",
        "redis+sentinel://h1,h2:26380/mymaster/2",
    ],
)
def test_addresses_of_redis_are_accepted(url: str) -> None:
    assert redis_address(url) == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("host:6379", "must look like"),
        ("http://host", "must look like"),
        ("redis://:swordfish@h1:6379,h2:6379/0", r"several hosts: use redis\+sentinel://"),
        ("redis://:swordfish/@host:6379/0", "can't be read"),
        ("redis://:swordfish@host:port/0", "can't be read"),
        ("redis+sentinel://:swordfish@h1:26379,h2:26379", "must look like"),
        ("redis+sentinel://:swordfish@/mymaster/0", "must look like"),
        ("redis+sentinel://:swordfish@h1/mymaster/one", "must look like"),
        ("redis+sentinel://:swordfish@h1:x/mymaster", "hosts must look like"),
        ("redis+sentinel://h1/mymaster?password=swordfish", "password is unknown"),
    ],
)
def test_other_addresses_of_redis_are_rejected_in_one_line(url: str, said: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"^REDIS_LEADS_URL.*{said}") as refused:
        redis_address(url, "REDIS_LEADS_URL")
    assert "swordfish" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_sentinels_are_read_with_both_logins() -> None:
    found = sentinels("rediss+sentinel://user:p%40ss@h1,[::1]:26380/main/4?sentinel_password=other")
    assert found is not None
    assert found.nodes == (("h1", 26379), ("::1", 26380))
    assert (found.service, found.db, found.tls) == ("main", 4, True)
    assert found.login == {"username": "user", "password": "p@ss"}
    assert found.own_login == {"password": "other"}
    assert found.name == "main@h1:26379,::1:26380"
    plain = sentinels("redis+sentinel://h1/main")
    assert plain is not None
    assert (plain.db, plain.tls, plain.login) == (0, False, {})
    assert sentinels("redis://h1/0") is None


@pytest.mark.parametrize(
    "url",
    [
        "mail.example.com:587",
        "mail.example.com",
        "smtp+tsl://user:secret@mail:587",
        "smtp+tls://",
        "smtp+tls://user:secret@:587",
        "smtp+tls://user:secret@mail:x",
        "smtp+tls://user:secret@mail:99999",
        "smtp+tls://user:se#cret@mail:587",
        "smtp+tls://user:12/secret@mail:587",
        "smtp+tls://user:12?secret@mail:587",
        "smtp+tls://[::1",
    ],
)
def test_other_addresses_of_a_mail_server_are_rejected_without_the_password(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="EMAIL_URL must look like smtp") as rejected:
        email_settings(url)
    assert "cret" not in str(rejected.value)
    assert "\n" not in str(rejected.value)


def test_the_address_of_a_mail_server_is_read() -> None:
    config = email_settings("smtp+tls://dispatch@example.com:a%2Fb%23@mail.example.com:587?timeout=5")
    assert (config["EMAIL_HOST"], config["EMAIL_PORT"], config["EMAIL_USE_TLS"]) == ("mail.example.com", 587, True)
    assert (config["EMAIL_HOST_USER"], config["EMAIL_HOST_PASSWORD"]) == ("dispatch@example.com", "a/b#")
    assert "console" in email_settings("consolemail://")["EMAIL_BACKEND"]
