"""Provide the append-only event log and its durable readers.

`log` appends events and notifies subscribers; `readers` processes every event once, in order; `horizon` finds the
transaction that holds readers back.
"""

from dispatch.core.events.log import (
    SYSTEM,
    Actor,
    EventRow,
    NewEvent,
    append,
    append_later,
    append_many,
    appended,
    insert,
    insert_about,
    on_append,
    unsaved,
)

__all__ = [
    "SYSTEM",
    "Actor",
    "EventRow",
    "NewEvent",
    "append",
    "append_later",
    "append_many",
    "appended",
    "insert",
    "insert_about",
    "on_append",
    "unsaved",
]
