"""An invalid variable is rejected in one line that names it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from dispatch.core import checks
from dispatch.core.environment import Environment, split_site_url
from notifications.checks import chat_kinds
from tests.core.test_checks import ids
from tests.core.test_configuration import read_by_settings
from tests.support.processes import ROOT
from tests.support.waiting import PATIENCE


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Any:
    def given(value: str) -> Environment:
        monkeypatch.setenv("X", value)
        return Environment()

    return given


@pytest.mark.parametrize("text", ["abc", "5s", "1h", "", "1,5"])
def test_text_that_resembles_a_number_is_rejected(env: Any, text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="X can't be read"):
        env(text).float("X", default=1.0)


def test_numbers_are_parsed(env: Any) -> None:
    assert env("1e1").float("X", default=1.0) == 10
    assert env("0.25").float("X", default=1.0) == 0.25


@pytest.mark.parametrize(("text", "meant"), [("1", True), ("On", True), ("0", False), ("no", False), ("", False)])
def test_flags(env: Any, text: str, meant: bool) -> None:
    assert env(text).bool("X", default=False) is meant


def test_misspelled_flag_is_rejected(env: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="neither true nor false"):
        env("ture").bool("X", default=False)


def test_errors_do_not_show_the_value(env: Any) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:
        env("swordfish").int("X", default=0)
    assert "swordfish" not in str(refused.value)


def test_a_secret_may_begin_with_a_dollar_sign(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME_OF_X", "another secret")
    assert env("$HOME_OF_X").str("X", default="") == "$HOME_OF_X"
    assert env("$2b$12$abc,def").list("X", default=[]) == ["$2b$12$abc", "def"]
    assert env("$").str("X", default="") == "$"
    with pytest.raises(ImproperlyConfigured, match="not a number"):
        env("$HOME_OF_X").float("X", default=1.0)


def test_the_port_of_a_site_is_read_from_its_url() -> None:
    assert split_site_url("https://example.com:8443").port == 8443
    with pytest.raises(ImproperlyConfigured):
        split_site_url("http://example.com:port")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, {"a": 2, "b": 1}),
        ("0", {"a": 0, "b": 0}),
        (" 3 ", {"a": 3, "b": 3}),
        ("a=4;c=1", {"a": 4, "c": 1}),
        ("", {}),
    ],
)
def test_worker_counts_are_per_queue_or_common(
    given: str | None, meant: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is not None:
        monkeypatch.setenv("WORKERS_HERE", given)
    assert Environment().counts("WORKERS_HERE", {"a": 2, "b": 1}) == meant


@pytest.mark.parametrize("given", ["a=1,b=2", "a", "-1", "a=x"])
def test_invalid_worker_counts_are_rejected(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKERS_HERE", given)
    with pytest.raises(ImproperlyConfigured, match="WORKERS_HERE"):
        Environment().counts("WORKERS_HERE", {"a": 2})


def test_queue_names_and_rates_must_be_valid(settings: Any) -> None:
    assert checks.named(None) == []
    settings.WORKERS = {"dispatch-que": 1}
    assert ids(checks.named(None)) == ["dispatch.E025"]
    settings.WORKERS = {"dispatch-queue": -1}
    assert ids(checks.named(None)) == ["dispatch.E028"]
    settings.WORKERS = {}
    settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"read": "fast", "write": "0/min"}}
    assert ids(checks.named(None)) == ["dispatch.E026", "dispatch.E026"]


def test_every_rate_is_checked(settings: Any) -> None:
    names = {name for name in read_by_settings() if name.endswith("_RATE")}
    for name in names - {"API_READ_RATE", "API_WRITE_RATE"}:
        for wrong in ("100", "30/quarter", "fast", "0/min", ""):
            setattr(settings, name, wrong)
            assert [message.msg for message in checks.named(None)] == [f"{name} {wrong!r} is not a rate."]
        setattr(settings, name, "100/hour")
    assert checks.named(None) == []


def test_retention_must_name_kinds_that_exist(settings: Any) -> None:
    settings.RETENTION_DAYS = {"calls": 30, "sessions": 1, "events": 0}
    assert checks.retention_days(None) == []
    settings.RETENTION_DAYS = {"call": 30, "sessions": -1}
    assert ids(checks.retention_days(None)) == ["dispatch.E034", "dispatch.E035"]
    assert "calls, " in str(checks.retention_days(None)[0].hint)


def test_chat_channels_must_be_of_kinds_that_exist(settings: Any) -> None:
    assert chat_kinds(None) == []
    settings.ALERT_CHANNEL_KINDS = ["slack", "team"]
    assert [message.msg for message in chat_kinds(None)] == [
        "ALERT_CHANNEL_KINDS names 'team', which does not exist."
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "garbage"),
        ("DATABASE_URL", "postgresql://u@127.0.0.1:9/x"),
        ("DATABASE_URL", "postgresql://u@127.0.0.1:9,127.0.0.1:x/x"),
        ("REDIS_URL", "garbage"),
        ("REDIS_URL", "redis+sentinel://127.0.0.1:9"),
        ("REDIS_LEADS_URL", "redis://127.0.0.1:9,127.0.0.1:10/0"),
        ("DISPATCH_DEVELOPMENT", "ture"),
        ("DISPATCH_DATA_DIR", "/dev/null/nowhere"),
        ("FIELD_ENCRYPTION_KEYS", "abc"),
        ("LOG_LEVEL", "LOUD"),
        ("PUBLIC_BASE_URL", "http://a:b"),
        ("PUBLIC_BASE_URL", "https://[::1"),
        ("EMAIL_URL", "smtp+tls://user:pa#ss@mail:587"),
        ("SPEND_CALL_ESTIMATE", "0,02"),
        ("SPEND_TEXT_ESTIMATE", "nan"),
        ("WEB_PORT", "99999"),
        ("WORKERS", "x"),
        ("PUBLIC_FORM_RATE", "100"),
        ("RETENTION_DAYS", "call=30"),
        ("GEOCODER_CONFIG", "{"),
    ],
)
def test_errors_name_the_setting_without_a_traceback(name: str, value: str) -> None:
    env = {key: text for key, text in os.environ.items() if key not in ("DJANGO_SETTINGS_MODULE", "LOG_LEVEL")}
    done = subprocess.run(
        [sys.executable, "manage.py", "up"],
        cwd=ROOT, env={**env, name: value}, capture_output=True, text=True,
        timeout=PATIENCE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode != 0
    assert name in done.stderr
    assert "Traceback" not in done.stderr
    assert "'pa'" not in done.stderr, "a part of the password is shown"
    assert len(done.stderr.strip().splitlines()) <= 2, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["manage.py", "web", "--port", "99999"], "Can't listen on port 99999"),
        (["manage.py", "web", "--fd", "99"], "--fd 99 is not an inherited socket"),
        (["manage.py", "worker", "dispatch-queue", "--slot", "1; rm"], "--slot '1; rm' is not valid"),
        (["manage.py", "worker", "dispatch-queue", "--slot", ""], "--slot '' is not valid"),
        (["-m", "dispatch.dev.embedded_servers"], "usage:"),
        (["-m", "dispatch.dev.simulator", "--port", "99999"], "the port must be a number up to 65535"),
    ],
)
def test_invalid_arguments_are_rejected_without_a_traceback(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_strict_transport_security_does_not_bind_other_sites_by_default() -> None:
    names = ("SECONDS", "INCLUDE_SUBDOMAINS", "PRELOAD")
    show = f"from dispatch import settings; print(*(getattr(settings, 'SECURE_HSTS_' + name) for name in {names}))"
    done = subprocess.run(
        [sys.executable, "-c", show],
        cwd=ROOT, env={**os.environ, "PUBLIC_BASE_URL": "https://dispatch.example.com"}, capture_output=True,
        text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stdout.split() == ["31536000", "False", "False"], done.stderr
