"""Send commands to Redis after a commit: those of a transaction together, in one round trip for each server.

What they cause is best effort. Rows record what is due, and loops find what Redis has missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from django.db import transaction
from redis.client import Pipeline
from redis.exceptions import ResponseError

from dispatch.core.db.commit_hooks import JoinedHook
from dispatch.core.redis.client import REDIS_ERRORS, client, server_url

# Redis does nothing else while it runs the parts of one request.
AT_ONCE = 500


class _Part(NamedTuple):
    purpose: str
    add: Callable[[Pipeline], object]
    failed: Callable[[Exception], object]


def send_after_commit(
    purpose: str, add: Callable[[Pipeline], object], failed: Callable[[Exception], object]
) -> None:
    """After the commit, send the commands that `add` puts into a pipeline of the server for `purpose`.

    They are sent after the other hooks of the transaction that were registered before, and run as a transaction of
    Redis. `failed` gets the error if `add` raises one, the server is unavailable or it refuses a command. It must
    not raise. `add` may be called twice.
    """
    transaction.on_commit(_Commands(_Part(purpose, add, failed)), robust=True)


class _Commands(JoinedHook):
    """The commands that a database transaction sends."""

    def __init__(self, part: _Part) -> None:
        self.parts = deque([part])

    def __call__(self) -> None:
        servers: dict[str, list[_Part]] = {}
        for part in self.parts:
            servers.setdefault(server_url(part.purpose), []).append(part)
        for parts in servers.values():
            for first in range(0, len(parts), AT_ONCE):
                _send(parts[first : first + AT_ONCE])

    def join(self, earlier: _Commands) -> None:
        self.parts.extendleft(reversed(earlier.parts))


def _send(parts: list[_Part]) -> None:
    """Send the parts together. If the server refuses one command, none has run, and each part is sent alone."""
    added: list[tuple[_Part, slice]] = []
    with client(parts[0].purpose).pipeline() as pipe:
        for part in parts:
            first = len(pipe)
            try:
                part.add(pipe)
            except Exception as error:
                del pipe.command_stack[first:]
                part.failed(error)
            else:
                added.append((part, slice(first, len(pipe))))
        try:
            results = pipe.execute(raise_on_error=False)
        except Exception as error:
            is_one_refused = isinstance(error, ResponseError) and not isinstance(error, REDIS_ERRORS)
            for part, _ in added:
                if is_one_refused and len(added) > 1:
                    _send([part])
                else:
                    part.failed(error)
            return
    for part, own in added:
        if errors := [result for result in results[own] if isinstance(result, Exception)]:
            part.failed(errors[0])
