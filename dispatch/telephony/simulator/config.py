"""What a simulator starts with: accounts, their numbers, handsets, timing. Unknown keys are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

DEFAULT_ACCOUNT_SID = "AC" + "1".rjust(32, "0")
DEFAULT_AUTH_TOKEN = "simulator-token"  # noqa: S105 (good for this simulator only)

T = TypeVar("T")


@dataclass
class NumberConfig:
    """A phone number of an account, and where its incoming calls and texts are posted."""

    number: str
    voice_url: str = ""
    voice_method: str = "POST"
    voice_fallback_url: str = ""
    status_callback: str = ""
    sms_url: str = ""
    sms_method: str = "POST"


@dataclass
class AccountConfig:
    """Credentials and limits. `calls_per_second` and the rest are in simulated time."""

    sid: str = DEFAULT_ACCOUNT_SID
    auth_token: str = DEFAULT_AUTH_TOKEN
    calls_per_second: float = 1.0
    max_concurrent: int | None = None
    countries: list[str] = field(default_factory=lambda: ["+1"])
    owns_any_number: bool = False
    numbers: list[NumberConfig] = field(default_factory=list)


@dataclass
class Timing:
    """Simulated seconds, except the floors, which are real, since some things do not run faster when simulated
    time does: the server that answers webhooks, and whoever operates a `manual` phone. Webhook time-outs, and how
    long a manual phone may ring, keep a Gather waiting and talk, never get shorter than that."""

    accept: float = 0.2
    dial: float = 0.8
    machine_detection: float = 3.0
    characters_per_second: float = 15.0
    message_step: float = 0.5
    webhook_floor: float = 5.0
    hand_floor: float = 2.0


@dataclass
class Config:
    """`handsets` and `texts` map a number, or `default`, to what it does: see handsets.py and messages.py."""

    accounts: list[AccountConfig] = field(default_factory=lambda: [AccountConfig()])
    handsets: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    keep_calls: int = 20_000


def build(cls: type[T], data: Any, where: str) -> T:
    """Make the dataclass from a JSON object; ValueError names the key that is wrong."""
    if not isinstance(data, dict):
        raise ValueError(f"{where} must be an object")
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    unknown = set(data) - known
    if unknown:
        raise ValueError(f"{where}: unknown keys {sorted(unknown)}; known are {sorted(known)}")
    return cls(**data)


def account_from(data: Any, where: str = "account") -> AccountConfig:
    """An account with its numbers; a number may be given as a plain string."""
    account = build(AccountConfig, data, where)
    account.numbers = [number_from(item, f"{where}.numbers") for item in account.numbers]
    if not account.sid.startswith("AC") or len(account.sid) != 34:
        raise ValueError(f"{where}.sid must be AC and 32 hexadecimal digits")
    if not account.auth_token:
        raise ValueError(f"{where}.auth_token must not be empty")
    if account.calls_per_second <= 0:
        raise ValueError(f"{where}.calls_per_second must be above zero")
    return account


def number_from(data: Any, where: str = "number") -> NumberConfig:
    if isinstance(data, NumberConfig):
        return data
    return NumberConfig(data) if isinstance(data, str) else build(NumberConfig, data, where)


def config_from(data: Any) -> Config:
    """A whole configuration from parsed JSON; ValueError says what is wrong with it."""
    config = build(Config, data, "config")
    if isinstance(config.timing, dict):
        config.timing = build(Timing, config.timing, "timing")
    config.accounts = [
        item if isinstance(item, AccountConfig) else account_from(item, f"accounts[{i}]")
        for i, item in enumerate(config.accounts)
    ]
    return config


def load(path: str | None) -> Config:
    return config_from(json.loads(Path(path).read_text()) if path else {})
