"""The system checks find each contradiction, and nothing else."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.fernet import Fernet

from dispatch import urls
from dispatch.core import checks
from dispatch.core.redis.client import client
from tests.core.outages import redis_away
from tests.support.processes import ROOT, database_url, free_port


def ids(found: list[Any]) -> list[str]:
    return [message.id for message in found]


def test_development_on_embedded_servers_passes_all_checks(settings: Any) -> None:
    settings.EMBEDDED_POSTGRES = settings.EMBEDDED_REDIS = True
    everything = (checks.keys, checks.addresses, checks.timeouts, checks.development)
    assert [message for check in everything for message in check(None)] == []


@pytest.mark.parametrize("keys", [[], ["not a key"], [Fernet.generate_key().decode(), "x"]])
def test_keys_that_cannot_encrypt(settings: Any, keys: list[str]) -> None:
    settings.FIELD_ENCRYPTION_KEYS = keys
    assert ids(checks.keys(None)) == ["dispatch.E003" if keys else "dispatch.E002"]


def test_an_empty_secret_key(settings: Any) -> None:
    settings.SECRET_KEY = ""
    assert "dispatch.E001" in ids(checks.keys(None))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://dispatch.example.com", []),
        ("https://203.0.113.7:8443", ["dispatch.E012"]),  # a documentation network counts as private
        ("https://52.1.2.3", []),
        ("http://dispatch.example.com", ["dispatch.E011"]),
        ("https://localhost:8000", ["dispatch.E012"]),
        ("https://192.168.1.4", ["dispatch.E012"]),
        ("https://[::1]", ["dispatch.E012"]),
        ("https://example.com/dispatch", ["dispatch.E010"]),
        ("example.com", ["dispatch.E010"]),
        ("https:// dispatch.example.com", ["dispatch.E010"]),
        ("https://user:pw@dispatch.example.com", ["dispatch.E010"]),
        ("https://dispatch.example.com#x", ["dispatch.E010"]),
        ("https://dispatch.example.com?x=1", ["dispatch.E010"]),
        ("https://münchen.example", ["dispatch.E010"]),
        ("https://xn--mnchen-3ya.example", []),
        ("https://my_app.example.com", ["dispatch.E010"]),
        ("https://", ["dispatch.E010"]),
    ],
)
def test_public_address_must_be_valid(settings: Any, url: str, expected: list[str]) -> None:
    settings.DEVELOPMENT, settings.PUBLIC_BASE_URL, settings.BEHIND_PROXY = False, url, True
    settings.ALLOWED_HOSTS = ["*"]
    found = checks.addresses(None)
    assert ids(found) == expected
    assert not any("pw" in str(message) for message in found)


@pytest.mark.parametrize(
    ("url", "hosts", "expected"),
    [
        ("https://dispatch.example.com", ["dispatch.example.com"], []),
        ("https://Dispatch.example.com:8443", ["other.example", ".example.com"], []),
        ("https://dispatch.example.com", ["*"], []),
        ("https://[2606:4700::1]", ["[2606:4700::1]"], []),
        ("https://dispatch.example.com", ["dispatch.exmaple.com"], ["dispatch.E016"]),
        ("https://dispatch.example.com", [], ["dispatch.E016"]),
    ],
)
@pytest.mark.parametrize("is_development", [True, False])
def test_the_host_of_the_public_address_must_be_allowed(
    settings: Any, url: str, hosts: list[str], expected: list[str], is_development: bool
) -> None:
    settings.PUBLIC_BASE_URL, settings.ALLOWED_HOSTS, settings.BEHIND_PROXY = url, hosts, True
    settings.DEVELOPMENT = is_development
    assert ids(checks.addresses(None)) == expected


def test_https_without_a_proxy_in_front_is_an_error(settings: Any) -> None:
    settings.DEVELOPMENT, settings.PUBLIC_BASE_URL = False, "https://dispatch.example.com"
    settings.ALLOWED_HOSTS = ["dispatch.example.com"]
    settings.BEHIND_PROXY = False
    assert ids(checks.addresses(None)) == ["dispatch.E013"]
    settings.DEVELOPMENT = True
    assert checks.addresses(None) == []


def test_local_address_is_allowed_in_development(settings: Any) -> None:
    settings.PUBLIC_BASE_URL = "http://127.0.0.1:8000"
    assert checks.addresses(None) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ring_timeout_s": 300, "answer_timeout_s": 300, "CALL_TIME_LIMIT_S": 400}, "dispatch.E020"),
        ({"LEADER_RENEW_S": 5.0, "LEADER_LEASE_S": 5.0}, "dispatch.E021"),
        ({"PROVIDER_TIMEOUT_S": 60.0, "UNKNOWN_LISTING_GAP_S": 90.0}, "dispatch.E022"),
        ({"UNKNOWN_LISTING_GAP_S": 15.0}, "dispatch.E023"),
        ({"CALL_TIME_LIMIT_S": 30}, "dispatch.E024"),
        ({"LEADS_WORKER_DEAD_S": 5.0}, "dispatch.E036"),
    ],
)
def test_contradictory_timeouts_are_reported(settings: Any, change: dict[str, Any], expected: str) -> None:
    policy = dict(settings.DISPATCH_POLICY_DEFAULTS)
    for name, value in change.items():
        if name in policy:
            policy[name] = value
        else:
            setattr(settings, name, value)
    settings.DISPATCH_POLICY_DEFAULTS = policy
    assert ids(checks.timeouts(None)) == [expected]


def test_debug_outside_development_and_development_on_given_servers(settings: Any) -> None:
    settings.DEVELOPMENT, settings.DEBUG = False, True
    assert ids(checks.development(None)) == ["dispatch.E030"]
    settings.DEVELOPMENT, settings.DEBUG, settings.EMBEDDED_REDIS = True, False, False
    assert ids(checks.development(None)) == ["dispatch.W031"]


@pytest.fixture
def eviction() -> Iterator[Any]:
    """Set Redis's eviction policy, and restore it."""
    before = client().config_get("maxmemory-policy")["maxmemory-policy"]
    yield lambda policy: client().config_set("maxmemory-policy", policy)
    client().config_set("maxmemory-policy", before)


