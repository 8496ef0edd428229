"""Listen for wakeups: leads that became ready, and lines that became free."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from dispatch.core.redis.listener import listen
from dispatch.leads import redis_queue
from dispatch.leads.pool_rotation import TROUBLE_S


class PubSubListener(threading.Thread):
    """Listens on the wakeup channel and passes its messages on.

    After an outage it wakes the dialer once, because messages may have been missed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_message: object) -> None:
        super().__init__(name="leads-bell", daemon=True)
        self._loop, self._on_message = loop, on_message
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            listen(
                redis_queue.wakeup_channel,
                self._stopping.is_set,
                self._forward,
                lambda: self._forward("due"),
                max_pause_s=TROUBLE_S,
            )

    def _forward(self, message: str) -> None:
        self._loop.call_soon_threadsafe(self._on_message, message)  # type: ignore[arg-type]
