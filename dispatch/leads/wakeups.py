"""Listen for wakeups: leads that became ready, and lines that became free."""

from __future__ import annotations

import asyncio
import threading

import structlog

from dispatch.core.redis.client import LEADS, REDIS_ERRORS, connect
from dispatch.leads import redis_queue
from dispatch.leads.pool_rotation import TROUBLE_S

log = structlog.get_logger(__name__)


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
        missed = False
        while not self._stopping.is_set():
            try:
                listener = connect(LEADS, socket_timeout=5).pubsub(ignore_subscribe_messages=True)
                listener.subscribe(redis_queue.wakeup_channel())
                if missed:
                    self._forward("due")
                missed = False
                while not self._stopping.is_set():
                    message = listener.get_message(timeout=0.5)
                    if message and isinstance(message["data"], bytes):
                        self._forward(message["data"].decode())
                listener.close()
            except REDIS_ERRORS as error:
                log.debug("wakeup_channel_unavailable", error=str(error))
                missed = True
                self._stopping.wait(TROUBLE_S)
            except RuntimeError:  # the event loop is closed
                return

    def _forward(self, message: str) -> None:
        self._loop.call_soon_threadsafe(self._on_message, message)  # type: ignore[arg-type]
