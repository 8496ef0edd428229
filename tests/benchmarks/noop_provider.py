"""Phone providers that take every call and do nothing, so that a benchmark measures us alone.

Of `noop` calls stay open; those of `noop-ends` are over as soon as they are taken, those of `noop-20ms` too, from
a provider that takes so long to answer. Their ids say when they were asked for: `asked_at`. Known to processes
whose PROVIDER_MODULES names them, which only the development flag allows.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Mapping
from typing import Any

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.providers.base import (
    CallRequest,
    Outcome,
    Provider,
    StatusReport,
    Submitted,
    TextRequest,
    WebhookEvent,
)
from dispatch.telephony.rules import ListedCall

NAME = "noop"
MODULE = __name__
_count = itertools.count()


# For PROVIDER_MODULES.
MODULES = dict.fromkeys(("noop", "noop-ends", "noop-20ms"), MODULE)


def make(account: ProviderAccount) -> Noop:
    kinds = {"noop": ("submitted", 0.0), "noop-ends": ("completed", 0.0), "noop-20ms": ("completed", 0.02)}
    return Noop(*kinds[account.provider])


def asked_at(sid: str) -> float:
    """The moment (Unix seconds) at which the call of that id was asked for."""
    return int(sid.split("-")[1]) / 1e6


class Noop(Provider):
    """Answers at once, or after `takes_s`. Calls stay where they are until somebody hangs up."""

    is_async = True

    def __init__(self, status: str = "submitted", takes_s: float = 0.0) -> None:
        self._status, self._takes_s = status, takes_s

    def place(self, order: CallRequest) -> Outcome:
        sid = f"NO-{time.time_ns() // 1000}-{os.getpid()}-{next(_count)}"
        if self._takes_s:
            time.sleep(self._takes_s)
        return Submitted(sid, self._status)

    async def place_async(self, order: CallRequest) -> Outcome:
        sid = f"NO-{time.time_ns() // 1000}-{os.getpid()}-{next(_count)}"
        if self._takes_s:
            await asyncio.sleep(self._takes_s)
        return Submitted(sid, self._status)

    def hang_up(self, sid: str) -> StatusReport:
        return StatusReport(sid, "canceled")

    def fetch(self, sid: str) -> StatusReport:
        return StatusReport(sid, "submitted")

    def find_calls(self, to: str, from_: str) -> list[ListedCall]:
        return []

    def send_text(self, order: TextRequest) -> Outcome:
        return Submitted(f"NO-{time.time_ns() // 1000}-{os.getpid()}-{next(_count)}")

    def verify(self, url: str, form: Any, headers: Mapping[str, str]) -> bool:
        return False

    def parse(self, kind: str, step: int, form: Mapping[str, str]) -> WebhookEvent:
        return WebhookEvent(sid="", status=None, kind=kind)

    def render(self, prompt: VoicePrompt, answer_url: str) -> tuple[bytes, str]:
        return b"", "text/plain"
