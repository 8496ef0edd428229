"""Read the simulator's configuration: accounts, numbers, handsets, timing. Unknown keys are rejected."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

DEFAULT_ACCOUNT_SID = "AC" + "1".rjust(32, "0")
DEFAULT_AUTH_TOKEN = "simulator-token"  # noqa: S105 (good for this simulator only)

STATUSES, TYPES = {"active", "suspended", "closed"}, {"Full", "Trial"}
REFUSED_OVERFLOW, FAILED_OVERFLOW = 21611, 30001
OVERFLOWS = {REFUSED_OVERFLOW, FAILED_OVERFLOW}

T = TypeVar("T")


@dataclass
class NumberConfig:
    """A phone number of an account, and its webhook URLs for incoming calls and texts."""

    number: str
    voice_url: str = ""
    voice_method: str = "POST"
    voice_fallback_url: str = ""
    status_callback: str = ""
    sms_url: str = ""
    sms_method: str = "POST"


@dataclass
class Prices:
    """What calls and texts cost, as decimal strings. A negative price is a credit.

    The price of a call or text is null until `after` simulated seconds after its end.
    """

    per_minute: str = "0.0130"
    per_segment: str = "0.0079"
    currency: str = "USD"
    after: float = 10.0


@dataclass
class AccountConfig:
    """Credentials, limits and state.

    `calls_per_second` and the rest are in simulated time. A call that would wait in the queue for more than a day
    is refused (22005), and so is a call while `max_concurrent` are open (10004). A request that comes while
    `max_requests` of the account are in progress is not processed (20429).

    An account whose `status` is suspended or closed can only be fetched: everything else is refused (20005), and
    texts that wait fail (30002). A Trial account reaches only `verified` numbers (21219, texts 21608), and one
    without an approved compliance profile no number in +1 (21216, texts 21608). Requests must be addressed to the
    account's `region`, as in `api.dublin.ie1.twilio.com`; in another one its credentials are unknown (20003).

    Texts leave each number at `text_segments_per_second` (0: at once). Those that would wait longer than
    `text_queue_s` overflow its queue: `text_overflow` is 21611 (the request is refused) or 30001 (the text fails).
    Those whose validity period ends in the queue fail (30036).
    """

    sid: str = DEFAULT_ACCOUNT_SID
    auth_token: str = DEFAULT_AUTH_TOKEN
    calls_per_second: float = 1.0
    max_concurrent: int | None = None
    max_requests: int = 100
    countries: list[str] = field(default_factory=lambda: ["+1"])
    owns_any_number: bool = False
    numbers: list[NumberConfig] = field(default_factory=list)
    status: str = "active"
    type: str = "Full"
    verified: list[str] = field(default_factory=list)
    profile_approved: bool = True
    region: str = "us1"
    text_segments_per_second: float = 0.0
    text_queue_s: float = 36_000.0
    text_overflow: int = 21611
    api_keys: dict[str, str] = field(default_factory=dict)  # SID → secret; they may not read the account itself
    prices: Prices = field(default_factory=Prices)

    @property
    def is_active(self) -> bool:
        return self.status == "active"

    def may_reach(self, number: str) -> bool:
        """Return whether a Trial account may call and text the number."""
        return self.type != "Trial" or number in self.verified

    def has_profile_for(self, number: str) -> bool:
        return self.profile_approved or not number.startswith("+1")


@dataclass
class Timing:
    """Durations in simulated seconds. The floors are real seconds.

    Two things do not run faster with simulated time: the server that answers webhooks, and a person who operates a
    `manual` phone. Webhook time-outs, and how long a manual phone may ring, keep a Gather waiting and
    talk, are never shorter than the floors.

    `ring_buffer` is added to the Timeout of every call: the provider adds up to 5 seconds in some call flows.
    `hang_up` passes between a request to end a dialed call and its end: until then, the call goes on.
    """

    accept: float = 0.2
    dial: float = 0.8
    ring_buffer: float = 0.0
    hang_up: float = 0.0
    machine_detection: float = 3.0
    characters_per_second: float = 15.0
    message_step: float = 0.5
    webhook_floor: float = 5.0
    hand_floor: float = 2.0


@dataclass
class Config:
    """Hold the configuration.

    `handsets` and `texts` map a number, or `default`, to a behavior (see handsets.py and messages.py).
    """

    accounts: list[AccountConfig] = field(default_factory=lambda: [AccountConfig()])
    handsets: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    keep_calls: int = 20_000


def build(cls: type[T], data: Any, where: str) -> T:
    """Build the dataclass from a JSON object. Raise ValueError naming an invalid key."""
    if not isinstance(data, dict):
        raise ValueError(f"{where} must be an object")
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    unknown = set(data) - known
    if unknown:
        raise ValueError(f"{where}: unknown keys {sorted(unknown)}; known are {sorted(known)}")
    return cls(**data)


def account_from(data: Any, where: str = "account") -> AccountConfig:
    """Parse an account with its numbers; a number may be a plain string."""
    account = build(AccountConfig, data, where)
    account.numbers = [number_from(item, f"{where}.numbers") for item in account.numbers]
    if isinstance(account.prices, dict):
        account.prices = build(Prices, account.prices, f"{where}.prices")
    if not account.sid.startswith("AC") or len(account.sid) != 34:
        raise ValueError(f"{where}.sid must be AC and 32 hexadecimal digits")
    if not account.auth_token:
        raise ValueError(f"{where}.auth_token must not be empty")
    if account.status not in STATUSES or account.type not in TYPES:
        raise ValueError(f"{where}.status must be one of {sorted(STATUSES)}, and type one of {sorted(TYPES)}")
    if account.text_overflow not in OVERFLOWS:
        raise ValueError(f"{where}.text_overflow must be one of {sorted(OVERFLOWS)}")
    if account.calls_per_second <= 0 or account.max_requests < 1:
        raise ValueError(f"{where}.calls_per_second and max_requests must be above zero")
    return account


def timing_from(data: Any, where: str = "timing") -> Timing:
    """Parse durations. Raise ValueError naming an invalid key or value."""
    timing = data if isinstance(data, Timing) else build(Timing, data, where)
    for name, value in asdict(timing).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ValueError(f"{where}.{name} must be a number of seconds; got {value!r}")
    return timing


def number_from(data: Any, where: str = "number") -> NumberConfig:
    """Parse a number, which may be a plain string. Raise ValueError naming an invalid key."""
    if isinstance(data, NumberConfig):
        return data
    return NumberConfig(data) if isinstance(data, str) else build(NumberConfig, data, where)


def config_from(data: Any) -> Config:
    """Parse a whole configuration. Raise ValueError naming the error."""
    config = build(Config, data, "config")
    config.timing = timing_from(config.timing)
    config.accounts = [
        item if isinstance(item, AccountConfig) else account_from(item, f"accounts[{i}]")
        for i, item in enumerate(config.accounts)
    ]
    return config


def load(path: str | None) -> Config:
    """Read the configuration file, or return the defaults without one. Raise ValueError or OSError."""
    return config_from(json.loads(Path(path).read_text()) if path else {})
