"""API keys that do not count, sent again and again: after some the sender must wait, and nothing is looked up.

A secret carries 256 bits, so nobody finds one by trying; this keeps the trying cheap for us, and quiets a client
that goes on with a revoked key. One bucket per address and prefix: who shares an address with such a client, and
has another key, notices nothing."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict

from django.conf import settings
from rest_framework.exceptions import Throttled

from accounts import throttling

REMEMBERED = 10_000


class Refused:
    """Who must wait until when, as far as this process knows; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, sender: str) -> float:
        """Seconds that this sender has still to wait; 0: none."""
        return max(0.0, self._until.get(sender, 0.0) - time.monotonic())

    def note(self, sender: str, wait_s: float) -> None:
        with self._lock:
            self._until[sender] = time.monotonic() + wait_s
            self._until.move_to_end(sender)
            if len(self._until) > REMEMBERED:
                self._until.popitem(last=False)

    def forget(self) -> None:
        """Nobody has to wait (tests)."""
        with self._lock:
            self._until.clear()


refused = Refused()


def check(sender: str) -> None:
    """Raises Throttled while the sender (address and prefix) must wait. Asks no server."""
    if wait := refused.wait_s(sender):
        raise Throttled(math.ceil(wait), "Too many requests with keys that are not known.")


def failed(sender: str) -> None:
    """Counts a key that was not recognised. Raises Throttled when there were too many."""
    taken = throttling.take(f"bad-key:{sender}", throttling.parse(settings.API_BAD_KEY_RATE))
    if taken.wait_ms:
        refused.note(sender, taken.wait_ms / 1000)
        check(sender)
