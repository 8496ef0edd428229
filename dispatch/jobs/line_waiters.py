"""Who waits for a line hears when one is given back, whoever had it.

A mark in Redis says that some job waits. The first release that finds the mark takes it away, leaves word that a
line is free, and wakes the loop of waiting jobs, which marks again while jobs still wait: so calls that end cost
one question to Redis while nobody waits, and the loop is not woken more often than it can look. All of it is a
hint; the loop looks every second anyway."""

from __future__ import annotations

from django.db import transaction

from dispatch.core.queues import wake
from dispatch.core.redis import REDIS_ERRORS, client, key

WAITING_LOOP = "jobs_waiting"
KEPT_S = 600


def mark() -> None:
    """Some job waits for a line, as of the commit."""
    transaction.on_commit(_mark, robust=True)


def line_freed() -> None:
    """A line was given back: whoever waits for one should look now."""
    try:
        if client().getdel(key("jobs", "line-waiters")):
            client().set(key("jobs", "line-freed"), 1, ex=KEPT_S)
            wake(WAITING_LOOP)
    except REDIS_ERRORS:
        return


def take_freed() -> bool:
    """Whether a line was given back since this was asked last, while jobs waited for one."""
    try:
        return bool(client().getdel(key("jobs", "line-freed")))
    except REDIS_ERRORS:
        return False


def _mark() -> None:
    try:
        client().set(key("jobs", "line-waiters"), 1, ex=KEPT_S)
    except REDIS_ERRORS:
        return
