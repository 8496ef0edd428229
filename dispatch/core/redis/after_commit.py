"""Send commands to Redis after a commit: those of a transaction together, in one round trip for each server.

What they cause is best effort. Rows record what is due, and loops find what Redis has missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from django.db import transaction
from redis.client import Pipeline
from redis.exceptions import ResponseError

from dispatch.core.db.commit_hooks import JoinedHook
from dispatch.core.redis.client import REDIS_ERRORS, client, server_url

# Redis does nothing else while it runs the parts of one request.
AT_ONCE = 500


class _Part(NamedTuple):
    """What is sent. `add` gets the pipeline, and before it the values of all parts with the same `key`, if any."""

    purpose: str
    add: Callable[..., object]
    failed: Callable[[Exception], object]
    key: Hashable = None
    value: Any = None


def send_after_commit(
    purpose: str, add: Callable[[Pipeline], object], failed: Callable[[Exception], object]
) -> None:
    """After the commit, send the commands that `add` puts into a pipeline of the server for `purpose`.

    They are sent after the other hooks of the transaction that were registered before, and run as a transaction of
    Redis. `failed` gets the error if `add` raises one, the server is unavailable or it refuses a command. It must
    not raise. `add` may be called twice.
    """
    transaction.on_commit(_Commands(_Part(purpose, add, failed)), robust=True)


def send_values_after_commit(
    purpose: str,
    key: Hashable,
    value: Any,
    add: Callable[[list[Any], Pipeline], object],
    failed: Callable[[Exception], object],
) -> None:
    """Send like `send_after_commit`, but call `add` once with the values of the transaction that have this key."""
    transaction.on_commit(_Commands(_Part(purpose, add, failed, key, value)), robust=True)


class _Commands(JoinedHook):
    """The commands that a database transaction sends."""

    def __init__(self, part: _Part) -> None:
        self.parts = deque([part])

    def __call__(self) -> None:
        collected = _collected.get()
        if collected is not None:
            collected += self.parts
        else:
            _send_all(self.parts)

    def join(self, earlier: _Commands) -> None:
        self.parts.extendleft(reversed(earlier.parts))


_collected: ContextVar[list[_Part] | None] = ContextVar("collected_commands", default=None)


@contextmanager
def sent_together() -> Iterator[None]:
    """Send the commands of everything that is committed inside at the end, in one round trip for each server.

    For statements without a transaction, each of which is committed at once.
    """
    parts: list[_Part] = []
    token = _collected.set(parts)
    try:
        yield
    finally:
        _collected.reset(token)
        _send_all(parts)


def _send_all(parts: Iterable[_Part]) -> None:
    servers: dict[str, list[_Part]] = {}
    for part in _together(parts):
        servers.setdefault(server_url(part.purpose), []).append(part)
    for found in servers.values():
        for first in range(0, len(found), AT_ONCE):
            _send(found[first : first + AT_ONCE])


def _together(parts: Iterable[_Part]) -> list[_Part]:
    """Return the parts, of those with the same key only the first, with the values of all."""
    kept: list[_Part] = []
    values: dict[Hashable, list[Any]] = {}
    for part in parts:
        if part.key is None:
            kept.append(part)
        elif part.key in values:
            values[part.key].append(part.value)
        else:
            values[part.key] = [part.value]
            kept.append(part._replace(add=partial(part.add, values[part.key])))
    return kept


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
