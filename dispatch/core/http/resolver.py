"""Look up names for the HTTP client, with a share for each organization.

A look-up occupies a thread until the name server answers, which can take half a minute. An organization gets only
its share of the threads, so that its silent names delay no other organization's. Only a look-up that has begun is
shared with others that need the same name.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from dispatch.core.runtime.fair_shares import AsyncShares

THREADS, THREADS_PER_KEY = 64, 8
# How long a look-up waits for a share. A request with a shorter timeout ends earlier.
MAX_WAIT_S = 3.0
MAX_KNOWN = 4096


@dataclass
class Lookup:
    """The request for which names are looked up: its organization (0: none), and whether it waits for a share.

    `sent` is whether its sending began: until then, the target cannot have seen it.
    """

    key: int = 0
    is_waiting: bool = False
    sent: bool = False

    def begin_sending(self, connection: Any) -> None:
        """Record that the request is about to be written to this connection of aiohttp."""
        self.sent = True


# The request of the current task. Tasks that aiohttp starts for it inherit the value.
current: ContextVar[Lookup | None] = ContextVar("lookup", default=None)


class LookupDelayed(OSError):
    """The look-up did not begin: the organization's share of look-ups is in use. Nothing is known of the name."""


class SystemResolver(AbstractResolver):
    """Ask the system's resolver, in threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        look_up = functools.partial(socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM)
        addresses = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [
            ResolveResult(hostname=host, host=str(address[0]), port=port, family=kind, proto=protocol, flags=0)
            for kind, _, protocol, _, address in addresses
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


_Name = tuple[str, int]
_Answer = list[ResolveResult] | OSError


class FairResolver(AbstractResolver):
    """Divide the look-ups of `inner` among organizations, and keep each result for `ttl_s`, failures included."""

    def __init__(self, inner: AbstractResolver, ttl_s: float) -> None:
        self._inner, self._ttl_s = inner, ttl_s
        self._shares = AsyncShares(THREADS, THREADS_PER_KEY)
        self._known: OrderedDict[_Name, tuple[float, _Answer]] = OrderedDict()
        self._running: dict[_Name, asyncio.Task[_Answer]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        name = host, int(family)
        answer = self._find_known(name)
        if answer is None:
            answer = await asyncio.shield(self._running.get(name) or await self._begin(name))
        if isinstance(answer, OSError):
            raise answer.with_traceback(None)
        return [ResolveResult({**address, "port": port}) for address in answer]

    async def close(self) -> None:
        self._shares.close()
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self._inner.close()

    async def _begin(self, name: _Name) -> asyncio.Task[_Answer]:
        """Wait for a share and return the running look-up, which another request may have begun meanwhile."""
        lookup = current.get() or Lookup()
        lookup.is_waiting = True
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await self._shares.take(lookup.key)
        except TimeoutError:
            raise LookupDelayed(f"{name[0]} was not looked up: too many other names are") from None
        lookup.is_waiting = False
        if name in self._running:
            self._shares.release(lookup.key)
        else:
            self._running[name] = asyncio.create_task(self._look_up(name, lookup.key))
        return self._running[name]

    async def _look_up(self, name: _Name, key: int) -> _Answer:
        answer: _Answer
        try:
            answer = await self._inner.resolve(name[0], 0, socket.AddressFamily(name[1]))
        except OSError as error:
            answer = error
        finally:
            self._running.pop(name, None)
            self._shares.release(key)
        if self._ttl_s > 0:
            self._known[name] = time.monotonic() + self._ttl_s, answer
            self._known.move_to_end(name)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return answer

    def _find_known(self, name: _Name) -> _Answer | None:
        until, answer = self._known.get(name, (0.0, None))
        return answer if until > time.monotonic() else None