@pytest.mark.django_db
def test_a_redis_that_evicts_is_refused(eviction: Any) -> None:
    eviction("noeviction")
    assert checks.servers(None, databases=["default"]) == []
    eviction("allkeys-lru")
    assert ids(checks.servers(None, databases=["default"])) == ["dispatch.E054"]


@pytest.mark.django_db
def test_servers_are_checked_on_request_and_missing_redis_warns() -> None:
    with redis_away():
        assert checks.servers(None, databases=None) == []
        assert ids(checks.servers(None, databases=["default"])) == ["dispatch.W052"]


def manage(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `manage.py` as in production: no development flag, configured servers."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DISPATCH_DEVELOPMENT", "DJANGO_SETTINGS_MODULE", "DB_POOL_SIZE", "LOG_LEVEL")
    }
    return subprocess.run(
        [sys.executable, "-W", "ignore", "manage.py", *arguments],
        cwd=ROOT, env={**inherited, **env}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def production(transactional_db: None, settings: Any) -> dict[str, str]:
    """Return `deploy/env.example` with the values that an operator enters."""
    from django.db import connection

    lines = (ROOT / "deploy" / "env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    entered = {
        "POSTGRES_PASSWORD": "secret",
        "DATABASE_URL": database_url(connection.settings_dict["NAME"]),
        "REDIS_URL": settings.REDIS_URL,
        "SECRET_KEY": "k3" + os.urandom(32).hex(),
        "FIELD_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "METRICS_TOKEN": "t0ken",
        "EMAIL_URL": "smtp+tls://dispatch:secret@mail.example.com:587",
    }
    assert set(entered) <= set(example), "the example names everything that must be entered"
    return {**example, **entered, "WEB_PORT": str(free_port())}


def test_production_settings_pass_the_deployment_check(production: dict[str, str]) -> None:
    done = manage("check", "--deploy", "--database", "default", "--fail-level", "WARNING", **production)
    assert done.returncode == 0, done.stderr


def test_without_settings_the_site_says_what_is_missing_and_does_not_start(production: dict[str, str]) -> None:
    bare = {"DATABASE_URL": production["DATABASE_URL"], "REDIS_URL": production["REDIS_URL"]}
    done = manage("up", **bare)
    assert done.returncode != 0
    for variable in ("SECRET_KEY", "FIELD_ENCRYPTION_KEYS", "PUBLIC_BASE_URL"):
        assert variable in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_provider_account_the_site_does_not_start(production: dict[str, str]) -> None:
    done = manage("up", **production)
    assert done.returncode != 0
    assert done.stderr.startswith("CommandError: No active provider account exists")
    assert len(done.stderr.strip().splitlines()) == 1


def test_generated_key_encrypts() -> None:
    done = manage("make_key", DATABASE_URL="postgresql://u@127.0.0.1:9/x", REDIS_URL="redis://127.0.0.1:9/0")
    Fernet(done.stdout.strip())


def test_pages_of_development_exist_only_there(settings: Any) -> None:
    def paths() -> set[str]:
        return {str(one.pattern) for one in runpy.run_path(urls.__file__)["urlpatterns"]}

    in_development = paths()
    settings.DEVELOPMENT = False
    assert in_development - paths() == {"phones/", "demo-receiver/"}
