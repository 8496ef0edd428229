"""Divide the request threads, and the places of waiting requests, among callers.

Slow requests of one caller, or hundreds at once, delay no other caller. A caller is an organization, once a
credential (an API key or a session) was seen to belong to it. Before that, it is the credential. A request without
one is known by its path, because webhooks and public forms of all organizations come from few addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.http import HttpRequest

from dispatch.core.runtime.fair_shares import AsyncShares, FairShares

# Credentials whose organization is remembered; beyond, all are learned again.
MAX_REMEMBERED = 10_000


class RequestShares:
    """The threads and places of one process. Use it in the event loop, except `learn`."""

    def __init__(self, threads: int, most_waiting: int) -> None:
        self._threads = AsyncShares(threads)
        self._places = FairShares(threads + most_waiting)
        self._organizations: dict[int, int] = {}  # by credential
        self._session = re.compile(
            rb"(?:^|;\s*)" + re.escape(settings.SESSION_COOKIE_NAME.encode()) + rb"=([^;]+)"
        )

    @property
    def unanswered(self) -> int:
        """Return how many requests are in a thread or wait for one."""
        return self._places.limit - self._places.free

    def caller_of(self, scope: dict[str, Any]) -> int:
        """Return the key of the caller: the organization, or a negative number."""
        credential = self._credential_of(scope["headers"])
        if credential is None:
            return _number("path", scope["path"])
        return self._organizations.get(credential, credential)

    def learn(self, scope: dict[str, Any], request: HttpRequest) -> None:
        """Remember the organization of the request's credential, if it was found. Works from any thread."""
        organization = getattr(request, "organization", None)
        credential = self._credential_of(scope["headers"])
        if organization is None or credential is None:
            return
        if len(self._organizations) >= MAX_REMEMBERED:
            self._organizations.clear()
        self._organizations[credential] = organization.pk

    def enter(self, caller: int) -> bool:
        """Take a place for a request, and return True; False if the caller has no share of the places left."""
        if not self._places.has_share(caller):
            return False
        self._places.take(caller)
        return True

    def leave(self, caller: int) -> None:
        """Give back a place."""
        self._places.release(caller)

    async def take_thread(self, caller: int) -> None:
        """Wait until the caller may use a thread."""
        await self._threads.take(caller)

    def release_thread(self, caller: int) -> None:
        """Give back a thread."""
        self._threads.release(caller)

    def threads_of(self, caller: int) -> int:
        """Return how many threads the caller uses."""
        return self._threads.held(caller)

    def _credential_of(self, headers: Iterable[tuple[bytes, bytes]]) -> int | None:
        session = None
        for name, value in headers:
            if name == b"authorization":
                return _number("authorization", value)
            if name == b"cookie" and (match := self._session.search(value)):
                session = _number("session", match[1])
        return session


def _number(kind: str, value: str | bytes) -> int:
    """Return a negative number for this value: organizations are positive. Different in each process."""
    return -1 - (hash((kind, value)) & (2**62 - 1))
