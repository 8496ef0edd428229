"""A telephone provider that takes every call and does nothing, so that a benchmark measures us alone.

Its call ids say when it was asked: `asked_at`. Known to processes whose PROVIDER_MODULES names it, which only the
development flag allows."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from typing import Any

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony.providers.base import Hook, Order, Outcome, Provider, Report, Submitted
from dispatch.telephony.purposes import Prompt
from dispatch.telephony.rules import Listed

NAME = "noop"
MODULE = __name__
_count = itertools.count()


def make(account: ProviderAccount) -> Noop:
    return Noop()


def asked_at(sid: str) -> float:
    """The moment (Unix seconds) at which the call of that id was asked for."""
    return int(sid.split("-")[1]) / 1e6


class Noop(Provider):
    """Answers at once. Calls stay where they are until somebody hangs up."""

    def place(self, order: Order) -> Outcome:
        return Submitted(f"NO-{time.time_ns() // 1000}-{os.getpid()}-{next(_count)}")

    def hang_up(self, sid: str) -> Report:
        return Report(sid, "canceled")

    def fetch(self, sid: str) -> Report:
        return Report(sid, "submitted")

    def find_calls(self, to: str, from_: str) -> list[Listed]:
        return []

    def send_text(self, to: str, from_: str, body: str, status_url: str = "") -> Outcome:
        return Submitted(f"NO-{time.time_ns() // 1000}-{os.getpid()}-{next(_count)}")

    def verify(self, url: str, form: Any, headers: Mapping[str, str]) -> bool:
        return False

    def parse(self, kind: str, step: int, form: Mapping[str, str]) -> Hook:
        return Hook(sid="", status=None, kind=kind)

    def render(self, prompt: Prompt, answer_url: str) -> tuple[bytes, str]:
        return b"", "text/plain"
