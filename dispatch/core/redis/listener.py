"""Listen on a channel of Redis, and follow it to another server if this one no longer answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import structlog
from redis.exceptions import ConnectionError, RedisError  # noqa: A004  (its name in the library)

from dispatch.core.redis.client import LEADS, connect

log = structlog.get_logger(__name__)

# How long a server may be silent before it is asked for an answer, and how long it has to answer (seconds).
CHECK_S = 20
ANSWER_S = 5.0
# How often `is_stopping` is checked (seconds).
POLL_S = 0.5
FIRST_PAUSE_S = 0.5


def listen(
    channel: Callable[[], str],
    is_stopping: Callable[[], bool],
    on_message: Callable[[str], None],
    on_missed: Callable[[], None],
    *,
    max_pause_s: float = 5.0,
) -> None:
    """Pass on the messages of a channel until `is_stopping`. Raises only what the callbacks raise.

    After each outage, `on_missed` is called, since messages were lost.
    """
    has_missed, is_logged, pause_s = False, False, FIRST_PAUSE_S
    while not is_stopping():
        try:
            with closing(connect(LEADS, socket_timeout=ANSWER_S, health_check_s=CHECK_S).pubsub()) as subscription:
                subscription.subscribe(channel())
                answered_at = time.monotonic()
                while not is_stopping():
                    message = subscription.get_message(timeout=POLL_S)
                    if message is not None or subscription.health_check_response_counter <= 0:
                        answered_at = time.monotonic()
                    elif time.monotonic() - answered_at > ANSWER_S:
                        # a hanging host acknowledges what is sent, so the connection itself raises nothing
                        raise ConnectionError("Redis does not answer.")
                    if message is None:
                        continue
                    if message["type"] == "message":
                        on_message(message["data"].decode())
                    elif message["type"] == "subscribe":
                        # also after a lost connection that the library has replaced: nobody answers its pings
                        subscription.health_check_response_counter = 0
                        if has_missed:
                            on_missed()
                        has_missed, is_logged, pause_s = True, False, FIRST_PAUSE_S
        except RedisError as error:
            if not is_logged:
                log.warning("notifications_unavailable", channel=channel(), error=str(error))
            has_missed = is_logged = True
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, max_pause_s)
