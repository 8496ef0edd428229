"""Handle HTTP requests in a pool of persistent threads.

For a synchronous view, Django switches from the event loop to a new thread and back for the middleware, for the
view and for the end of the request, which costs more than most responses. Here such a request runs from its first
middleware to its end in one of a few threads. Asynchronous views run as Django runs them.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import IO, Any

from asgiref.sync import iscoroutinefunction
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponseBase
from django.urls import URLResolver, get_resolver, set_script_prefix

from dispatch.core.api import problems
from dispatch.core.web.bare_handler import BareHandler
from dispatch.core.web.request_shares import RequestShares

# Absorb a burst of a few seconds. Phone providers give up on a webhook after 15 s and retry it.
MAX_WAITING = 400
MAX_WAIT_S = 15.0


class ThreadedASGIHandler(ASGIHandler):
    """The ASGI application, which runs synchronous views in `threads` threads.

    Further requests wait: at most `most_waiting`, each for up to `longest_wait_s`. All others get a 503, so that
    clients that have given up do not take threads from clients that still wait. Callers share threads and places
    fairly (`request_shares`); the requests of one caller are in FIFO order. Requests that `bare` handles pass
    through it instead of all middlewares.
    """

    def __init__(
        self,
        threads: int,
        bare: BareHandler | None = None,
        *,
        most_waiting: int = MAX_WAITING,
        longest_wait_s: float = MAX_WAIT_S,
    ) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._asynchronous, self._bare = ASGIHandler(), bare
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="request")
        self.shares = RequestShares(threads, most_waiting)
        self._longest_wait_s = longest_wait_s

    @property
    def unanswered(self) -> int:
        """Return how many requests are in a thread or wait for one."""
        return self.shares.unanswered

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Handle one HTTP request. A disconnect is noticed when the response is sent."""
        if scope["type"] != "http" or self._is_asynchronous(scope):
            await self._asynchronous(scope, receive, send)
            return
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        run = contextvars.copy_context().run  # each request has its own context, as if it had its own thread
        loop = asyncio.get_running_loop()
        try:
            response = await self._in_thread(run, scope, body)
            try:
                await self.send_response(response, send)
            finally:
                if response.streaming:
                    await loop.run_in_executor(self._threads, run, response.close)
        finally:
            body.close()

    async def _in_thread(
        self, run: Callable[..., Any], scope: dict[str, Any], body: IO[bytes]
    ) -> HttpResponseBase:
        caller, received = self.shares.caller_of(scope), time.monotonic()
        if not self.shares.enter(caller):
            return problems.unavailable(scope["path"], problems.Busy)
        try:
            await self.shares.take_thread(caller)
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, run, self._answer_in_time, scope, body, received)
            finally:
                self.shares.release_thread(caller)
        finally:
            self.shares.leave(caller)

    def _answer_in_time(self, scope: dict[str, Any], body: IO[bytes], received: float) -> HttpResponseBase:
        """Return the response, or immediately a 503 if the request has waited too long for its thread."""
        if time.monotonic() - received > self._longest_wait_s:
            return problems.unavailable(scope["path"], problems.Busy)
        return self._answer(scope, body)

    def _answer(self, scope: dict[str, Any], body: IO[bytes]) -> HttpResponseBase:
        """Return the response: complete, or the beginning of a streaming response."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refused = self.create_request(scope, body)
        response: Any = refused if request is None else self._handler_of(request).get_response(request)
        if request is not None:
            self.shares.learn(scope, request)
        response._handler_class = self.__class__
        if not response.streaming:
            response.close()
        return response

    def _handler_of(self, request: HttpRequest) -> BaseHandler:
        return self._bare if self._bare is not None and self._bare.handles(request) else self

    def _is_asynchronous(self, scope: dict[str, Any]) -> bool:
        """Return whether the path may lead to an asynchronous view.

        Only the few routes of such views are compared, because Django searches all routes later anyway.
        """
        path = scope["path"].removeprefix(get_script_prefix(scope))
        return any(_matches_route(route, path) for route in self._asynchronous_routes)

    @cached_property
    def _asynchronous_routes(self) -> list[_Route]:
        return list(_asynchronous(get_resolver()))


# The patterns of the resolvers from the root on, and of the view.
_Route = tuple[Any, ...]


def _asynchronous(resolver: URLResolver, before: _Route = ()) -> Iterator[_Route]:
    route = (*before, resolver.pattern)
    for entry in resolver.url_patterns:
        if isinstance(entry, URLResolver):
            yield from _asynchronous(entry, route)
        elif iscoroutinefunction(entry.callback):
            yield (*route, entry.pattern)


def _matches_route(route: _Route, path: str) -> bool:
    for pattern in route:
        match = pattern.match(path)
        if match is None:
            return False
        path = match[0]
    return True
