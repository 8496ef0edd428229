"""Every process refuses to start in a wrong environment: one line, and a non-zero exit."""

from __future__ import annotations

import os
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured

from dispatch.core import checks
from dispatch.core.runtime import preflight
from tests.core.test_checks import ids, manage

PROCESSES = [("web",), ("worker", "dispatch-queue"), ("dispatcher",), ("autoscale",)]
NOWHERE = {"DATABASE_URL": "postgresql://u@127.0.0.1:9/x", "REDIS_URL": "redis://127.0.0.1:9/0"}
PRODUCTION = {
    **NOWHERE,
    "SECRET_KEY": "k3" + os.urandom(32).hex(),
    "FIELD_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
    "PUBLIC_BASE_URL": "https://dispatch.example.com",
    "BEHIND_PROXY": "1",
}
PUBLIC = "https://dispatch.example.com"


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process[0])
def test_debug_in_production_stops_every_process(process: tuple[str, ...]) -> None:
    done = manage(*process, **PRODUCTION, DEBUG="1")
    assert done.returncode != 0
    assert done.stderr.startswith("Not configured: DEBUG is on")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"DATABASE_URL": "", "DISPATCH_EMBEDDED": ""}, "DATABASE_URL must be set outside development"),
        ({"REDIS_URL": "", "DISPATCH_EMBEDDED": ""}, "REDIS_URL must be set outside development"),
        ({"DISPATCH_DEVELOPMENT": "1"}, "dispatch.E032"),
        ({"DISPATCH_DEVELOPMENT": "1", "PUBLIC_BASE_URL": "", "WEB_HOST": "0.0.0.0"}, "dispatch.E033"),
        ({"SECRET_KEY": ""}, "dispatch.E001"),
        ({"ALLOWED_HOSTS": "dispatch.exmaple.com"}, "ALLOWED_HOSTS does not list dispatch.example.com"),
        ({"SECRET_KEY": "short"}, "SECRET_KEY has 5 characters. It must have at least 32."),
    ],
)
def test_a_wrong_environment_is_named_in_one_line(change: dict[str, str], named: str) -> None:
    env = {**PRODUCTION, **change}
    done = manage("dispatcher", **{name: value for name, value in env.items() if value or name in NOWHERE})
    assert done.returncode != 0
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("base_url", "web_host", "expected"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", []),
        ("http://192.168.1.4:8000", "192.168.1.4", []),
        (PUBLIC, "127.0.0.1", ["dispatch.E032"]),
        ("http://52.1.2.3", "52.1.2.3", ["dispatch.E032", "dispatch.E033"]),
        ("http://127.0.0.1:8000", "0.0.0.0", ["dispatch.E033"]),
        ("http://127.0.0.1:8000", "::", ["dispatch.E033"]),
    ],
)
def test_a_development_site_stays_local(settings: Any, base_url: str, web_host: str, expected: list[str]) -> None:
    settings.EMBEDDED_POSTGRES = settings.EMBEDDED_REDIS = True
    settings.PUBLIC_BASE_URL, settings.WEB_HOST = base_url, web_host
    assert ids(checks.development(None)) == expected
    settings.DEVELOPMENT_PUBLIC = True
    assert checks.development(None) == []


def test_embedded_servers_are_refused_outside_development(settings: Any) -> None:
    settings.EMBEDDED_POSTGRES = settings.EMBEDDED_REDIS = True
    assert checks.given_servers(None) == []
    settings.DEVELOPMENT = False
    assert ids(checks.given_servers(None)) == ["dispatch.E040", "dispatch.E040"]
    with pytest.raises(ImproperlyConfigured, match=r"DATABASE_URL is not set.*dispatch\.E040"):
        preflight.check_environment()


@pytest.mark.parametrize(
    ("trusted", "expected"),
    [
        ("127.0.0.1", []),
        ("10.244.3.0/24, 172.30.250.1", []),
        ("fd12:3456::/64", []),
        ("*", ["dispatch.E015"]),
        ("10.0.0.0/8,172.16.0.0/12", ["dispatch.E015", "dispatch.E015"]),
        ("::/0", ["dispatch.E015"]),
        ("proxy", ["dispatch.E014"]),
    ],
)
def test_only_proxies_are_trusted_with_addresses(settings: Any, trusted: str, expected: list[str]) -> None:
    settings.FORWARDED_ALLOW_IPS, settings.BEHIND_PROXY = trusted, True
    assert checks.trusted_proxies(None) == []
    settings.DEVELOPMENT = False
    assert ids(checks.trusted_proxies(None)) == expected
    settings.BEHIND_PROXY = False
    assert checks.trusted_proxies(None) == []
