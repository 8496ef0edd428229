"""What a text's statuses mean and which way they go, and what the words mean that people send. Pure functions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TypeVar

# Statuses only move to a higher rank; all ends are equal, and final.
RANK = {
    "created": 0,
    "requesting": 1,
    "unknown": 2,
    "submitted": 3,
    "sent": 4,
    "delivered": 9,
    "undelivered": 9,
    "failed": 9,
    "rejected": 9,
    "canceled": 9,
    "not_sent": 9,
    "received": 9,
}
ENDS = frozenset(status for status, rank in RANK.items() if rank == 9)

# The words that carriers know, in whatever case, alone in the text.
STOP = frozenset({"STOP", "STOPALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "REVOKE", "OPTOUT"})
START = frozenset({"START", "UNSTOP"})
# Means START only for who has opted out; for others it is an answer.
YES = "YES"
HELP = frozenset({"HELP", "INFO"})

LONGEST = 1600
_LINK_TOKEN = re.compile(r"(/[a-z]+/)[A-Za-z0-9_.:-]{30,}(/?)")

N = TypeVar("N")


def is_forward(current: str, new: str) -> bool:
    """Whether a text may move from `current` to `new`."""
    return RANK[new] > RANK[current]


def keyword(body: str, opted_out: bool) -> str:
    """`stop`, `start`, `help`, or "" for a text that says something else."""
    word = re.sub(r"[^A-Z]", "", body.strip().upper()) if len(body) < 40 else ""
    if word in STOP:
        return "stop"
    if word in START or (word == YES and opted_out):
        return "start"
    return "help" if word in HELP else ""


def without_tokens(body: str) -> str:
    """A text for those who read the log: whoever has a signed link can act with it, so it is not shown."""
    return _LINK_TOKEN.sub(r"\1…\2", body)


def number_for(phone: str, numbers: Sequence[N]) -> N | None:
    """The one of `numbers` from which this phone always hears, as long as they stay the same."""
    if not numbers:
        return None
    digest = hashlib.sha256(phone.encode()).digest()
    return numbers[int.from_bytes(digest[:4], "big") % len(numbers)]
